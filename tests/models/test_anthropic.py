"""Anthropic's wire, spoken by a server on loopback that sends exactly the bytes a test gives it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from kokuban.agents.models import (
    Call,
    Message,
    ModelCutOff,
    ModelOverflow,
    ModelRefused,
    ModelUnavailable,
    Progress,
    Reply,
    Request,
    ToolSpec,
    Usage,
)
from kokuban.agents.models._anthropic import MessagesModel
from kokuban.agents.models._messages import EXTRA, NO_OUTPUT, NO_RESULT, MessagesDialect
from kokuban.agents.models._prices import Price, Prices
from models.chat_server import CONTEXT, SSE_HEAD, Answer, answer, in_pieces, request, serving

pytestmark = pytest.mark.anyio


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n".encode()


def start(**usage: int) -> bytes:
    return event(
        "message_start", message={"model": "claude-x", "usage": {"input_tokens": 10, "output_tokens": 1} | usage}
    )


def block(n: int, shape: dict[str, Any], *deltas: dict[str, Any], stop: bool = True) -> bytes:
    parts = [event("content_block_start", index=n, content_block=shape)]
    parts += [event("content_block_delta", index=n, delta=delta) for delta in deltas]
    return b"".join([*parts, event("content_block_stop", index=n) if stop else b""])


def text(n: int, *pieces: str) -> bytes:
    return block(n, {"type": "text", "text": ""}, *({"type": "text_delta", "text": p} for p in pieces))


def use(n: int, name: str, *pieces: str, stop: bool = True, call: str | None = None) -> bytes:
    shape = {"type": "tool_use", "id": call or f"toolu_{n}", "name": name, "input": {}}
    return block(n, shape, *({"type": "input_json_delta", "partial_json": p} for p in pieces), stop=stop)


def end(reason: str = "end_turn", **usage: int) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 20} | usage) + event(
        "message_stop"
    )


def stream(*events: bytes) -> bytes:
    return SSE_HEAD + b"".join(events)


async def ask(answered: Answer, wanted: Request | None = None, progress: Progress | None = None) -> Reply:
    async with serving(answered) as server:
        model = MessagesModel("anthropic:m", model="m", base_url=server.url, direct=True, key="sk-canary")
        try:
            return await model.call(wanted or request(), CONTEXT, progress or Progress())
        finally:
            await model.aclose()


FULL = stream(
    event("ping"), start(), text(0, "Grüße\u2028 ", "…\u0085"), use(1, "look", '{"pa', 'th": "é"}'), use(2, "list"),
    end("tool_use"),
)  # fmt: skip


async def test_a_reply_is_the_same_however_its_bytes_are_cut() -> None:
    head, body = FULL[: len(SSE_HEAD)], FULL[len(SSE_HEAD) :]
    whole = await ask(FULL)
    assert whole.content == "Grüße\u2028 …\u0085"
    assert [(c.id, c.name, c.arguments, c.problem) for c in whole.calls] == [
        ("toolu_1", "look", '{"path": "é"}', None), ("toolu_2", "list", "", None),
    ]  # fmt: skip
    assert whole.usage == Usage(10, 20)
    assert not whole.truncated
    for end_of_line in (b"\n", b"\r\n", b"\r"):
        lined = body.replace(b"\n", end_of_line)
        pieces = [head, *(lined[n : n + 1] for n in range(len(lined)))]
        assert await ask(in_pieces(pieces)) == whole


async def test_a_body_instead_of_a_stream_says_the_same() -> None:
    payload = {
        "type": "message", "model": "claude-x", "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "output_tokens": 20},
        "content": [
            {"type": "text", "text": "hi"}, {"type": "tool_use", "id": "t", "name": "look", "input": {"path": "a"}},
        ],
    }  # fmt: skip
    reply = await ask(answer(200, payload))
    assert (reply.content, reply.calls) == ("hi", (Call("t", "look", '{"path": "a"}'),))


# B1: every id has exactly one result, in the one user turn that follows, before any text.
async def test_results_stand_together_first_and_for_every_call() -> None:
    calls = (Call("A", "look", "{}"), Call("B", "list", "{}"), Call("C", "mail", "{}"))
    messages = (
        Message("system", "S"), Message("user", "go"), Message("assistant", "", calls),
        Message("tool", "a result", call_id="A"), Message("tool", "", call_id="C"),
        Message("tool", "?", call_id="none"),
        Message("user", "go on"),
    )  # fmt: skip
    body = MessagesDialect("m").body(Request(messages=messages, max_output_tokens=9))
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    results = body["messages"][2]["content"]
    assert [(b["type"], b.get("tool_use_id"), b.get("content", b.get("text"))) for b in results] == [
        ("tool_result", "A", "a result"), ("tool_result", "C", NO_OUTPUT), ("tool_result", "B", NO_RESULT),
        ("text", None, "go on"),
    ]  # fmt: skip
    assert body["system"][-1]["cache_control"] == {"type": "ephemeral"}


# B2: thinking blocks come back in order and unaltered, and not to another model.
async def test_reasoning_is_kept_raw_and_dropped_whole_for_another_model() -> None:
    reply = await ask(stream(
        start(),
        block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "t1"},
              {"type": "signature_delta", "signature": "S1"}),
        block(1, {"type": "redacted_thinking", "data": "D"}),
        block(2, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "t2"},
              {"type": "signature_delta", "signature": "S2"}),
        text(3), use(4, "look", '{"path":"a"}'), end("tool_use"),
    ))  # fmt: skip
    assert reply.content == ""
    turn = Message("assistant", reply.content, reply.calls, extra=json.loads(json.dumps(reply.extra)))
    asked = Request(
        messages=(Message("user", "go"), turn, Message("tool", "x", call_id="toolu_4")), max_output_tokens=9
    )
    blocks = MessagesDialect("m").body(asked)["messages"][1]["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "t1", "signature": "S1"}, {"type": "redacted_thinking", "data": "D"},
        {"type": "thinking", "thinking": "t2", "signature": "S2"},
        {"type": "tool_use", "id": "toolu_4", "name": "look", "input": {"path": "a"}},
    ]  # fmt: skip
    others = MessagesDialect("another").body(asked)["messages"][1]["content"]
    assert [b["type"] for b in others] == ["tool_use"]


# B4: nothing empty is ever sent.
@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_empty_texts_are_left_out(empty: str) -> None:
    kept = [{"type": "text", "text": empty}, {"type": "thinking", "thinking": "t"}]
    stored = {EXTRA: {"model": "m", "blocks": kept}}
    messages = (
        Message("user", "go"), Message("assistant", empty), Message("user", empty),
        Message("assistant", empty, extra=stored),
        Message("user", "on"),
    )  # fmt: skip
    turns = MessagesDialect("m").body(Request(messages=messages, max_output_tokens=9))["messages"]
    assert [(t["role"], [b["type"] for b in t["content"]]) for t in turns] == [
        ("user", ["text"]), ("assistant", ["thinking"]), ("user", ["text"]),
    ]  # fmt: skip


# B6: totals replace, and three rates are paid once.
async def test_cached_tokens_are_counted_once() -> None:
    reply = await ask(stream(
        start(input_tokens=317, cache_creation_input_tokens=4425, cache_read_input_tokens=0, output_tokens=1),
        text(0, "x"),
        end(input_tokens=317, cache_creation_input_tokens=4425, output_tokens=120),
    ))  # fmt: skip
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.written_tokens) == (4742, 120, 4425)
    prices = Prices("1", {"m": Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))})
    assert prices.cost("m", reply.usage) == -(-(317 * 300 + 4425 * 375 + 120 * 1500) // 100)
    mixed = Usage(1000, 0, 600, written_tokens=300)
    assert prices.cost("m", mixed) == 100 * 3 + 180 + 300 * 3.75


# B7: overload is passing, before a reply and within one.
async def test_overload_is_retryable_and_what_was_used_is_counted() -> None:
    fault = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"}
    with pytest.raises(ModelUnavailable) as first:
        await ask(answer(529, fault, "Retry-After: 7"))
    assert (first.value.status, first.value.retry_after_seconds, first.value.spent) == (529, 7.0, False)
    progress = Progress()
    with pytest.raises(ModelUnavailable) as second:
        await ask(stream(start(), text(0, "half", " an answer"), event("error", error=fault["error"])), None, progress)
    assert second.value.spent
    assert progress.usage(request(), complete=False).input_tokens == 10
    assert progress.usage(request(), complete=False).output_tokens > 1


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (stream(start(), text(0, "half")), ModelCutOff),
        (stream(start(), use(0, "look", '{"pa', stop=False)), ModelCutOff),
        (stream(event("message_stop")), ModelCutOff),
        (stream(b"data: {nonsense\n\n"), ModelCutOff),
        (answer(400, {"type": "error", "error": {"message": "prompt is too long: 9 > 8"}}), ModelOverflow),
        (answer(400, {"type": "error", "error": {"message": "tools.0: no"}}), ModelRefused),
    ],
)  # fmt: skip
async def test_broken_endings_are_no_success(answered: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await ask(answered)


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded", "refusal"])
async def test_a_reply_that_was_cut_runs_nothing(reason: str) -> None:
    reply = await ask(stream(start(), use(0, "look", '{"path":"a"}'), end(reason)))
    assert reply.truncated
    assert [call.problem for call in reply.calls] == ["the reply was cut off before this call was whole"]


async def test_a_block_that_never_ended_is_no_call() -> None:
    reply = await ask(stream(start(), use(0, "look", '{"path":"a"}', stop=False), use(1, "list"), end("tool_use")))
    assert [call.problem is None for call in reply.calls] == [False, True]


async def test_a_wanted_shape_is_the_one_tool_that_must_be_called() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = request(schema=schema, schema_name="plan")
    async with serving(stream(start(), use(0, "plan", '{"a": 1}'), end("tool_use"))) as server:
        model = MessagesModel("anthropic:m", model="m", base_url=server.url, direct=True, key="sk-canary")
        reply = await model.call(wanted, CONTEXT, Progress())
        await model.aclose()
    assert (reply.content, reply.calls) == ('{"a": 1}', ())
    assert server.bodies[0]["tool_choice"] == {"type": "tool", "name": "plan"}
    assert "x-api-key: sk-canary" in server.heads[0].lower()
    assert "authorization" not in server.heads[0].lower()


def test_tools_are_sent_with_the_stable_prefix_marked() -> None:
    tools = (ToolSpec("a", "A.", {"type": "object"}), ToolSpec("b", "B.", {"type": "object"}))
    body = MessagesDialect("m").body(Request(messages=(Message("user", "x"),), max_output_tokens=9, tools=tools))
    assert [("cache_control" in tool, tool["input_schema"]) for tool in body["tools"]] == [
        (False, {"type": "object"}), (True, {"type": "object"}),
    ]  # fmt: skip
    assert json.dumps(body, allow_nan=False)


async def test_an_option_that_the_server_refuses_is_left_out_from_then_on() -> None:
    refusal = answer(400, {"type": "error", "error": {"message": "`temperature` may not be set for this model"}})
    async with serving(refusal, stream(start(), text(0, "x"), end())) as server:
        model = MessagesModel("anthropic:m", model="m", base_url=server.url, direct=True)
        assert (await model.call(request(), CONTEXT, Progress())).content == "x"
        await model.aclose()
    assert ["temperature" in body for body in server.bodies] == [True, False]


async def test_a_turn_with_a_block_of_no_kind_is_kept_as_its_text_and_calls_alone() -> None:
    thought = block(1, {"type": "redacted_thinking", "data": "D"})
    sound = await ask(stream(start(), text(0, "so"), thought, end()))
    assert [kept["type"] for kept in sound.extra[EXTRA]["blocks"]] == ["text", "redacted_thinking"]
    broken = await ask(stream(start(), text(0, "so"), thought, block(2, {"text": "x"}), end()))
    assert (broken.content, broken.extra) == ("so", {})
