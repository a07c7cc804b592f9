"""People and a whole team: what is said reaches the work, and what is decided happens once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kokuban.blackboard import Client, Told, Voted
from support.nats_server import NatsServer
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, edit, plan, script, team, workspace
from support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_patch_counts_once_two_people_have_approved_it(nats_server: NatsServer, tmp_path: Path) -> None:
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE))
    async with team(nats_server.url, model, tmp_path / "team"), await Client.connect(nats_server.url) as board:
        task = await board.submit(
            "Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK], approve=["patch"], votes=2
        )
        gate = (await eventually(lambda: board.approvals(task)))[0]
        assert gate.gate.subject is not None
        assert gate.gate.subject.kind == "patch"
        assert gate.gate.need == 2
        said = await asyncio.gather(*(board.vote(task, gate.id, "approve", person=who) for who in ("ann", "bob")))
        assert {type(one) for one in said} == {Voted}
        outcome = await board.result(task, timeout=30)
        assert outcome.state == "done"
        events = [event async for event in board.watch(task)]
        (decision,) = [e.text for e in events if e.event == "decision"]
        assert decision in ("approved by ann, bob", "approved by bob, ann")
        assert sum(e.event == "artifact" and e.kind == "patch" for e in events) == 1


async def test_a_denied_patch_goes_back_with_the_reason(nats_server: NatsServer, tmp_path: Path) -> None:
    again = (edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE))
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *again, *again)
    async with team(nats_server.url, model, tmp_path / "team"), await Client.connect(nats_server.url) as board:
        task = await board.submit(
            "Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK], approve=["patch"], attempts=1, replans=0
        )
        gate = (await eventually(lambda: board.approvals(task)))[0]
        assert isinstance(await board.vote(task, gate.id, "deny", "not like this", person="ann"), Voted)
        outcome = await board.result(task, timeout=30)
        assert outcome.state == "failed"
        assert "not like this" in outcome.reason


async def test_cancelling_ends_a_task_that_waits_and_its_parts(nats_server: NatsServer, tmp_path: Path) -> None:
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE))
    async with team(nats_server.url, model, tmp_path / "team"), await Client.connect(nats_server.url) as board:
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK], approve=["patch"])
        part = await board.submit("A part", after=[task], parent=task)
        await eventually(lambda: board.approvals(task))
        assert isinstance(await board.cancel(task, "enough", person="ann"), Told)
        outcome = await board.result(task, timeout=20)
        assert (outcome.state, "enough" in outcome.reason) == ("cancelled", True)
        assert (await board.result(part, timeout=20)).state == "cancelled"
        assert await board.approvals() == []
