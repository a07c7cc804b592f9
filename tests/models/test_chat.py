"""A completion is put together from what arrived, not from what the server calls it (A2, A3, A6)."""

import json
from typing import Any

import pytest

from kokuban.agents.models import (
    Delta,
    ModelAuthError,
    ModelCutOff,
    ModelError,
    ModelProtocolError,
    ModelRefused,
    ModelUnavailable,
    Problem,
    Progress,
    Reply,
    parse_arguments,
)
from kokuban.agents.models._chat import ChatReply
from models.chat_server import DONE, data, delta, request, usage


def assemble(*events: bytes, max_output_tokens: int = 100) -> Reply:
    chat = ChatReply(request(max_output_tokens=max_output_tokens), Progress())
    chat.feed(b"".join(events))
    chat.close()
    return chat.reply("fallback")


def body(payload: Any) -> Reply:
    chat = ChatReply(request(), Progress())
    chat.feed(payload if isinstance(payload, bytes) else json.dumps(payload).encode())
    chat.close()
    return chat.reply("fallback")


def call(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fragment: dict[str, Any] = {"function": function}
    if index is not None:
        fragment["index"] = index
    if id is not None:
        fragment["id"] = id
    return fragment


def calls_of(*fragments: Any, finish: str | None = "tool_calls") -> list[tuple[str, str, str, bool]]:
    """What comes of fragments, one chunk each: id, name, arguments, may it run."""
    reply = assemble(*(delta(calls=[fragment]) for fragment in fragments), delta(finish=finish), DONE)
    return [(c.id, c.name, c.arguments, c.problem is None) for c in reply.calls]


# --- A2: parallel calls -------------------------------------------------------------------------------------------


def test_new_ids_on_one_index_are_new_calls() -> None:
    assert calls_of(*(call(0, f"c{n}", f"t{n}", f'{{"n":{n}}}') for n in (1, 2, 3))) == [
        ("c1", "t1", '{"n":1}', True),
        ("c2", "t2", '{"n":2}', True),
        ("c3", "t3", '{"n":3}', True),
    ]


def test_fragments_on_one_index_follow_the_id_or_the_newest_call() -> None:
    assert calls_of(
        call(0, "c1", "t", '{"a":'), call(0, None, None, "1"), call(0, "c2", "t", "{"), call(0, None, None, "}"),
        call(0, "c1", None, "}"),
    ) == [("c1", "t", '{"a":1}', True), ("c2", "t", "{}", True)]  # fmt: skip


@pytest.mark.parametrize("ids", [("c1", "c2"), (None, None)])
@pytest.mark.parametrize("names", [("t", "t"), ("t", "u")])
def test_without_an_index_each_chunk_with_a_call_is_one(ids: tuple[Any, Any], names: tuple[str, str]) -> None:
    got = calls_of(call(None, ids[0], names[0], '{"n":1}'), call(None, ids[1], names[1], '{"n":2}'))
    assert [entry[1:] for entry in got] == [(names[0], '{"n":1}', True), (names[1], '{"n":2}', True)]
    assert len({entry[0] for entry in got}) == 2


def test_without_an_index_fragments_go_to_their_id_or_the_last_call() -> None:
    assert calls_of(
        call(None, "c1", "t", '{"a"'), call(None, None, None, ":"), call(None, "c2", "u", "{"),
        call(None, "c1", None, "1}"), call(None, None, None, "}"),
    ) == [("c1", "t", '{"a":1}', True), ("c2", "u", "{}", True)]  # fmt: skip


def test_interleaved_indexes_with_the_id_only_once() -> None:
    assert calls_of(
        call(0, "c1", "t", ""), call(1, "c2", "u", ""), call(0, None, None, '{"a"'), call(1, None, None, '{"b"'),
        call(0, "", None, ":1}"), call(1, "", None, ":2}"),
    ) == [("c1", "t", '{"a":1}', True), ("c2", "u", '{"b":2}', True)]  # fmt: skip


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("id", ["c1", None])
def test_a_repeated_name_is_set_once(index: int | None, id: str | None) -> None:
    pieces = ['{"a"', ":", '{"b":1}', "}", ""]
    got = calls_of(*(call(index, id, "read_file", piece) for piece in pieces))
    assert [entry[1:] for entry in got] == [("read_file", '{"a":{"b":1}}', True)]


def test_a_late_id_is_taken_over() -> None:
    assert calls_of(call(0, None, "t", "{"), call(0, "c1", None, "}")) == [("c1", "t", "{}", True)]
    assert calls_of(call(None, None, "t", "{"), call(None, "c1", None, "}")) == [("c1", "t", "{}", True)]


@pytest.mark.parametrize(
    "fragments",
    [
        [call(0, None, "t", '{"a":1}'), call(0, None, "u", '{"a":2}')],
        [call(0, "c1", "t", "{}"), call(1, "c1", "t", "{}")],
        [call(0, "c1", "t", "{}"), call(0, "c1", "u", "")],
        [call(0, "c1", None, "{}")],
        [call(0, None, "t", '{"a":1}'), call(0, None, "t", '{"a":2}')],
        [call(0, "c1", "t", '{"a":1}'), call(0, "c1", "t", '{"a":1}')],
        [call(0, "c1", "t", {"a": 1}), call(0, "c1", None, {"b": 1})],
    ],
)
def test_what_could_be_two_calls_never_runs(fragments: list[Any]) -> None:
    reply = assemble(*(delta(calls=[fragment]) for fragment in fragments), delta(finish="tool_calls"), DONE)
    assert reply.calls
    for entry in reply.calls:
        assert entry.problem is not None or isinstance(parse_arguments(entry.arguments), Problem)
    assert len({entry.id for entry in reply.calls}) == len(reply.calls)


def test_a_whole_message_has_one_call_an_entry_whatever_its_numbers() -> None:
    entries = [call(None, None, "t", '{"n":1}'), call(None, None, "t", {"n": 2}), call(0, "c", "t"), call(0, "d", "t")]
    reply = body({"choices": [{"message": {"content": None, "tool_calls": entries}, "finish_reason": "stop"}]})
    assert [parse_arguments(c.arguments) for c in reply.calls] == [{"n": 1}, {"n": 2}, {}, {}]
    assert all(c.problem is None for c in reply.calls)
    assert len({c.id for c in reply.calls}) == 4


@pytest.mark.parametrize("rubbish", [None, 1, "x", [], {}, {"function": None}, {"function": {"name": 3}}])
def test_rubbish_among_calls_does_not_stop_the_reply(rubbish: Any) -> None:
    assert calls_of(rubbish, call(0, "c", "t", "{}")) == [("c", "t", "{}", True)]


def test_made_up_ids_differ_from_turn_to_turn() -> None:
    first = calls_of(call(0, None, "t", "{}"))[0][0]
    turn = request()
    later = ChatReply(type(turn)(messages=turn.messages * 3, max_output_tokens=9), Progress())
    later.feed(json.dumps({"choices": [{"message": {"tool_calls": [call(0, None, "t", "{}")]}}]}).encode())
    later.close()
    assert later.reply("m").calls[0].id != first


# --- A3: the finish reason lies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["stop", None, "other", "tool_calls", "STOP", "eos_token"])
def test_complete_calls_run_whatever_the_finish_reason(finish: str | None) -> None:
    chunks = [delta(calls=[call(n, f"c{n}", "t", "{}")]) for n in range(3)]
    reply = assemble(delta("I will"), *chunks, delta(finish=finish), DONE)
    assert (reply.content, reply.truncated, reply.finish) == ("I will", False, finish)
    assert [c.problem for c in reply.calls] == [None] * 3


@pytest.mark.parametrize("arguments", ['{"path":"a","content":"lor', "{}"])
def test_calls_at_the_token_limit_never_run(arguments: str) -> None:
    chunk = delta(calls=[call(0, "c", "t", arguments)])
    reply = assemble(chunk, delta(finish="tool_calls"), usage(9, 64), DONE, max_output_tokens=64)
    assert reply.truncated
    assert reply.calls[0].problem is not None
    assert reply.calls[0].arguments == arguments
    below = assemble(chunk, delta(finish="tool_calls"), usage(9, 63), DONE, max_output_tokens=64)
    assert not below.truncated
    assert below.calls[0].problem is None


@pytest.mark.parametrize("finish", ["length", "content_filter", "max_tokens", "MAX_TOKENS"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_complete_call_in_a_cut_reply_never_runs(finish: str, streamed: bool) -> None:
    entry = call(0, "c", "t", '{"a":1}')
    if streamed:
        reply = assemble(delta("x", calls=[entry]), delta(finish=finish), DONE)
    else:
        reply = body({"choices": [{"message": {"content": "x", "tool_calls": [entry]}, "finish_reason": finish}]})
    assert reply.truncated
    assert reply.calls[0].problem is not None


# --- A6: broken endings -------------------------------------------------------------------------------------------


def test_a_clean_close_before_the_end_is_an_error() -> None:
    with pytest.raises(ModelCutOff) as raised:
        assemble(delta("text"), delta(calls=[call(0, "c", "t", '{"a')]))
    assert raised.value.retryable


@pytest.mark.parametrize("end", [b"", b"data: [DONE]", b'data: {"choices":[{"ind', b"data: [DO"])
def test_a_finish_reason_is_an_end_with_or_without_done(end: bytes) -> None:
    assert assemble(delta("text"), delta(finish="stop"), usage(5, 2), end).content == "text"


@pytest.mark.parametrize("events", [[], [DONE], [b": ping\n\n"], [usage(5, 2)], [delta("text"), usage(5, 2)]])
def test_no_word_of_an_end_is_an_error(events: list[bytes]) -> None:
    with pytest.raises(ModelCutOff):
        assemble(*events)


def test_an_empty_reply_that_ended_is_a_reply() -> None:
    assert assemble(delta(""), delta(finish="stop"), DONE).content == ""


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"error": {"message": "quota"}}, None),
        ({"error": {"message": "quota", "code": "insufficient_quota", "type": "x"}}, "insufficient_quota"),
        ({"error": "quota"}, None),
        ({"choices": [], "error": {"message": "quota", "code": None}}, None),
        ({"choices": [], "error": {"message": "quota", "code": None, "type": "billing"}}, "billing"),
        ({"object": "error", "message": "quota", "code": 400}, "400"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "quota"}}, "invalid_request_error"),
        ({"error": {"error": {"code": "deep", "message": "quota"}}}, "deep"),
        ({"error": ["quota"]}, None),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": "c", "message": "quota"}}]}, "c"),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_an_error_inside_a_good_answer_is_an_error(payload: Any, code: str | None, streamed: bool) -> None:
    with pytest.raises(ModelRefused, match="quota") as raised:
        _ = assemble(delta("text"), data(payload), DONE) if streamed else body(payload)
    assert raised.value.code == code
    assert not raised.value.retryable
    assert raised.value.spent


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        ({"error": {"code": 502, "message": "x"}}, 502),
        ({"error": {"code": "503", "message": "x"}}, 503),
        ({"error": {"code": None, "type": "server_error", "message": "x"}}, None),
        ({"error": {"code": 1302, "type": "rate_limit_error", "message": "x"}}, None),
        ({"type": "error", "error": {"type": "overloaded_error"}, "request_id": "r"}, None),
        ({"error": {"message": "x", "status": 429}}, 429),
    ],
)
def test_a_passing_error_inside_a_stream_may_be_retried(payload: Any, status: int | None) -> None:
    with pytest.raises(ModelUnavailable) as raised:
        assemble(delta("text"), data(payload), DONE)
    assert raised.value.retryable
    assert raised.value.status == status


def test_an_event_named_error_is_one_whatever_it_holds() -> None:
    with pytest.raises(ModelError, match="out of luck"):
        assemble(delta("a"), b"event: error\ndata: out of luck\n\n", delta(finish="stop"))
    with pytest.raises(ModelUnavailable):
        assemble(b'event: error\ndata: {"type":"overloaded_error","message":"m"}\n\n')
    with pytest.raises(ModelAuthError):
        assemble(b'event: error\ndata: {"error":{"code":401,"message":"m"}}\n\n')


def test_a_null_error_is_none() -> None:
    payload = {"error": None, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    assert assemble(data(payload)).content == "a"


def test_a_finish_reason_error_is_an_error() -> None:
    with pytest.raises(ModelCutOff):
        assemble(delta("half"), delta(finish="error"), DONE)


@pytest.mark.parametrize("event", ["{half", "hello", "[" * 100_000, '{"a":' + "9" * 5000 + "}"])
def test_an_event_that_is_not_json_is_an_error(event: str) -> None:
    with pytest.raises(ModelCutOff):
        assemble(delta("a"), data(event), delta(finish="stop"), DONE)


@pytest.mark.parametrize("payload", [{}, {"choices": []}, {"choices": [{}]}, {"choices": None}, {"id": 1}])
def test_a_body_without_a_message_is_an_error(payload: Any) -> None:
    with pytest.raises(ModelProtocolError):
        body(payload)


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b" \n\r\n", b"\xef\xbb\xbf\n"])
def test_a_body_is_told_from_a_stream_by_its_first_brace(before: bytes) -> None:
    text = before + json.dumps({"choices": [{"message": {"content": "a\u2028é"}}]}, ensure_ascii=False).encode()
    for raw, want in ((text, "a\u2028é"), (before + delta("é", finish="stop"), "é")):
        for cut in range(len(raw)):
            chat = ChatReply(request(), Progress())
            chat.feed(raw[:cut])
            chat.feed(raw[cut:])
            chat.close()
            assert chat.reply("m").content == want


def test_half_a_body_is_an_error() -> None:
    with pytest.raises(ModelCutOff):
        body(b'{"choices":[{"message":{"content":"a')


# --- what is in a reply -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_alive", [": PROCESSING", "", " ", ":"])
def test_keep_alives_wrapped_into_data_are_skipped(keep_alive: str) -> None:
    wrapped = data(keep_alive)
    assert assemble(wrapped, delta("a"), wrapped, b":\n\n", delta("b", finish="stop"), wrapped, DONE).content == "ab"


@pytest.mark.parametrize("content", ["text", [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}, None]])
def test_content_may_be_text_or_parts(content: Any) -> None:
    assert assemble(delta(content, finish="stop")).content == "text"
    assert body({"choices": [{"message": {"role": "assistant", "content": content}}]}).content == "text"


def test_reasoning_parts_are_not_content() -> None:
    parts = [{"type": "thinking", "text": "hm"}, {"type": [], "text": "?"}, {"type": "text", "text": "text"}]
    assert assemble(delta(parts, finish="stop")).content == "text"


def test_no_depth_of_an_error_escapes_as_another() -> None:
    for depth in range(850, 1000, 3):
        nested = "[" * depth + "]" * depth
        for text in (f'{{"error":{nested}}}', f'{{"error":{{"x":{nested}}}}}', f'{{"choices":{nested}}}'):
            with pytest.raises(ModelError):
                body(text.encode())


@pytest.mark.parametrize("payload", [None, 1, "x", [], {"choices": [None, 3]}, {"choices": [{"delta": None}]}])
def test_chunks_without_anything_are_skipped(payload: Any) -> None:
    assert assemble(data(json.dumps(payload)), delta("a", finish="stop"), DONE).content == "a"


def test_other_choices_are_not_mixed_in() -> None:
    other = data({"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}]})
    assert assemble(delta("a"), other, delta("b", finish="stop")).content == "ab"


def test_a_character_cut_into_two_escapes_is_whole() -> None:
    seen: list[Delta] = []
    chat = ChatReply(request(), Progress(on_delta=seen.append))
    halves = [r'"a\ud83d"', r'"\ude42b\ud83d"']
    for half in halves:
        chat.feed(f'data: {{"choices":[{{"delta":{{"content":{half}}}}}]}}\n\n'.encode())
    chat.feed(delta(finish="stop"))
    assert chat.reply("m").content == "a🙂b\ufffd"
    assert "".join(piece.text for piece in seen) == "a🙂b\ufffd"


def test_a_providers_own_fields_are_kept_aside() -> None:
    reply = assemble(delta(reasoning_content="I th"), delta("x", reasoning_content="ink"), delta(sig={"a": 1}), DONE)
    assert reply.content == "x"
    assert reply.extra == {"reasoning_content": "I think", "sig": {"a": 1}}


def test_usage_is_the_servers_last_word() -> None:
    early = data({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"prompt_tokens": 9}})
    final = usage(10, 3, prompt_tokens_details={"cached_tokens": 4})
    reply = assemble(early, delta(finish="stop"), final, DONE)
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (10, 3, 4)
    assert not reply.usage.estimated
    assert reply.model == "m-1"


@pytest.mark.parametrize(
    "counts",
    [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": None, "completion_tokens": "3"},
     {"prompt_tokens": -1, "completion_tokens": True}],
)  # fmt: skip
def test_absent_usage_is_estimated_and_never_zero(counts: Any) -> None:
    reply = assemble(delta("12345678é", finish="stop"), data({"choices": [], "usage": counts}), DONE)
    assert reply.usage.estimated
    assert reply.usage.output_tokens == 3
    assert reply.usage.input_tokens > 0
    assert reply.usage.cached_tokens is None
