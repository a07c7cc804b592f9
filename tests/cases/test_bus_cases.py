"""Cases of the bus that no other test holds: late owners and the newer records, clocks that are wrong, orders alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.contents import patch
from core.history import History, begun, folded
from kokuban.agents import Worker
from kokuban.agents._output import Output
from kokuban.agents._owner import Assignment, Fenced, Owner, claim
from kokuban.agents._work import StepFailed
from kokuban.blackboard.clock import Clock
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.blackboard.wire import Bus
from kokuban.schemas import Allotment, Failed, Gate, TaskSpec, subjects
from kokuban.supervisor._sweep import Sweeper
from support.at_work import PLAN, at_once, ended
from support.desk import Desk, Program, contract, kinds
from support.nats_server import NatsServer
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio

SKEWS = (-600.0, 0.0, 86_400.0, -10 * 365 * 86_400.0)


class Skewed(Clock):
    """A machine whose clock is wrong by so many seconds. Its monotonic clock began at another time, too."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def monotonic(self) -> float:
        return super().monotonic() + abs(self.seconds)

    def stamp(self) -> str:
        return (datetime.now(UTC) + timedelta(seconds=self.seconds)).isoformat(timespec="milliseconds")


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as connection:
        yield connection


async def owner_of(desk: Desk, seq: int, skew: float = 0.0, worker: str = "w") -> Owner:
    at: Assignment = replace(await desk.assignment(seq, worker), clock=Skewed(skew))
    owner = await claim(desk.bus, at)
    assert owner is not None
    return owner


# ---------------------------------------------------------------------- D1, D9: who wakes late


async def test_who_wakes_late_can_neither_wait_nor_ask_nor_fail_nor_commit(bus: Bus) -> None:
    """D1, D9, with the records that let a step go: each is refused by the server itself, whatever A believes."""
    desk = await Desk.open(bus)
    late = await owner_of(desk, await desk.order(), -600.0, "a")
    released = await desk.release(late.fence)
    new = await owner_of(desk, await desk.order(attempt=2, reg=released), 600.0, "b")
    before = await bus.last_seq()
    for attempt in (
        lambda: late.waiting(Gate("fix-1-1", "question", "Which one?", call=1), None),
        lambda: late.ask(None, Allotment(tokens=99_000)),
        lambda: late.journal(None, None),
        lambda: late.failed(Failed("bug", "x")),
        lambda: late.done([PLAN], None, "system", None),
    ):
        late.lost.clear()
        with pytest.raises(Fenced):
            await attempt()
    assert await bus.last_seq() == before
    await new.done([PLAN], None, "system", None)
    assert kinds(await desk.register()) == ["claimed", "released", "claimed", "done"]


async def test_who_waits_for_a_person_has_let_go_for_good(bus: Bus) -> None:
    """D9: an owner that let its step go and wakes up cannot go on with it, before or after the next one claims it."""
    desk = await Desk.open(bus)
    first = await owner_of(desk, await desk.order())
    await first.waiting(Gate("fix-1-1", "question", "Which one?", call=1), None)
    first.lost.clear()
    with pytest.raises(Fenced):
        await first.done([PLAN], None, "system", None)
    next_one = await owner_of(desk, await desk.order(attempt=2, reg=await desk.stands_at(), resumes=1), worker="b")
    first.lost.clear()
    with pytest.raises(Fenced):
        await first.journal(None, None)
    assert await next_one.still_owned()


@pytest.mark.parametrize("skew", SKEWS)
async def test_whoever_claims_last_owns_the_step_whatever_the_clocks_say(bus: Bus, skew: float) -> None:
    """D9: clocks of workers are for people who read the records; the time that a step took is the server's."""
    desk = await Desk.open(bus)
    stale = await owner_of(desk, await desk.order(), skew, "a")
    released = await desk.release(stale.fence)
    owner = await owner_of(desk, await desk.order(attempt=2, reg=released), -skew, "b")
    await owner.done([PLAN], None, "system", None)
    board = Board()
    for stored in await bus.history("kb.>"):
        assert not fold(board, stored).ignored
    step = board.tasks[desk.task].steps["fix"]
    assert (step.status, step.fence, step.worker) == ("refused", owner.fence, "b"), "a coder's step gives no plan"
    assert step.usage.seconds <= 60


@pytest.mark.parametrize("skew", SKEWS)
async def test_a_worker_whose_clock_is_wrong_works(
    nats_server: NatsServer, tmp_path: Path, bus: Bus, skew: float
) -> None:
    desk = await Desk.open(bus)
    async with await Bus.connect(nats_server.url) as own:
        worker = Worker(own, contract(), Program(at_once), home=tmp_path / "w", clock=Skewed(skew))
        async with running(worker.run()):
            await desk.order()
            record = await ended(desk)
    assert record.type == "step.done"
    stamped = datetime.fromisoformat(record.time)
    assert abs((stamped - datetime.now(UTC)).total_seconds() - skew) < 60


def test_no_stamp_of_a_writer_decides_anything() -> None:
    """The same history, written by machines of other times and by ones that write no time, folds to the same board."""

    def history(time: str) -> History:
        made = begun()
        for step in ("a", "b"):
            made.order(step, "coder", time=time)
            made.claim(step, time=time)
        made.release("a", time=time)
        made.done("b", ("p", patch()), time=time)
        return made

    boards = [folded(history(time).messages) for time in ("2026-01-01T00:00:00.000+00:00", "1970-01-01", "9999", "")]
    assert all(board == boards[0] for board in boards)


@pytest.mark.parametrize("skew", SKEWS)
async def test_the_leaders_time_is_the_servers_carried_on_by_its_own_monotonic_clock(bus: Bus, skew: float) -> None:
    """Deadlines of tasks and gates are judged by this."""
    sweeper = Sweeper(bus, Board(), clock=Skewed(skew))
    sweeper.saw(Applied(None, None), Stored(1, "kb.ctl.lease", 5_000.0, b""))
    assert 5_000.0 <= sweeper.now() < 5_060.0


# ---------------------------------------------------------------------- D4: alike is not the same


async def test_an_order_like_the_one_before_is_stored_and_delivered_again(
    nats_server: NatsServer, tmp_path: Path, bus: Bus
) -> None:
    """D4: within the server's window for duplicates. A write's id is its own, never made of its content."""
    desk = await Desk.open(bus)
    first = await owner_of(desk, await desk.order())
    await first.failed(Failed("model", "no answer"))
    second = await desk.order(attempt=2, reg=await desk.stands_at())
    assert second == await bus.last_seq()
    async with await Bus.connect(nats_server.url) as own:
        worker = Worker(own, contract(), Program(at_once), home=tmp_path / "w")
        async with running(worker.run()):

            async def done() -> bool:
                return kinds(await desk.register()) == ["claimed", "failed", "claimed", "done"]

            await eventually(done)


async def test_a_record_that_comes_again_after_the_window_is_a_conflict_or_the_same_one(bus: Bus) -> None:
    """D4: the window is a convenience; what decides is the chain. Here the server has forgotten the id."""
    desk = await Desk.open(bus)
    subject = subjects.spec(desk.task)
    stored = await bus.last(subject)
    assert stored is not None
    before = await bus.last_seq()
    again = await bus.publish(subject, stored.data, {"Nats-Expected-Last-Subject-Sequence": "0"})
    assert again.code != 0
    assert await bus.last_seq() == before
    board = Board()
    for one in (stored, stored._replace(seq=stored.seq + 1)):
        fold(board, one)
    assert (len(board.tasks), board.ignored) == (1, 1)
    assert isinstance(board.tasks[desk.task].spec, TaskSpec)


# ---------------------------------------------------------------------- D5: what is too large is said in a small record


async def test_a_reason_that_is_far_too_long_ends_the_step_all_the_same(
    nats_server: NatsServer, tmp_path: Path, bus: Bus
) -> None:
    """The failure to publish, or any failure with a huge text, is itself reported small."""
    desk = await Desk.open(bus)

    async def perform(work: object) -> list[Output]:
        raise StepFailed("tool", "x" * 3_000_000)

    async with await Bus.connect(nats_server.url) as own:
        worker = Worker(own, contract(), Program(perform), home=tmp_path / "w")
        async with running(worker.run()):
            await desk.order()
            record = await ended(desk)
            assert not own.closed.is_set()
    assert record.type == "step.failed"
    assert len(record.body) < 100_000
