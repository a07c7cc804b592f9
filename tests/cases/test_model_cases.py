"""The wires of model servers, as they are at their worst: each case over HTTP, its bytes one at a time, on both wires
where both have it. The kind of each case is in `models/`."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from kokuban.agents.models import (
    Call,
    Delta,
    Message,
    Meter,
    ModelCutOff,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    Price,
    Prices,
    Problem,
    Progress,
    Reply,
    Request,
    ToolSpec,
    open_model,
    parse_arguments,
)
from kokuban.agents.models._messages import NO_OUTPUT, NO_RESULT
from models.chat_server import CONTEXT, DONE, SSE_HEAD, Answer, ChatServer, answer, data, delta, in_pieces, serving
from models.chat_server import usage as used

pytestmark = pytest.mark.anyio
LOOK = ToolSpec("look", "Shows a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
GOOD = delta("ok", finish="stop") + DONE
FINE = [
    {"type": "message_start", "message": {"model": "c", "usage": {"input_tokens": 10, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]


def events(*payloads: Any) -> bytes:
    """Anthropic's events."""
    return b"".join(b"event: %s\n" % payload["type"].encode() + data(payload) for payload in payloads)


def trickled(raw: bytes, head: bytes = SSE_HEAD) -> Answer:
    """An answer that comes in single bytes."""
    return in_pieces([head, *(raw[n : n + 1] for n in range(len(raw)))])


class Wire:
    """One server of one kind, its model, and what it was sent."""

    def __init__(self, server: ChatServer, kind: str, **options: Any) -> None:
        self.server = server
        self.model = open_model(f"{kind}-compatible:m", base_url=server.url, env={}, **options)

    async def ask(self, *messages: Message, progress: Progress | None = None, **fields: Any) -> Reply:
        asked = Request(
            messages=messages or (Message("user", "hi"),), **{"max_output_tokens": 100, "tools": (LOOK,), **fields}
        )
        return await self.model.call(asked, CONTEXT, progress or Progress())


async def ask(said: Answer, kind: str = "openai", fields: dict[str, Any] | None = None, **options: Any) -> Any:
    """What is made of this answer. Bytes without a head are a stream, trickled."""
    trickle = isinstance(said, bytes) and not said.startswith(b"HTTP/")
    async with serving(trickled(said) if isinstance(said, bytes) and trickle else said) as server:
        wire = Wire(server, kind, **options)
        try:
            return await wire.ask(**(fields or {}))
        finally:
            await wire.model.aclose()


def entry(index: int | None, call: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    said = {"name": name, "arguments": arguments}
    found = {"index": index, "id": call, "function": {k: v for k, v in said.items() if v is not None}}
    return {key: value for key, value in found.items() if value is not None}


def runnable(reply: Reply) -> list[tuple[str, Any]]:
    """The calls that would be run."""
    parsed = [(call.name, parse_arguments(call.arguments)) for call in reply.calls if call.problem is None]
    return [(name, values) for name, values in parsed if not isinstance(values, Problem)]


@pytest.mark.parametrize("head", [SSE_HEAD, SSE_HEAD.replace(b"stream", b"stream; charset=iso-8859-1")])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
async def test_a1_characters_that_are_no_line_ends_break_no_event(head: bytes, end: bytes, odd: str) -> None:
    text = f'data: {{"choices":[{{"index":0,"delta":{{"content":"a{odd}b"}},"finish_reason":"stop"}}]}}\n\n'
    raw = text.encode().replace(b"\n", end)
    assert (await ask(trickled(raw, head))).content == f"a{odd}b"
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"a{odd}b"}}
    said = b"".join(
        b"data: " + json.dumps(e, ensure_ascii=False).encode() + b"\n\n" for e in [*FINE[:2], piece, *FINE[3:]]
    ).replace(b"\n", end)
    assert (await ask(trickled(said, head), kind="anthropic")).content == f"a{odd}b"


@pytest.mark.parametrize(
    "pieces",
    [
        [entry(0, f"c{n}", "look", f'{{"path":"{n}"}}') for n in (1, 2, 3)],
        [entry(None, None, "look", f'{{"path":"{n}"}}') for n in (1, 2, 3)],
        [entry(n, f"c{n}", "look", '{"path":') for n in (1, 2, 3)]
        + [entry(n, None, None, f'"{n}"}}') for n in (1, 2, 3)],
        [entry(n, f"c{n}", "look", part) for n in (1, 2, 3) for part in ('{"path":', f'"{n}"', "}")],
    ],
)
async def test_a2_parallel_calls_are_not_merged(pieces: list[Any]) -> None:
    reply = await ask(b"".join(delta(calls=[piece]) for piece in pieces) + delta(finish="tool_calls") + DONE)
    assert runnable(reply) == [("look", {"path": n}) for n in "123"]
    assert len({call.id for call in reply.calls}) == 3


async def test_a2_what_may_be_two_calls_is_not_run() -> None:
    pieces = [entry(0, None, "look", '{"path":"a"}'), entry(0, None, "list", '{"path":"b"}')]
    reply = await ask(b"".join(delta(calls=[piece]) for piece in pieces) + delta(finish="stop") + DONE)
    assert reply.calls
    assert runnable(reply) == []


@pytest.mark.parametrize("finish", ["stop", None, "other", "tool_calls"])
async def test_a3_whole_calls_run_whatever_the_finish_says(finish: str | None) -> None:
    calls = [entry(n, f"c{n}", "look", "{}") for n in range(3)]
    assert len(runnable(await ask(delta("so", calls=calls) + delta(finish=finish) + DONE))) == 3


@pytest.mark.parametrize(
    ("finish", "arguments", "tokens"),
    [
        ("tool_calls", '{"path":"a","content":"lor', 100), ("tool_calls", "{}", 100), ("length", '{"path":"a"}', 50),
        ("content_filter", '{"path":"a"}', 50), ("max_tokens", '{"path":"a"}', 50),
    ],
)  # fmt: skip
async def test_a3_what_was_cut_never_runs_nor_poisons_the_history(finish: str, arguments: str, tokens: int) -> None:
    body = delta(calls=[entry(0, "c", "look", arguments)]) + delta(finish=finish) + used(9, tokens) + DONE
    async with serving(trickled(body), trickled(GOOD)) as server:
        wire = Wire(server, "openai")
        reply = await wire.ask()
        assert (reply.truncated, runnable(reply)) == (True, [])
        turn = Message("assistant", reply.content, reply.calls, extra=reply.extra)
        await wire.ask(Message("user", "hi"), turn, Message("tool", "it was not run", call_id="c"))
        await wire.model.aclose()
        (echoed,) = server.bodies[1]["messages"][1]["tool_calls"]
        assert isinstance(json.loads(echoed["function"]["arguments"]), dict)


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "model_context_window_exceeded", "pause_turn"])
async def test_a3_what_was_cut_never_runs_on_the_other_wire(reason: str) -> None:
    block = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    raw = events(FINE[0], {**FINE[1], "content_block": block}, FINE[3], {**FINE[4], "delta": {"stop_reason": reason}})
    reply = await ask(raw, kind="anthropic")
    assert (len(reply.calls), runnable(reply)) == (1, [])


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("", {}), ("  ", {}), (None, {}), ("null", {}), ({"a": 1}, {"a": 1}), ('"{\\"a\\":1}"', {"a": 1}),
        ("[]", None), ('{"a":1} ok', None), ('"[]"', None), ("1", None), ('"\\"{}\\""', None), ([], None),
    ],
)  # fmt: skip
async def test_a4_arguments_are_an_object_or_a_reason(arguments: Any, values: dict[str, Any] | None) -> None:
    call = entry(0, "c", "look", arguments)
    whole = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    for reply in (await ask(delta(calls=[call]) + delta(finish="stop") + DONE), await ask(answer(200, whole))):
        assert runnable(reply) == ([] if values is None else [("look", values)])
        assert len(reply.calls) == 1


@pytest.mark.parametrize(
    ("raw", "kind", "code"),
    [
        (delta("half") + delta(calls=[entry(0, "c", "look", '{"a')]), ModelCutOff, "cut_off"),
        (data({"error": {"message": "quota"}}) + DONE, ModelRefused, None),
        (data({"error": "quota"}) + DONE, ModelRefused, None),
        (data({"choices": [], "error": {"message": "quota", "code": None}}) + DONE, ModelRefused, None),
        (data({"error": {"message": "q", "code": "insufficient_quota"}}), ModelRefused, "insufficient_quota"),
        (json.dumps({"error": {"message": "q", "type": "server_error"}}).encode(), ModelUnavailable, "server_error"),
    ],
)
async def test_a6_broken_endings_are_no_success(raw: bytes, kind: type[ModelError], code: str | None) -> None:
    with pytest.raises(kind) as raised:
        await ask(raw)
    assert raised.value.code == code


async def test_a6_a_finish_without_done_is_an_end_and_a_retry_doubles_nothing() -> None:
    assert (await ask(delta("text", finish="stop") + used(5, 2))).content == "text"
    seen: list[Delta] = []
    async with serving(trickled(delta("half")), trickled(GOOD)) as server:
        meter = Meter(open_model("openai-compatible:m", base_url=server.url, env={}), random=lambda: 0.0)
        reply = await meter.call(
            Request(messages=(Message("user", "x"),), max_output_tokens=9), CONTEXT, deadline=1e12, on_delta=seen.append
        )
        await meter.aclose()
    assert reply.content == "ok"
    last = max(piece.attempt for piece in seen)
    assert "".join(piece.text for piece in seen if piece.attempt == last) == "ok"


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": "so"}], "so"])
async def test_a7_the_history_is_one_that_every_server_takes(content: Any) -> None:
    message = {"content": content, "tool_calls": [entry(0, "c", "look", "{}")]}
    async with serving(answer(200, {"choices": [{"message": message}]}), trickled(GOOD)) as server:
        wire = Wire(server, "openai")
        reply = await wire.ask()
        turn = Message("assistant", reply.content, reply.calls, extra=reply.extra)
        await wire.ask(
            Message("user", "hi"),
            turn,
            Message("tool", "x", call_id="c"),
            Message("assistant", ""),
            Message("user", "on"),
        )
        await wire.model.aclose()
        told = server.bodies[1]["messages"]
    assert [turn["role"] for turn in told] == ["user", "assistant", "tool", "user"]  # no empty turn
    assert all(isinstance(turn["content"], str) for turn in told)


@pytest.mark.parametrize(
    ("pieces", "content"),
    [
        (['plan</think>{"a":1}'], '{"a":1}'), (["<think>plan</thi", "nk>the answer"], "the answer"),
        (["<think>never closed"], ""), (["the tag </thi", "nk> is literal"], "is literal"),
        (['<think><tool_call>{"name":"look","arguments":{}}</tool_call></think>done'], "done"), (["plain"], "plain"),
    ],
)  # fmt: skip
async def test_a9_what_is_thought_is_neither_said_nor_shown_nor_run(pieces: list[str], content: str) -> None:
    raw = b"".join(delta(piece) for piece in pieces) + delta(finish="stop") + DONE
    for text_tools in (False, True):
        seen: list[Delta] = []
        fields = {"progress": Progress(1, seen.append)}
        reply = await ask(raw, fields=fields, thinks=True, text_tools=text_tools)
        assert (reply.content, reply.calls) == (content, ())
        assert "".join(piece.text for piece in seen) == content
    kept = await ask(raw, text_tools=True)
    assert (kept.content, kept.calls) == ("".join(pieces), ())  # not known to think: kept, and still never run


async def test_a9_reasoning_is_kept_through_storage_and_returned_where_it_is_wanted() -> None:
    first = delta("", reasoning_content="because", calls=[entry(0, "c", "look", "{}")]) + delta(finish="stop") + DONE
    refusal = answer(400, {"error": {"message": "`reasoning_content` is missing in the assistant message"}})
    async with serving(trickled(first), refusal, trickled(GOOD)) as server:
        wire = Wire(server, "openai")
        reply = await wire.ask()
        stored = json.loads(json.dumps(reply.extra))
        turn = Message("assistant", reply.content, reply.calls, extra=stored)
        await wire.ask(Message("user", "hi"), turn, Message("tool", "x", call_id="c"))
        await wire.model.aclose()
        told = [body["messages"][1].get("reasoning_content") for body in server.bodies[1:]]
    assert told == [None, "because"]


@pytest.mark.parametrize(
    "alive", [b":\n\n", b"id: 1\n: ping\n\n", b"data: : PROCESSING\n\n", b"data:\n\n", b"event: ping\ndata: {}\n\n"]
)
async def test_a12_keep_alives_are_nothing(alive: bytes) -> None:
    raw = alive + delta("o") + alive * 3 + delta("k", finish="stop").replace(b"data: ", b"data:") + alive + DONE
    assert (await ask(raw)).content == "ok"
    assert (await ask(b"".join([alive + events(event) for event in FINE]), kind="anthropic")).content == "ok"


async def test_b1_every_call_has_one_result_in_the_one_next_turn() -> None:
    turn = Message("assistant", "", (Call("A", "look", "{}"), Call("B", "look", "{}"), Call("C.1", "look", "{half")))
    async with serving(trickled(events(*FINE))) as server:
        wire = Wire(server, "anthropic")
        await wire.ask(
            Message("user", "go"), turn, Message("tool", "", call_id="A"), Message("tool", "timed out", call_id="C.1"),
            Message("user", "on"),
        )  # fmt: skip
        await wire.model.aclose()
        turns = server.bodies[0]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    asked = [block["id"] for block in turns[1]["content"]]
    told = turns[2]["content"]
    assert [block["type"] for block in told] == ["tool_result"] * 3 + ["text"]
    assert sorted(block["tool_use_id"] for block in told[:3]) == sorted(asked)
    assert {block["content"] for block in told[:3]} == {NO_OUTPUT, NO_RESULT, "timed out"}
    assert all(block["input"] == {} for block in turns[1]["content"])


THOUGHT = [
    {"type": "thinking", "thinking": "t1", "signature": "S1"}, {"type": "redacted_thinking", "data": "D"},
    {"type": "thinking", "thinking": "t2", "signature": "S2"},
    {"type": "tool_use", "id": "t", "name": "look", "input": {"path": "a"}},
]  # fmt: skip


@pytest.mark.parametrize("streamed", [True, False])
async def test_b2_thoughts_go_back_whole_and_unaltered_or_not_at_all(streamed: bool) -> None:
    parts: list[Any] = [FINE[0]]
    for n, block in enumerate(THOUGHT):
        first = {**block, **{key: "" for key in ("thinking", "signature") if key in block}}
        parts.append({"type": "content_block_start", "index": n, "content_block": first})
        for kind in ("thinking", "signature"):
            for letter in block.get(kind, ""):
                parts.append(
                    {"type": "content_block_delta", "index": n, "delta": {"type": f"{kind}_delta", kind: letter}}
                )
        parts.append({"type": "content_block_stop", "index": n})
    whole = answer(200, {"type": "message", "content": THOUGHT, "stop_reason": "tool_use"})
    async with serving(trickled(events(*parts, *FINE[4:])) if streamed else whole, trickled(events(*FINE))) as server:
        wire = Wire(server, "anthropic")
        reply = await wire.ask()
        turn = Message("assistant", reply.content, reply.calls, extra=json.loads(json.dumps(reply.extra)))
        history = (Message("user", "go"), turn, Message("tool", "x", call_id="t"))
        await wire.ask(*history)
        await wire.model.aclose()
        other = open_model("anthropic-compatible:another", base_url=server.url, env={})
        await other.call(Request(messages=history, max_output_tokens=9), CONTEXT, Progress())
        await other.aclose()
    assert server.bodies[1]["messages"][1]["content"] == THOUGHT
    assert server.bodies[2]["messages"][1]["content"] == THOUGHT[3:]


@pytest.mark.parametrize("empty", ["", " \n"])
async def test_b4_nothing_empty_is_sent(empty: str) -> None:
    call = (Call("t", "look", "{}"),)
    async with serving(trickled(events(*FINE))) as server:
        wire = Wire(server, "anthropic")
        await wire.ask(
            Message("system", empty), Message("user", "go"), Message("assistant", empty, call),
            Message("tool", empty, call_id="t"), Message("assistant", empty), Message("user", empty),
        )  # fmt: skip
        await wire.model.aclose()
        body = server.bodies[0]
    assert "system" not in body
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_result"]
    assert blocks[2]["content"] == NO_OUTPUT


async def test_b6_cached_tokens_count_once_by_each_providers_rule() -> None:
    first = {"input_tokens": 317, "cache_creation_input_tokens": 4425, "cache_read_input_tokens": 0, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "c", "usage": first}}
    last = {**FINE[4], "usage": {**first, "output_tokens": 120}}
    usage = (await ask(events(start, *FINE[1:4], last), kind="anthropic")).usage
    assert (usage.input_tokens, usage.output_tokens, usage.written_tokens) == (4742, 120, 4425)
    prices = Prices("1", {"m": Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))})
    assert prices.cost("m", usage) == -(-(317 * 3_00 + 4425 * 3_75 + 120 * 15_00) // 100)
    inside = (
        await ask(delta("x", finish="stop") + used(1_000, 10, prompt_tokens_details={"cached_tokens": 600}))
    ).usage
    assert (inside.input_tokens, inside.cached_tokens) == (1_000, 600)
    assert prices.cost("m", inside) == 400 * 3 + 180 + 150


OVERLOAD = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}


async def test_b7_overload_passes_and_siblings_do_not_come_back_in_lockstep() -> None:
    waits: list[float] = []
    for luck in (0.1, 0.9):

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        broken = trickled(events(*FINE[:3], OVERLOAD))
        async with serving(answer(529, OVERLOAD), broken, trickled(events(*FINE))) as server:
            model = open_model("anthropic-compatible:m", base_url=server.url, env={})
            meter = Meter(model, clock=lambda: 0.0, sleep=sleep, random=partial(float, luck))
            request = Request(messages=(Message("user", "x"),), max_output_tokens=9)
            assert (await meter.call(request, CONTEXT, deadline=1e6)).content == "ok"
            await meter.aclose()
            assert (meter.totals.attempts, meter.totals.replies) == (3, 1)
            assert meter.totals.input_tokens == 20  # of the one that broke, and of the one that answered
    assert len(set(waits)) == 4


@pytest.mark.parametrize("text", ['{"x":NaN}', '{"x":1e999}', '{"x":-Infinity}', '{"x":1,"x":2}'])
async def test_c8_what_no_json_can_say_is_never_run_and_never_sent(text: str) -> None:
    raw = delta(calls=[entry(0, "c", "look", text)]) + delta(finish="stop") + DONE
    async with serving(trickled(raw), trickled(GOOD)) as server:
        wire = Wire(server, "openai")
        reply = await wire.ask()
        assert runnable(reply) == []
        turn = Message("assistant", reply.content, reply.calls, extra=reply.extra)
        await wire.ask(Message("user", "hi"), turn, Message("tool", "x", call_id="c"))
        bad = ToolSpec("bad", "", {"type": "object", "properties": {"x": {"default": float("nan")}}})
        with pytest.raises(ModelRefused) as raised:
            await wire.ask(tools=(bad,))
        assert not raised.value.retryable
        await wire.model.aclose()
        assert len(server.bodies) == 2
        assert "NaN" not in json.dumps(server.bodies)


async def test_c8_an_object_with_nan_in_the_reply_is_no_call_either() -> None:
    whole = b'{"content":[{"type":"thinking","thinking":"t","signature":"S"},{"type":"tool_use","id":"t","name":"look",'
    whole += b'"input":{"x":NaN}}],"stop_reason":"tool_use"}'
    reply = await ask(answer(200, whole), kind="anthropic")
    assert runnable(reply) == []
    json.dumps(reply.extra, allow_nan=False)


OPTIONAL = {
    "type": "object", "required": ["name"],
    "properties": {"name": {"type": "string"}, "nick": {"type": "object", "properties": {"a": {"type": "string"}}}},
}  # fmt: skip


async def test_c10_nothing_is_strict_and_a_refused_schema_is_final() -> None:
    async with serving(trickled(GOOD)) as server:
        wire = Wire(server, "openai")
        await wire.ask(schema=OPTIONAL, tools=(ToolSpec("t", "", OPTIONAL),))
        await wire.model.aclose()
        assert "strict" not in json.dumps(server.bodies[0])
        assert server.bodies[0]["response_format"]["json_schema"]["schema"] == OPTIONAL
    words = "Invalid schema for response_format 'reply': 'required' is to include every key: missing 'nick'"
    async with serving(answer(400, {"error": {"message": words, "param": "response_format"}})) as server:
        meter = Meter(open_model("openai-compatible:m", base_url=server.url, env={}))
        with pytest.raises(ModelRefused, match="missing 'nick'"):
            await meter.call(
                Request(messages=(Message("user", "x"),), max_output_tokens=9, schema=OPTIONAL), CONTEXT, deadline=1e12
            )
        await meter.aclose()
        assert len(server.bodies) == 1


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_server_that_does_not_stream_is_asked_without(kind: str) -> None:
    refusal = answer(400, {"error": {"message": "Streaming is not supported by this server"}})
    whole = {"choices": [{"message": {"content": "ok"}}], "content": [{"type": "text", "text": "ok"}]}
    async with serving(refusal, answer(200, whole)) as server:
        wire = Wire(server, kind)
        assert [(await wire.ask()).content, (await wire.ask()).content] == ["ok", "ok"]
        await wire.model.aclose()
        assert ["stream" in body for body in server.bodies] == [True, False, False]
