"""Whole tasks in which people have a say and budgets bind: workers and supervisor as they are, scripted models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import Prices
from kokuban.blackboard import Client
from kokuban.schemas import Budget
from support.nats_server import NatsServer
from support.team import (
    CHECK,
    FILES,
    FIX_ADD,
    FIX_DOUBLE,
    audited,
    edit,
    finish,
    plan,
    records,
    script,
    team,
    types,
    workspace,
)
from support.waiting import eventually

pytestmark = pytest.mark.anyio

BOTH = (
    FIX_ADD[0] + "\n\n\ndef double(a):\n" + FIX_DOUBLE[0],
    FIX_ADD[1] + "\n\n\ndef double(a):\n" + FIX_DOUBLE[1],
)
ONE_STEP = (plan(("fix", "coder", ())), edit("fix", BOTH), finish("fix"))


class House:
    """A board, a person at it, and teams that come and go."""

    def __init__(self, url: str, home: Path, board: Client) -> None:
        self.url, self.home, self.board = url, home, board

    @asynccontextmanager
    async def team(self, *replies: dict[str, Any], **fields: Any) -> AsyncIterator[None]:
        model = script(self.home / "script.json", *(replies or ONE_STEP))
        async with asyncio.timeout(90), team(self.url, model, self.home / "team", **fields):
            yield

    async def submit(self, **spec: Any) -> str:
        folder = workspace(self.home / "ws", FILES)
        return await self.board.submit("Make adding and doubling right", workspace=folder, checks=[CHECK], **spec)

    async def asked(self, task: str, count: int = 1) -> str:
        """The gate that waits for a person, the `count`th of this task."""

        async def look() -> str | None:
            gates = await self.board.approvals(task, decided=True)
            return gates[count - 1].id if len(gates) >= count else None

        return await eventually(look, seconds=30)

    async def kinds(self) -> Any:
        board, applied = audited(await records(self.url))
        assert [did.ignored for did in applied if did.ignored] == []
        assert board.running.total() == 0
        return types(applied)


@pytest.fixture
async def house(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[House]:
    async with await Client.connect(nats_server.url) as board:
        yield House(nats_server.url, tmp_path, board)


async def test_an_approved_call_goes_on_and_the_task_comes_to_its_end(house: House) -> None:
    async with house.team(approve=["edit_file"]):
        task = await house.submit()
        gate = await house.asked(task)
        await house.board.vote(task, gate, "approve", person="ann")
        outcome = await house.board.result(task)
    assert outcome.state == "done", outcome.reason
    assert outcome.usage.model_calls == 2  # the plan, the edit: nothing was asked twice
    seen = await house.kinds()
    assert (seen["step.waiting"], seen["gate.decision"]) == (1, 1)


async def test_two_that_click_at_once_cost_one_execution(house: House) -> None:
    async with house.team(approve=["edit_file"], supervisors=2, workers=2):
        task = await house.submit(votes=2)
        gate = await house.asked(task)
        await asyncio.gather(*(house.board.vote(task, gate, "approve", person=who) for who in ("ann", "bob", "cay")))
        outcome = await house.board.result(task)
    assert outcome.state == "done", outcome.reason
    assert outcome.usage.tool_calls == 1


async def test_a_denial_reaches_the_model_with_its_reason(house: House) -> None:
    replies = (plan(("fix", "coder", ())), edit("fix", FIX_ADD), edit("fix", BOTH), finish("fix"))
    async with house.team(*replies, approve=["edit_file"]):
        task = await house.submit()
        first = await house.asked(task)
        await house.board.vote(task, first, "deny", "do both at once", person="ann")
        second = await house.asked(task, 2)
        assert second != first
        await house.board.vote(task, second, "approve", person="ann")
        outcome = await house.board.result(task)
    assert outcome.state == "done", outcome.reason
    assert "denied by ann: do both at once" in str([s.data for s in await records(house.url)])


async def test_a_restart_of_everything_loses_nothing_that_waits(house: House, nats_server: NatsServer) -> None:
    async with house.team(approve=["edit_file"]):
        task = await house.submit()
        gate = await house.asked(task)
    nats_server.kill()
    nats_server.restart()
    await house.board.vote(task, gate, "approve", person="ann")
    async with house.team(edit("fix", BOTH), approve=["edit_file"]):  # the plan is not asked for again
        outcome = await house.board.result(task)
    assert outcome.state == "done", outcome.reason
    assert outcome.usage.model_calls == 2


async def test_what_waits_holds_no_slot_and_no_time(house: House) -> None:
    async with house.team(approve=["edit_file"]):
        task = await house.submit()
        gate = await house.asked(task)
        state = await house.board.status(task)
        assert not state.steps["fix"].running
        await house.board.vote(task, gate, "approve", person="ann")
        assert (await house.board.result(task)).state == "done"


async def test_money_is_granted_step_by_step_and_never_passed(house: House) -> None:
    prices = Prices("test").declare("scripted:*=1,1")
    async with house.team(prices=prices):
        task = await house.submit(budget=Budget(micros=9_000))
        outcome = await house.board.result(task)
    assert outcome.state == "done", outcome.reason
    assert 0 < outcome.usage.micros <= 9_000
    assert (await house.kinds())["step.granted"] >= 1


@pytest.mark.parametrize(("budget", "priced"), [(Budget(micros=500), True), (Budget(tokens=300), False)])
async def test_what_cannot_be_afforded_ends_the_task_before_it_is_spent(
    house: House, budget: Budget, priced: bool
) -> None:
    async with house.team(prices=Prices("test").declare("scripted:*=1,1") if priced else None):
        task = await house.submit(budget=budget)
        outcome = await house.board.result(task)
    assert outcome.state == "out_of_budget", outcome.reason
    assert outcome.usage.model_calls == 0
    assert outcome.usage.tokens == 0


async def test_an_unknown_price_is_refused_under_a_money_limit(house: House) -> None:
    class Unknown(Prices):
        def of(self, model: str) -> None:
            return None

    async with house.team(prices=Unknown("none")):
        task = await house.submit(budget=Budget(micros=10**9))
        outcome = await house.board.result(task)
    assert outcome.state == "failed"
    assert "--price" in outcome.reason
    assert outcome.usage.tokens == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancelled_task_ends_when_its_workers_have_stopped(house: House, waits: bool) -> None:
    slow: Sequence[str] = ["sleep 60"]
    async with house.team(approve=["edit_file"] if waits else ()):
        folder = workspace(house.home / "ws", FILES)
        checks = [CHECK] if waits else slow
        task = await house.board.submit("Make it right", workspace=folder, checks=checks, check_seconds=120)
        if waits:
            await house.asked(task)
        else:
            await eventually(lambda: claimed(house, task))
        before = time.monotonic()
        await house.board.cancel(task, "not wanted any more", person="ann")
        final = await eventually(lambda: end(house, task), seconds=10)
        took = time.monotonic() - before
    assert final.state == "cancelled"
    assert final.unconfirmed == ()
    assert took < 2.0


async def claimed(house: House, task: str) -> bool:
    step = (await house.board.status(task)).steps.get("fix")
    return step is not None and step.status == "claimed"


async def end(house: House, task: str) -> Any:
    return (await house.board.status(task)).final
