"""The loop's guards: what is checked before a model or a tool may run, and how each way out is named."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kokuban.agents._answer import OBJECTIONS_ALLOWED, Answer
from kokuban.agents._keys import key_stem
from kokuban.agents._tape import InDoubt
from kokuban.agents._work import StepFailed
from kokuban.agents.loop import Loop
from kokuban.agents.models import CallContext, Message, Meter, ModelRefused, Reply, Request
from kokuban.agents.tools import Observation, Registry, Tool, ToolContext
from kokuban.blackboard.wire import Bus
from support.bench import DONE, OBJECT, OPTIONAL, Bench, Benches, Says, Talk, call, says
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


# ---------------------------------------------------------------------- budgets


async def test_a_result_ends_it(bench: Benches) -> None:
    b = await bench()
    assert await b.run(says(call("look", '{"path":"a"}')), DONE) == "done"
    assert b.ran == [("look", {"path": "a"})]
    assert b.talk.seen == [Observation("look ran", True, trust="untrusted")]
    assert b.work.ledger.spent.model_calls == 2
    assert b.work.ledger.spent.tool_calls == 1
    assert b.work.tape.spent == b.work.ledger.spent


@pytest.mark.parametrize(
    ("allotment", "why", "asked"),
    [
        ({"steps": 0}, "steps", 0),
        ({"steps": 3}, "steps", 3),
        ({"tokens": 0}, "tokens", 0),
        ({"tokens": 50}, "tokens", 0),  # less than one turn may cost
        ({"tool_calls": 0}, "tool_calls", 1),
        ({"tool_calls": 2}, "tool_calls", 3),
        ({"seconds": 0}, "deadline", 0),
    ],
)
async def test_what_is_not_allotted_is_not_spent(
    bench: Benches, allotment: dict[str, int], why: str, asked: int
) -> None:
    b = await bench(**allotment)
    looks = [says(call("look", json.dumps({"path": str(n)}))) for n in range(20)]
    with pytest.raises(StepFailed) as caught:
        await b.run(*looks)
    assert caught.value.why == why
    assert b.model.asked == asked
    assert len(b.ran) <= allotment.get("tool_calls", 20)


async def test_tokens_are_reserved_at_worst_case_before_the_call(bench: Benches) -> None:
    b = await bench(tokens=1_000)
    with pytest.raises(StepFailed) as caught:
        await b.run(says(call("list"), tokens=450), says(call("look", '{"path":"a"}'), tokens=450), DONE)
    assert caught.value.why == "tokens"
    assert b.model.asked == 2
    assert b.work.ledger.spent.tokens == 900


async def test_without_a_model_it_says_how_to_get_one(bench: Benches) -> None:
    b = await bench()
    with pytest.raises(StepFailed, match="--model") as caught:
        await Loop(b.work, Talk()).run()
    assert not caught.value.retryable


async def test_a_model_that_fails_ends_it_and_its_cost_is_kept(bench: Benches) -> None:
    b = await bench()
    with pytest.raises(StepFailed) as caught:
        await b.run(says(call("list")), ModelRefused("quota", code="quota"))
    assert (caught.value.why, caught.value.retryable) == ("model", False)
    last = b.work.tape.last()
    assert last is not None
    assert last.usage.model_calls == 1


async def test_the_deadline_bounds_a_model_call(bench: Benches) -> None:
    b = await bench()

    class Silent(Says):
        async def call(self, request: Request, context: CallContext, progress: object) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError

    b.work.meter = Meter(Silent(DONE))
    b.work.deadline = time.monotonic() + 0.05
    with pytest.raises(StepFailed) as caught:
        await Loop(b.work, Talk()).run()
    assert caught.value.why == "deadline"
    assert caught.value.retryable


async def test_objections_cost_turns(bench: Benches) -> None:
    b = await bench(steps=4)
    assert await b.run(says(), DONE, talk=Talk(object_times=2)) == "done"
    assert b.talk.objections == ["say something", "not yet", "not yet"]
    assert b.model.asked == 4


# ---------------------------------------------------------------------- tool calls


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", '"{}"'])
async def test_no_arguments_are_an_empty_object_and_then_judged(bench: Benches, arguments: str) -> None:
    b = await bench()
    await b.run(says(call("list", arguments), call("look", arguments)), DONE)
    assert b.ran == [("list", {})]
    assert "path" in b.talk.seen[1].text
    assert not b.talk.seen[1].ok


@pytest.mark.parametrize("arguments", ['"{\\"path\\":\\"a\\"}"', '{"path":"a"}', '{"limit":2.0,"path":"a"}'])
async def test_what_is_judged_is_what_runs(bench: Benches, arguments: str) -> None:
    b = await bench()
    await b.run(says(call("look", arguments)), DONE)
    ((_, values),) = b.ran
    assert values["path"] == "a"
    assert values.get("limit", 2) == 2
    assert isinstance(values.get("limit", 2), int)


@pytest.mark.parametrize(
    "arguments",
    [
        '"[]"', "[]", "3", "true", '{"path":"a"} ok', '{"path":"a","content":"lor', '{"path":3}', '{"path":"a","x":1}',
        '{"path":"a","limit":"many"}', '{"path":"a","limit":NaN}', '{"path":"a","path":"b"}', "[" * 100_000,
        '"\\"{}\\""', '{"path":"\\ud800"}', '{"path":"a","limit":1e999}', '{"path":"a","limit":' + "9" * 5_000 + "}",
    ],
)  # fmt: skip
async def test_bad_arguments_come_back_as_data_and_are_never_run(bench: Benches, arguments: str) -> None:
    b = await bench()
    assert await b.run(says(call("look", arguments)), DONE) == "done"
    (seen,) = b.talk.seen
    assert b.ran == []
    assert not seen.ok
    assert "look" in seen.text
    assert "not run" in seen.text
    assert len(seen.text) < 5_000
    assert b.work.ledger.spent.tool_calls == 0


@pytest.mark.parametrize("name", ["loook", "", "rm -rf /", "x" * 10_000, "LOOK"])
async def test_an_unknown_tool_is_data(bench: Benches, name: str) -> None:
    b = await bench()
    assert await b.run(says(call(name, "{}")), DONE) == "done"
    assert b.ran == []
    assert "no tool named" in b.talk.seen[0].text
    assert len(b.talk.seen[0].text) < 3_000


@pytest.mark.parametrize("arguments", ['{"path":"a"}', "{}", '{"path":"a","content":"lor'])
async def test_calls_of_a_reply_that_was_cut_never_run(bench: Benches, arguments: str) -> None:
    b = await bench()
    await b.run(says(call("look", arguments), call("list", arguments), truncated=True), DONE)
    assert b.ran == []
    assert len(b.talk.seen) == 2
    assert all("cut off" in seen.text and not seen.ok for seen in b.talk.seen)


async def test_a_call_with_a_problem_never_runs(bench: Benches) -> None:
    b = await bench()
    await b.run(says(call("list", "{}", problem="two calls came as one")), DONE)
    assert b.ran == []
    assert "two calls came as one" in b.talk.seen[0].text


async def test_the_third_same_call_is_refused_however_it_is_written(bench: Benches) -> None:
    b = await bench()
    same = ['{"path":"a","limit":1}', '{ "limit": 1.0, "path": "a" }', '"{\\"limit\\":1,\\"path\\":\\"a\\"}"']
    await b.run(*(says(call("look", arguments)) for arguments in same), says(call("look", '{"path":"b"}')), DONE)
    assert b.names == ["look", "look", "look"]
    assert b.ran[-1][1] == {"path": "b"}
    assert [seen.ok for seen in b.talk.seen] == [True, True, False, True]
    assert "same call" in b.talk.seen[2].text


async def test_a_write_makes_reads_new_again_but_not_itself(bench: Benches) -> None:
    b = await bench()
    look, change = says(call("look", '{"path":"a"}')), says(call("change", '{"path":"a"}'))
    await b.run(look, look, change, look, change, look, look, change, DONE)
    assert b.names == ["look", "look", "change", "look", "change", "look", "look"]
    assert not b.talk.seen[-1].ok


async def test_a_tool_that_fails_is_data_and_its_call_counts(bench: Benches) -> None:
    b = await bench()
    await b.run(says(call("fails")), DONE)
    assert b.talk.seen == [Observation("it cannot", False, trust="untrusted")]
    assert b.work.ledger.spent.tool_calls == 1


async def test_several_calls_in_one_reply_get_one_result_each_in_order(bench: Benches) -> None:
    b = await bench()
    await b.run(says(call("list"), call("nope"), call("look", "{"), call("fails"), call("list", '{"limit":1}')), DONE)
    assert [seen.ok for seen in b.talk.seen] == [True, False, False, False, True]
    assert b.names == ["list", "fails", "list"]


# ---------------------------------------------------------------------- the journal under the loop


async def test_after_a_crash_settled_calls_are_neither_bought_nor_run_again(bench: Benches) -> None:
    first = await bench()
    with pytest.raises(ConnectionAbortedError):
        await first.run(says(call("look", '{"path":"a"}')), says(call("list")), ConnectionAbortedError("as if killed"))
    second = await bench(resumes=True)
    assert await second.run(DONE) == "done"
    assert second.model.asked == 1
    assert second.ran == []
    assert second.work.ledger.spent.model_calls == 4  # the one that was under way counts as bought
    assert second.work.ledger.spent.tool_calls == 2


async def test_a_write_is_made_again_on_the_new_checkout_and_not_counted_twice(bench: Benches) -> None:
    first = await bench()
    with pytest.raises(ConnectionAbortedError):
        await first.run(says(call("change", '{"path":"a"}')), ConnectionAbortedError("as if killed"))
    second = await bench(resumes=True)
    await second.run(DONE)
    assert second.names == ["change"]
    assert second.work.ledger.spent.tool_calls == 1


async def test_an_effect_begun_before_a_crash_is_never_repeated(bench: Benches) -> None:
    first = await bench()

    async def dies(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        raise SystemExit(9)  # as if killed after the endpoint had committed

    first.tools = Registry([Tool("mail", "", OPTIONAL, dies, tier="write", effect="other")])
    with pytest.raises(SystemExit):
        await first.run(says(call("mail", '{"limit":1}')), says(call("list")), DONE)
    second = await bench(resumes=True)
    with pytest.raises(InDoubt):
        # the model's turn was settled with the opening of the call, and is not asked again
        await second.run(DONE)
    assert second.model.asked == 0
    assert second.ran == []


async def test_what_a_call_is_for_is_in_the_journal_before_it_is_made(bench: Benches) -> None:
    b = await bench()
    lines: list[Any] = []

    async def look(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        lines.extend(msgspec.json.decode(record.body) for record in await bench.desk.journal())
        return "x"

    b.tools = Registry([Tool("look", "", OBJECT, look, "read", "read")])
    await b.run(says(call("look", '{"path":"a"}')), DONE)
    opened = lines[-1]["opens"]
    assert (opened["kind"], opened["tool"], opened["arguments"]) == ("tool", "look", {"path": "a"})
    assert opened["key"] == key_stem(bench.desk.task, "fix", "look", '{"path":"a"}') + ":0"
    assert opened["effect"] == "read"
    assert lines[-1]["settles"]["usage"]["input_tokens"] == 10


# ---------------------------------------------------------------------- structured answers

NUMBER = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


async def answer(b: Bench, *contents: str | Reply) -> Any:
    async def judge(value: dict[str, Any]) -> str | None:
        return None if value["n"] > 0 else "n must be above 0"

    model = Says(*(c if isinstance(c, Reply) else says(content=c) for c in contents))
    b.work.meter = Meter(model)
    return await Loop(b.work, Answer("number", [Message("user", "a number?")], NUMBER, judge)).run()


@pytest.mark.parametrize("content", ['{"n": 1}', '```json\n{"n": 1}\n```', ' {"n":1.0}\n', '```\n{"n":1}```'])
async def test_an_answer_may_be_fenced(bench: Benches, content: str) -> None:
    assert await answer(await bench(), content) == {"n": 1}


@pytest.mark.parametrize(
    "content", ["", "sure, here it is", '{"n": "1"}', '{"n": 1} and more', "[]", '{"n": 0}', '{"n": 1, "m": 2}', "null"]
)
async def test_an_unusable_answer_comes_back_and_is_bounded(bench: Benches, content: str) -> None:
    assert await answer(await bench(), content, '{"n": 2}') == {"n": 2}
    with pytest.raises(StepFailed) as caught:
        await answer(await bench(), content)
    assert caught.value.why == "no_progress"
    assert str(OBJECTIONS_ALLOWED + 1) in caught.value.reason


async def test_an_answer_that_was_cut_is_not_believed(bench: Benches) -> None:
    assert await answer(await bench(), says(content='{"n": 1}', truncated=True), '{"n": 3}') == {"n": 3}
