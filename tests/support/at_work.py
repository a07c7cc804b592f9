"""A worker with a program of the test's own, and what became of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from kokuban.agents import Worker
from kokuban.agents._output import Output
from kokuban.agents._work import Work
from kokuban.blackboard.wire import Bus
from kokuban.schemas import (
    Failed,
    Plan,
    PlanStep,
    Record,
)
from support.desk import Desk, Program, contract, kinds
from support.waiting import eventually, running

PLAN = Output("plan", Plan((PlanStep("a", "coder", "do it"),)))


@asynccontextmanager
async def at_work(
    url: str,
    home: Path,
    perform: Callable[[Work], Awaitable[list[Output]]],
    *,
    concurrency: int = 1,
    role: str = "coder",
) -> AsyncIterator[Worker]:
    async with await Bus.connect(url) as bus:
        worker = Worker(bus, contract(role), Program(perform), home=home, concurrency=concurrency)
        async with running(worker.run()):
            yield worker


async def at_once(work: Work) -> list[Output]:
    return [PLAN]


async def for_ever(work: Work) -> list[Output]:
    await asyncio.Event().wait()
    raise AssertionError


async def ended(desk: Desk, step: str = "fix") -> Record:
    """The record that ends the step."""

    async def look() -> Record | None:
        found = await desk.register(step=step)
        return found[-1] if found and kinds(found)[-1] in ("done", "failed") else None

    record = await eventually(look)
    assert record is not None
    return record


async def failure(desk: Desk) -> Failed:
    record = await ended(desk)
    assert record.type == "step.failed"
    return msgspec.json.decode(record.body, type=Failed)


async def settled(desk: Desk) -> bool:
    return (await desk.pending())[0] == 0
