"""Calls that fail for the moment, that can never succeed, and turns that lead nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents import _acting
from kokuban.agents._machine import EDGES, Machine, State
from kokuban.agents._repeats import IDLE_ALLOWED, IDLE_TOLD
from kokuban.agents._work import StepFailed
from kokuban.agents.models import ModelOverflow
from kokuban.agents.tools import Tool, ToolContext, ToolError
from kokuban.blackboard.wire import Bus
from support.bench import DONE, OBJECT, OPTIONAL, Bench, Benches, Talk, call, says
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_acting, "PAUSE_SECONDS", 0.0)


class Busy:
    """A tool that is busy so many times, and then answers."""

    def __init__(self, times: int, **said: Any) -> None:
        self.left, self.said, self.keys = times, said or {"transient": True}, list[str]()

    async def __call__(self, context: ToolContext, arguments: Mapping[str, Any]) -> str:
        self.keys.append(context.key)
        if self.left > 0:
            self.left -= 1
            raise ToolError("busy", **self.said)
        return "there it is"


def add(bench: Bench, busy: Busy, effect: Any = "read") -> None:
    bench.tools.add(Tool("ask", "", OPTIONAL, busy, "read" if effect == "read" else "write", effect))


@pytest.mark.parametrize("effect", ["read", "keyed"])
async def test_what_fails_for_the_moment_is_tried_again(bench: Benches, effect: str) -> None:
    b, busy = await bench(), Busy(2)
    add(b, busy, effect)
    await b.run(says(call("ask", "{}")), DONE)
    assert [(seen.text, seen.ok) for seen in b.talk.seen] == [("there it is", True)]
    assert len(busy.keys) == 3
    assert len(set(busy.keys)) == 1
    assert b.work.ledger.spent.tool_calls == 1


async def test_an_effect_without_a_key_is_not_tried_again(bench: Benches) -> None:
    b, busy = await bench(), Busy(2)
    add(b, busy, "other")
    await b.run(says(call("ask", "{}")), DONE)
    assert len(busy.keys) == 1
    assert not b.talk.seen[0].ok


async def test_tries_are_bounded_and_the_model_is_told(bench: Benches) -> None:
    b, busy = await bench(), Busy(99)
    add(b, busy)
    await b.run(says(call("ask", "{}")), DONE)
    assert len(busy.keys) == _acting.TRIES
    assert b.talk.seen[0].text == "busy (it was tried 4 times; go on without it, or another way)"


async def test_tries_go_on_counting_after_a_crash(bench: Benches) -> None:
    class Dies(BaseException): ...

    first, busy = await bench(), Busy(99)

    async def dies_at_the_third(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        if len(busy.keys) == 2:
            raise Dies
        return await busy(context, arguments)

    first.tools.add(Tool("ask", "", OPTIONAL, dies_at_the_third, "read", "read"))
    with pytest.raises(Dies):
        await first.run(says(call("ask", "{}")))
    second = await bench(resumes=True)
    add(second, busy)
    await second.run(DONE)
    assert len(busy.keys) == 3, "the third, which died, is counted too"
    assert "tried 4 times" in second.talk.seen[0].text


async def test_a_wait_that_is_longer_than_the_step_is_told_and_not_waited(bench: Benches) -> None:
    b, busy = await bench(seconds=30), Busy(9, transient=True, retry_after_seconds=3_600.0)
    add(b, busy)
    await b.run(says(call("ask", "{}")), DONE)
    assert b.talk.seen[0].text == "busy (there is no time to try again; go on without it, or another way)"


async def test_what_can_never_succeed_ends_the_step(bench: Benches) -> None:
    b, busy = await bench(), Busy(9, terminal=True)
    add(b, busy)
    with pytest.raises(StepFailed, match="ask cannot be used in this step: busy") as caught:
        await b.run(says(call("ask", "{}")), DONE)
    assert (caught.value.why, caught.value.retryable) == ("tool", False)


async def test_going_back_and_forth_is_refused(bench: Benches) -> None:
    b = await bench(steps=20, tool_calls=20)
    b.tools.add(Tool("swap", "", OBJECT, lambda context, values: "swapped", "write", "keyed", on_files=True))
    one, other = call("look", '{"path":"a"}'), call("list", "{}")
    await b.run(*[says(c) for _ in range(3) for c in (one, other)], DONE)
    assert b.names == ["look", "list"] * 2
    assert "was not run" in b.talk.seen[4].text


async def test_turns_that_bring_nothing_new_are_told_and_then_end_the_step(bench: Benches) -> None:
    b = await bench(steps=30, tool_calls=30)
    b.tools.add(Tool("see", "", OBJECT, lambda context, values: "nothing", "read", "read"))
    with pytest.raises(StepFailed, match="nothing new came of 6 turns in a row") as caught:
        await b.run(*[says(call("see", f'{{"path":"{n}"}}')) for n in range(20)])
    assert caught.value.why == "no_progress"
    assert len(b.talk.seen) == IDLE_ALLOWED + 1
    assert b.talk.objections == [
        f"Nothing new came of your last {IDLE_TOLD} turns. Do something else, or end with what you have."
    ]


async def test_a_change_is_something_new(bench: Benches) -> None:
    b = await bench(steps=30, tool_calls=30)
    replies = [says(call("change", f'{{"path":"{n}"}}')) for n in range(10)]
    assert await b.run(*replies, DONE) == "done"


class Shrinks(Talk):
    """A dialog that can be made smaller once."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.left, self.asked = times, 0

    async def compact(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize(
    ("talk", "overflows", "ended"),
    [
        (Shrinks(), 1, "done"),
        (Shrinks(9), 2, "made smaller too"),
        (Shrinks(0), 1, "the request is too large"),
        (Talk(), 1, "the request is too large"),
    ],
)
async def test_a_request_that_is_too_large_is_made_smaller_once(
    bench: Benches, talk: Talk, overflows: int, ended: str
) -> None:
    b = await bench()
    too_large = [ModelOverflow("8,200 of 8,192 tokens", spent=False)] * overflows
    if ended == "done":
        assert await b.run(*too_large, DONE, talk=talk) == "done"
        return
    with pytest.raises(StepFailed, match=ended) as caught:
        await b.run(*too_large, DONE, talk=talk)
    assert caught.value.why == "tokens"


def test_ways_that_are_not_drawn_cannot_be_gone() -> None:
    for state in State:
        for other in State:
            machine = Machine()
            machine.state = state
            if other in EDGES[state]:
                machine.go(other)
                assert machine.state is other
            else:
                with pytest.raises(RuntimeError, match=f"from {state.value} to {other.value}"):
                    machine.go(other)


def test_every_state_can_be_reached_and_left() -> None:
    reached, waiting = {State.READY}, [State.READY]
    while waiting:
        for state in EDGES[waiting.pop()] - reached:
            reached.add(state)
            waiting.append(state)
    assert reached == set(State)
    assert all(State.STOP in ways for state, ways in EDGES.items() if state is not State.STOP)


async def test_a_loop_passes_through_its_states_in_order(bench: Benches) -> None:
    b, busy = await bench(), Busy(1)
    add(b, busy)
    await b.run(says(call("ask", "{}"), call("look", "{")), DONE)
    assert [state.value for state in b.last.machine.passed] == [
        "ready", "model", "validate", "policy", "pending", "execute", "retry", "execute", "observe",
        "validate", "observe", "ready", "model", "validate", "stop",
    ]  # fmt: skip
