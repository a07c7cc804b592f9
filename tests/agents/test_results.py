"""How a step ends: results of any size, and every kind of failure, on its register."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokuban.agents import Worker
from kokuban.agents._output import Output
from kokuban.agents._tape import InDoubt
from kokuban.agents._work import StepFailed, Work
from kokuban.blackboard._content import INLINE_BYTES, Content
from kokuban.blackboard.wire import Bus, PayloadMissing, Payloads
from kokuban.schemas import (
    Allotment,
    Citation,
    Finding,
    Opens,
    Plan,
    PlanStep,
    Usage,
    digest,
    encode,
)
from support.at_work import PLAN, at_once, at_work, ended, failure, for_ever, settled
from support.desk import Desk, Program, contract, kinds
from support.nats_server import NatsServer
from support.team import audited, records
from support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "why", "retryable"),
    [
        (StepFailed("no_progress", "went in circles"), "no_progress", True),
        (StepFailed("input", "cannot be", retryable=False), "input", False),
        (InDoubt("call 3 was begun"), "in_doubt", False),
        (LookupError("record 7 is gone"), "input", False),
        (PayloadMissing("payload sha256:0 is not stored"), "input", False),
        (KeyError("no such key: a bug"), "bug", True),
        (ZeroDivisionError("a bug"), "bug", True),
        # Without a reason, or with one that is too long: the record has its own.
        (LookupError(), "input", False),
        (StepFailed("model", ""), "model", True),
        (StepFailed("model", "x" * 100_000), "model", True),
    ],
)
async def test_how_a_program_ends_is_on_the_register(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, error: Exception, why: str, retryable: bool
) -> None:
    desk = await Desk.open(bus)

    async def perform(work: Work) -> list[Output]:
        raise error

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        body = await failure(desk)
        await eventually(lambda: settled(desk))
    assert (body.why, body.retryable) == (why, retryable)
    assert str(error)[:1_000] in body.reason


async def test_a_step_that_takes_too_long_says_so(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    async with at_work(nats_server.url, tmp_path / "a", for_ever):
        await desk.order(allotment=Allotment(seconds=0))
        body = await failure(desk)
    assert body.why == "deadline"
    assert body.retryable


async def test_a_result_too_large_for_a_record_is_reported_small(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    steps = tuple(PlanStep(f"s{n}", "coder", "x" * 2_000) for n in range(600))

    async def perform(work: Work) -> list[Output]:
        return [Output("plan", Plan(steps))]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        body = await failure(desk)
        await desk.order(step="next")  # and the connection lives
        await ended(desk, "next")
    assert body.why == "input"
    assert not body.retryable
    assert "bytes" in body.reason


async def test_a_call_too_large_for_the_journal_is_reported_small(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)

    async def perform(work: Work) -> list[Output]:
        async def much() -> tuple[object, Usage]:
            return "x" * 2_000_000, Usage(input_tokens=7)

        for _ in range(2):
            await work.tape.call(lambda n: Opens(n, "model"), much)
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        body = await failure(desk)
    assert body.why == "input"
    assert not body.retryable
    assert body.settles is not None
    assert body.settles.usage.input_tokens == 7


async def test_results_above_the_inline_limit_travel_outside(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    quotes = tuple(Citation("a.txt", 1, 1, "q" * 2_000, digest(b"")) for _ in range(20))
    findings = [Output(f"f{n}", Finding(f"number {n}", quotes)) for n in range(10)]
    assert sum(len(encode(f.artifact)) for f in findings) > INLINE_BYTES

    async def perform(work: Work) -> list[Output]:
        return findings

    async with at_work(nats_server.url, tmp_path / "a", perform, role="researcher"):
        await desk.order("researcher", "find")
        await eventually(lambda: done_by(desk, "researcher", "find"))
    board, _ = audited(await records(nats_server.url))
    step = board.tasks[desk.task].steps["find"]
    assert step.status == "done"
    assert len(step.results) == 10
    content = Content(bus, Payloads(bus))
    for artifact, finding in zip(step.results, findings, strict=True):
        assert await content.artifact(artifact.ref) == finding.artifact
    done = (await desk.register("researcher", "find"))[-1]
    assert len(done.body) < 10_000


async def done_by(desk: Desk, role: str, step: str) -> bool:
    return kinds(await desk.register(role, step))[-1:] == ["done"]


async def test_names_are_unique_for_each_process_life(bus: Bus) -> None:
    names = {Worker(bus, contract(), Program(at_once), home=Path("unused")).id for _ in range(5)}
    assert len(names) == 5
