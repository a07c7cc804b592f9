"""Whose order it is: a worker takes what fits its contract, and says what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from kokuban.agents._orders import why_unfit
from kokuban.blackboard.wire import Bus, Fence, write
from kokuban.schemas import RegisteredRole, seal, subjects
from support.at_work import at_once, at_work, ended
from support.desk import Desk, contract
from support.nats_server import NatsServer
from support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_an_order_for_another_contract_is_left_and_the_field_is_named(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    with structlog.testing.capture_logs() as logs:
        async with at_work(nats_server.url, tmp_path / "a", at_once):
            await desk.order(produces=("patch", "finding"))
            await desk.order(step="next")
            await ended(desk, "next")  # the worker has gone past it
            await eventually(lambda: pending(desk, 1))
    (left,) = [log for log in logs if log["event"] == "order is left to others"]
    assert left["field"].startswith("produces: finding is ordered")
    assert await desk.register() == []
    writer = contract().model_copy(update={"role": "writer"})
    last = await desk.assignment(await desk.order(step="last"))
    assert why_unfit(writer, last).startswith("role: coder is ordered")
    assert why_unfit(contract(), last) == ""


async def pending(desk: Desk, count: int) -> bool:
    return (await desk.pending())[0] == count


async def test_a_contract_that_is_not_the_registered_one_is_told_at_the_start(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    text = """
        role = "coder"
        summary = "Another one."
        when = "planned"
        produces = ["patch", "finding"]
        model = true
    """
    subject = subjects.contract("coder")
    data = seal(RegisteredRole("coder", text), id="r1", type="ctl.role")
    await write(bus, subject, data, op="r1", fence=Fence(subject, 0))
    with structlog.testing.capture_logs() as logs:
        async with at_work(nats_server.url, tmp_path / "a", at_once):
            await desk.order()
            await ended(desk)
    named = {log["field"] for log in logs if log["event"] == "contract differs from the registered one"}
    assert {"produces", "summary", "tools"} <= named
    assert "role" not in named
