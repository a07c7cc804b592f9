"""Whatever a model server sends: a reply that can be stored and sent back, or one of our errors, and in time."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.models import (
    Call,
    Message,
    ModelError,
    Problem,
    Progress,
    Reply,
    Request,
    ToolSpec,
    Usage,
    parse_arguments,
)
from kokuban.agents.models._chat import ChatReply
from kokuban.agents.models._dialect import Dialect
from kokuban.agents.models._extra import signed
from kokuban.agents.models._faults import model_error, wait_of
from kokuban.agents.models._messages import MessagesDialect, MessagesReply
from kokuban.agents.models._sse import SseDecoder, SseEvent
from kokuban.agents.models._texttools import in_text, read_calls
from support.fuzz import fuzz, in_time

pytestmark = in_time

# --- what servers might send ------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ["", " ", "a", "{", "}", "[", '"', "\\", "\u2028", "\u0085", "\ud83d", "\ude42", "🙂", "é", "<think>", "</think>",
     "<tool_call>", "</tool_call>", "```json\n", "\n```\n", "\n", "null", '{"name": "look", "arguments": {}}',
     '{"a":1}', "NaN", "1e999", "error", "context_length_exceeded", "look"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | TEXTS | st.just(2**70)
)  # fmt: skip
RUBBISH = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


@st.composite
def shaped(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> Any:
    """An object with these fields, of which few are missing or rubbish; or rubbish, now and then."""
    found: dict[str, Any] = {}
    for name, field in fields.items():
        luck = draw(st.integers(0, 19))
        if luck != 1:
            found[name] = draw(RUBBISH) if luck == 2 else draw(field)
    return draw(RUBBISH) if draw(st.integers(0, 39)) == 1 else found


COUNTS = st.integers(0, 200)
STATUS = st.integers(400, 599)
CALL = shaped(
    index=st.integers(0, 2), id=st.sampled_from(["c1", "c2", "c3", ""]) | TEXTS, extra_content=RUBBISH,
    function=shaped(name=st.sampled_from(["look", "list"]), arguments=st.just("{}") | TEXTS),
)  # fmt: skip
FAULT = shaped(message=TEXTS, code=TEXTS | STATUS, type=TEXTS, status=STATUS, error=RUBBISH)
MESSAGE = shaped(
    content=TEXTS | st.lists(shaped(type=st.just("text"), text=TEXTS), max_size=2),
    tool_calls=st.lists(CALL, max_size=3), reasoning_content=TEXTS, reasoning_details=RUBBISH,
)  # fmt: skip
FINISH = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "error", None])
CHOICE = shaped(index=st.just(0), delta=MESSAGE, message=MESSAGE, finish_reason=FINISH)
USED = shaped(prompt_tokens=COUNTS, completion_tokens=COUNTS, prompt_tokens_details=shaped(cached_tokens=COUNTS))
CHUNKS = shaped(choices=st.lists(CHOICE, min_size=1, max_size=2), model=TEXTS, usage=USED)
LAST_CHUNK = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
BLOCK = st.one_of(
    shaped(type=st.just("text"), text=TEXTS),
    shaped(type=st.just("tool_use"), id=TEXTS | st.sampled_from(["t1", "t2"]), name=st.just("look"), input=RUBBISH),
    shaped(type=st.just("thinking"), thinking=TEXTS, signature=TEXTS),
    shaped(type=st.just("redacted_thinking"), data=TEXTS),
)
TOKENS = shaped(
    input_tokens=COUNTS, output_tokens=COUNTS, cache_read_input_tokens=COUNTS, cache_creation_input_tokens=COUNTS
)
STOPS = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", None])
PLACE = st.integers(0, 3)


def event(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return shaped(type=st.just(kind), **fields)


EVENTS = st.one_of(
    event("message_start", message=shaped(model=TEXTS, usage=TOKENS)),
    event("content_block_start", index=PLACE, content_block=BLOCK),
    event(
        "content_block_delta", index=PLACE,
        delta=shaped(text=TEXTS) | shaped(thinking=TEXTS, signature=TEXTS) | shaped(partial_json=TEXTS | st.just("{}")),
    ),
    event("content_block_stop", index=PLACE),
    event("message_delta", delta=shaped(stop_reason=STOPS), usage=TOKENS),
    event("ping"),
    event("message", content=st.lists(BLOCK, max_size=4), stop_reason=STOPS, usage=TOKENS, model=TEXTS),
)  # fmt: skip
LAST_EVENT = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
NAMES = st.sampled_from([b"", b"event: message_delta\n", b"id: 1\n", b": ping\n\n"])
FAULTY = st.sampled_from(
    [b"data: [DO", b"\xff\xfe", b"data: {\n\n", b"\n", b"event: error\n", b"data: [DONE]\n\n"]
)  # fmt: skip


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


@st.composite
def streams(draw: st.DrawFn, payloads: st.SearchStrategy[Any], last: Any = None) -> bytes:
    """Bytes of an event stream or of one body, mostly in order and mostly with an end."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([b"", b"\xef\xbb\xbf", b" \n"])) + encoded(draw(payloads))
    parts: list[bytes] = []
    for payload in draw(st.lists(payloads, max_size=8)):
        parts += [draw(NAMES), draw(st.sampled_from([b"data: ", b"data:"])), encoded(payload), draw(ENDS)]
        if draw(st.integers(0, 29)) == 1:
            parts.append(draw(FAULTY | FAULT.map(lambda fault: b"data: " + encoded({"error": fault}) + b"\n\n")))
    if draw(st.integers(0, 9)):
        parts += [b"data: ", encoded(last), b"\n\ndata: [DONE]\n\n"]
    return b"".join(parts)


CUTS = st.lists(st.integers(0, 4_000), max_size=4)


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(place, len(raw)) for place in cuts} | {0, len(raw)})
    return [raw[begin:end] for begin, end in pairwise(places)]


# --- what has to hold -------------------------------------------------------------------------------------------------

LOOK = ToolSpec("look", "Shows.", {"type": "object"})
ASKED = Request(messages=(Message("user", "hi"),), max_output_tokens=100, tools=(LOOK,))
PLAIN = Request(messages=(Message("user", "hi"),), max_output_tokens=100, schema={"type": "object"})


def outcome(reader: ChatReply | MessagesReply, pieces: list[bytes]) -> Reply | str:
    """The reply, or what kind of error it was."""
    try:
        for piece in pieces:
            reader.feed(piece)
            if reader.done:
                break
        else:
            reader.close()
        return reader.reply("m")
    except ModelError as error:
        str(error).encode()
        (error.code or "").encode()
        return type(error).__name__


def check(reply: Reply) -> None:
    """It can be stored, and both wires can say it again."""
    reply = msgspec.structs.replace(reply, extra=signed(reply.extra, "m"))
    stored = msgspec.json.encode(reply)
    again = msgspec.json.decode(stored, type=Reply)
    assert again == reply
    assert reply.usage.input_tokens >= 0
    assert reply.usage.output_tokens >= 0
    assert len({call.id for call in reply.calls}) == len(reply.calls)
    if reply.truncated:
        assert all(call.problem for call in reply.calls)
    history = (
        Message("user", "hi"), Message("assistant", again.content, again.calls, extra=again.extra),
        *(Message("tool", "result", call_id=call.id) for call in again.calls),
    )  # fmt: skip
    request = Request(messages=history, max_output_tokens=9, tools=(LOOK,))
    for dialect in (Dialect("m"), MessagesDialect("m"), MessagesDialect("other")):
        body = json.loads(json.dumps(dialect.body(request), allow_nan=False).encode())
        assert body["messages"]
    turns = MessagesDialect("m").body(request)["messages"]
    asked = [block["id"] for turn in turns for block in turn["content"] if block["type"] == "tool_use"]
    told = [block["tool_use_id"] for turn in turns for block in turn["content"] if block["type"] == "tool_result"]
    assert asked == told


# --- targets ----------------------------------------------------------------------------------------------------------


@fuzz
@given(st.binary(max_size=300) | streams(RUBBISH), CUTS)
def test_events_are_the_same_however_the_bytes_are_cut(raw: bytes, cuts: list[int]) -> None:
    def events(pieces: list[bytes]) -> list[SseEvent]:
        decoder = SseDecoder()
        return [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()

    whole = events([raw])
    assert events(cut(raw, cuts)) == whole
    assert events([raw[n : n + 1] for n in range(len(raw))]) == whole


@fuzz
@given(streams(CHUNKS, LAST_CHUNK) | st.binary(max_size=300), CUTS, st.booleans())
def test_a_chat_completion_is_a_reply_or_an_error(raw: bytes, cuts: list[int], thinks: bool) -> None:
    whole = outcome(ChatReply(ASKED, Progress(), thinks=thinks), [raw])
    if isinstance(whole, Reply):
        check(whole)
        read_calls(whole, ASKED)
    split = outcome(ChatReply(ASKED, Progress(), thinks=thinks), [raw[n : n + 1] for n in range(len(raw))])
    if isinstance(whole, Reply) and isinstance(split, Reply):
        # What comes after the end of a reply is read or not, as it happens to arrive.
        assert (split.content, split.calls) == (whole.content, whole.calls) or b"[DONE]" in raw
    outcome(ChatReply(PLAIN, Progress()), cut(raw, cuts))


@fuzz
@given(streams(EVENTS, LAST_EVENT) | st.binary(max_size=300), CUTS)
def test_a_message_is_a_reply_or_an_error(raw: bytes, cuts: list[int]) -> None:
    whole = outcome(MessagesReply(ASKED, Progress(), "m"), [raw])
    if isinstance(whole, Reply):
        check(whole)
    for asked in (ASKED, PLAIN):
        split = outcome(MessagesReply(asked, Progress(), "m"), cut(raw, cuts))
        if isinstance(split, Reply):
            check(split)


@fuzz
@given(TEXTS | RUBBISH)
def test_arguments_are_an_object_or_a_reason(raw: Any) -> None:
    parsed = parse_arguments(raw)
    if isinstance(parsed, Problem):
        assert parsed.reason
        return
    assert isinstance(parsed, dict)
    assert parse_arguments(json.dumps(parsed, allow_nan=False)) == parsed


@fuzz
@given(TEXTS, st.booleans())
def test_text_is_read_for_calls_or_left_as_it_is(text: str, truncated: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    reply = Reply(content=text, usage=Usage(1, 1), model="m", truncated=truncated)
    found = read_calls(reply, ASKED)
    if not found.calls:
        assert found.content == text
    check(found)
    shown = in_text(Request(
        messages=(Message("user", "x"), Message("assistant", found.content, found.calls)), max_output_tokens=9,
        tools=(LOOK,),
    ))  # fmt: skip
    assert [message.role for message in shown][:2] == ["system", "user"]


@fuzz
@given(FAULT, st.none() | st.integers(300, 600), st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "date", "x-ratelimit-remaining-tokens", "x-ratelimit-remaining",
                     "x-ratelimit-reset-tokens", "x-ratelimit-reset", "anthropic-ratelimit-tokens-remaining",
                     "anthropic-ratelimit-tokens-reset"]),
    TEXTS | st.sampled_from(["0", "1s", "6m0s", "1e9", "9" * 13, "2026-12-01T00:00:00Z", "9999-12-31T23:59:59+14:00",
                             "Wed, 21 Oct 2026 07:28:05 GMT", "Mon, 31 Dec 9999 23:59:59 -2359", "-1", "nan"]),
))  # fmt: skip
def test_any_refusal_is_an_error_with_a_wait_that_can_be_waited(
    fault: Any, status: int | None, headers: dict[str, str]
) -> None:
    seconds = wait_of(headers)
    assert seconds is None or 0 <= seconds < float("inf")
    error = model_error(fault, status=status, retry_after_seconds=seconds)
    assert isinstance(error, ModelError)
    str(error).encode()


@fuzz
@given(st.lists(st.builds(
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), TEXTS,
    st.lists(st.builds(Call, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple), st.none() | TEXTS,
    st.dictionaries(TEXTS | st.sampled_from(["by", "calls", "anthropic"]), RUBBISH, max_size=2),
), max_size=6))  # fmt: skip
def test_any_history_can_be_said_on_both_wires(messages: list[Message]) -> None:
    request = Request(messages=tuple(messages), max_output_tokens=9, tools=(LOOK,))
    for dialect in (Dialect("m"), MessagesDialect("m")):
        json.dumps(dialect.body(request), allow_nan=False).encode("utf-8", "strict")
    for turn in in_text(request):
        assert turn.role != "tool"


@pytest.mark.parametrize("piece", [
    "<tool_call>", "<tool_call>\n", "\n<tool_call>", "a <tool_call>", "```json\n", "```\n", "\n```json\n{", " ", "\n",
    "[", "{", '"', "\\", '{"name": "look", "arguments": ', "<think>", "</think>", '{"a":', "\u2028",
])  # fmt: skip
def test_no_repetition_takes_long(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    begun = time.monotonic()
    read_calls(Reply(content=text, usage=Usage(1, 1), model="m"), ASKED)
    parse_arguments(text)
    decoder = SseDecoder()
    decoder.feed(text.encode())
    decoder.close()
    for reader in (ChatReply(ASKED, Progress(), thinks=True), MessagesReply(ASKED, Progress(), "m")):
        outcome(reader, [text.encode()])
        outcome(reader, [b"data: " + text.encode()])
    assert time.monotonic() - begun < 10
