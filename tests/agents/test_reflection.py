"""Reflexion: an attempt after one that did not count begins with a critique of that one, and of this step alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kokuban.agents import _reflection
from kokuban.agents._prompts import prompt
from kokuban.agents._reflection import reflect
from kokuban.agents.models import Meter, ModelOverflow, Prices, Request, worst_request_tokens
from kokuban.agents.tools import Tool, ToolContext
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus
from kokuban.schemas import Allotment, Critique, Failed, Feedback, Opens, Settles, Usage, open_record, subjects
from support.bench import Says
from support.bench import says as reply
from support.desk import Desk
from support.nats_server import NatsServer
from support.own_role import TEXT, OwnRole, calls, gives, plans, says

pytestmark = pytest.mark.anyio
JUDGE = "You judge one attempt"
CRITIQUES = "Critiques of earlier attempts"


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as found:
        yield found


def shout(context: ToolContext, values: Mapping[str, Any]) -> str:
    return f"nobody answers to {values['text']}"


SHOUT = Tool("shout", "Says it aloud.", TEXT, shout, "read", "read")


def replies(step: str, name: str) -> list[dict[str, Any]]:
    """A model that shouts the same until it is stopped, and does the right thing only when a critique says what."""
    return [
        says(f"Shouting leads nowhere: give {name}.", step=step, turn=0, contains=JUDGE),
        gives(name, step=step, contains=f"give {name}."),
        calls(("shout", {"text": name}), step=step),
    ]


LIMITS = "[limits]\nsteps = 30\ntool_calls = 30\ntokens = 200000\n"


async def run(role: OwnRole, *steps: str) -> tuple[str, str]:
    """Run a task with these steps; its number and how it ended."""
    said = [r for step in steps for r in replies(step, f"ann-{step}")]
    async with (
        role.working(plans(*((step, f"Reach ann-{step}") for step in steps)), *said),
        await Client.connect(role.url) as board,
    ):
        task = await board.submit("Reach them", attempts=2)
        outcome = [event async for event in board.watch(task)]
        admitted = [e.artifact()["text"] for e in outcome if e.event == "artifact" and e.kind == "answer"]
    return task, ",".join(sorted(admitted))


@pytest.mark.parametrize("with_critique", [True, False])
async def test_with_the_critique_the_second_attempt_succeeds_and_without_it_does_not(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, with_critique: bool
) -> None:
    more = f"reflect = {'true' if with_critique else 'false'}\n{LIMITS}"
    role = OwnRole(bus, nats_server.url, tmp_path, [SHOUT], more=more)
    task, admitted = await run(role, "one")
    assert admitted == ("ann-one" if with_critique else "")
    stored = await bus.history(subjects.artifact(task, "answerer", "critique", "one", "*"))
    assert len(stored) == with_critique
    judged = [request for context, request in role.asked if context.turn == 0]
    assert len(judged) == with_critique
    if not with_critique:
        return
    shown = judged[0].messages[-1].content
    assert "Task: Reach ann-one" in shown, "what the step was"
    assert 'attempt 1: shout({"text":"ann-one"}): nobody answers to ann-one' in shown, "what was done"
    assert "nothing new came of 6 turns" in shown, "why it did not count"
    critique = msgspec.json.decode(open_record(stored[0].data).body, type=Critique)
    assert (critique.subject.step, critique.subject.name) == ("one", "attempt-1")
    ended = await bus.read(critique.subject.seq)
    assert ended is not None
    assert open_record(ended.data).sha256 == critique.subject.digest, "it names the very record that it is about"
    opened = await role.opened(task, "one")
    assert prompt("reflect").version in {o.prompt for o in opened}


async def test_critiques_of_other_steps_never_appear(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    role = OwnRole(bus, nats_server.url, tmp_path, [SHOUT], more=LIMITS)
    _, admitted = await run(role, "one", "two")
    assert admitted == "ann-one,ann-two"
    for context, request in role.asked:
        other = "two" if context.step == "one" else "one"
        assert not any(f"give ann-{other}" in message.content for message in request.messages)
    again = {context.step for context, request in role.asked if CRITIQUES in request.messages[-1].content}
    assert again <= {"one", "two"}


class Attempts:
    """A step's attempts one after the other, each with what its model says and, unless it succeeds, why it failed."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk, self.folder, self.number = desk, folder, 0
        self.feedback: tuple[Feedback, ...] = ()
        self.asked: list[Request] = []

    async def attempt(
        self, *said: Any, why: Any = "no_progress", prices: Prices | None = None, **order: Any
    ) -> tuple[str, ...]:
        """The critiques that the next attempt begins with; then it fails."""
        self.number += 1
        register = await self.desk.stands_at()
        seq = await self.desk.order(attempt=self.number, reg=register, feedback=self.feedback, **order)
        owner = await self.desk.claimed(seq)
        self.model = Says(*said)
        work = await self.desk.work(owner, self.folder, meter=Meter(self.model, prices=prices))
        found = await reflect(owner, work)
        await owner.failed(Failed(why, f"reason {self.number}", settles=work.tape.last()))
        self.feedback = (*self.feedback, Feedback(self.number, "failed", f"{why}: reason {self.number}"))[-3:]
        return found


@pytest.fixture
async def attempts(bus: Bus, tmp_path: Path) -> Attempts:
    return Attempts(await Desk.open(bus), tmp_path)


async def test_the_last_three_are_kept(attempts: Attempts) -> None:
    found = [await attempts.attempt(reply(content=f"critique {n}")) for n in range(5)]
    assert found == [
        (),
        ("critique 1",),
        ("critique 1", "critique 2"),
        ("critique 1", "critique 2", "critique 3"),
        ("critique 2", "critique 3", "critique 4"),
    ]


@pytest.mark.parametrize("why", ["model", "bug", "budget"])
async def test_what_was_not_the_attempts_fault_teaches_nothing(attempts: Attempts, why: str) -> None:
    await attempts.attempt(why=why)
    assert await attempts.attempt(AssertionError("it must not be asked")) == ()
    assert attempts.model.asked == 0


async def test_it_costs_a_part_of_the_budget_and_is_left_out_without_it(attempts: Attempts) -> None:
    await attempts.attempt()
    assert await attempts.attempt(AssertionError("it must not be asked"), allotment=Allotment(tokens=2_000)) == ()
    assert await attempts.attempt(AssertionError("nor with one turn"), allotment=Allotment(steps=1)) == ()
    assert await attempts.attempt(reply(content="now")) == ("now",)


async def test_it_costs_a_part_of_the_money_at_most(attempts: Attempts) -> None:
    await attempts.attempt()
    prices = Prices("test").declare("test=1,1")  # a millionth of a dollar a token
    assert await attempts.attempt(reply(content="no limit"), prices=prices) == ("no limit",)
    (request,) = attempts.model.requests
    worst = worst_request_tokens(request) + request.max_output_tokens
    for limit in (0, 1, 2 * worst):  # the last could pay for it, and too little would be left for the work
        await attempts.attempt(AssertionError("nor"), prices=prices, allotment=Allotment(micros=limit))
        assert attempts.model.asked == 0
    much = Allotment(micros=8 * worst)
    await attempts.attempt(AssertionError("no price is known"), allotment=much)
    assert attempts.model.asked == 0
    assert await attempts.attempt(reply(content="enough"), prices=prices, allotment=much) == ("enough",)


@pytest.mark.parametrize("limit", [{"tokens": 10}, {"steps": 0}, {"micros": 0}])
async def test_what_cannot_be_paid_for_after_all_is_no_end_of_the_step(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    monkeypatch.setattr(_reflection, "_affordable", lambda work, request: True)
    await attempts.attempt()
    assert await attempts.attempt(AssertionError("it must not be asked"), allotment=Allotment(**limit)) == ()


async def test_a_request_that_does_not_fit_the_model_is_no_failure(attempts: Attempts) -> None:
    await attempts.attempt()
    assert await attempts.attempt(ModelOverflow("too large")) == ()


async def test_a_critique_is_bounded(attempts: Attempts) -> None:
    await attempts.attempt()
    (found,) = await attempts.attempt(reply(content="x" * 9_000 + "\x1b[31m"))
    assert found == "x" * _reflection.CRITIQUE_CHARS


async def test_another_works_critiques_are_not_shown(attempts: Attempts) -> None:
    """The leader forgets what was said when the step becomes another: so do its critiques."""
    await attempts.attempt()
    await attempts.attempt(reply(content="about the old"))
    attempts.feedback = ()
    assert await attempts.attempt() == ()
    assert await attempts.attempt(reply(content="about the new")) == ("about the new",)


async def test_work_that_went_on_without_a_critique_is_taken_up_without_one(
    attempts: Attempts, bus: Bus, tmp_path: Path
) -> None:
    """Else the calls that it settled would be bought again."""
    await attempts.attempt()
    desk, told = attempts.desk, attempts.feedback
    order = await desk.order(attempt=2, reg=await desk.stands_at(), feedback=told, allotment=Allotment(tokens=2_000))
    owner = await desk.claimed(order)
    first = await desk.work(owner, tmp_path, meter=Meter(Says(AssertionError("too little is left for one"))))
    assert await reflect(owner, first) == ()

    async def look() -> tuple[object, Usage]:
        return {"text": "seen"}, Usage()

    for _ in range(2):
        await first.tape.call(lambda n: Opens(n, "tool", "look"), look)
    order = await desk.order(attempt=3, reg=await desk.release(owner.fence), feedback=told, resumes=2)
    second = await desk.claimed(order)
    work = await desk.work(second, tmp_path, meter=Meter(Says(AssertionError("it must not be asked now"))))
    assert await reflect(second, work) == ()
    assert (await work.tape.call(lambda n: Opens(n, "tool", "look"), look)).replayed


@pytest.mark.parametrize("settled", [True, False])
async def test_taken_up_it_is_not_written_again(attempts: Attempts, bus: Bus, settled: bool, tmp_path: Path) -> None:
    """Its owner dies after the critique was stored: with a next call on the board, or with none."""
    await attempts.attempt()
    desk = attempts.desk
    owner = await desk.claimed(await desk.order(attempt=2, reg=await desk.stands_at(), feedback=attempts.feedback))
    first = await desk.work(owner, tmp_path, meter=Meter(Says(reply(content="the critique"))))
    assert await reflect(owner, first) == ("the critique",)

    async def nothing() -> tuple[object, Usage]:
        return {"text": "seen"}, Usage()

    if settled:
        await first.tape.call(lambda n: Opens(n, "tool", "look"), nothing)
    order = await desk.order(attempt=3, reg=await desk.release(owner.fence), feedback=attempts.feedback, resumes=2)
    second = await desk.claimed(order)
    model = Says(AssertionError("it must not be asked again"))
    work = await desk.work(second, tmp_path, meter=Meter(model))
    assert await reflect(second, work) == ("the critique",)
    assert model.asked == 0
    played = await work.tape.call(lambda n: Opens(n, "tool", "look"), nothing)
    assert not played.replayed, "the tool's settlement was never stored"
    last = work.tape.last()
    assert isinstance(last, Settles)
    assert last.call == (2 if settled else 1)
    stored = await bus.history(subjects.artifact(desk.task, "coder", "critique", "fix", "*"))
    assert len(stored) == 1
