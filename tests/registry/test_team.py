"""Registered roles at work beside the built-in ones: planned, triggered by an artifact, and without any restart."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents import Worker
from kokuban.blackboard import Client
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import parse_contract
from support.nats_server import NatsServer
from support.processes import end
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, audited, edit, finish, plan, records, script, team, workspace
from support.waiting import running

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom-role"


def glossarist() -> Any:
    """The example's class, from its file."""
    spec = importlib.util.spec_from_file_location("glossarist", EXAMPLES / "glossarist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["glossarist"] = module
    spec.loader.exec_module(module)
    return module.Glossarist()


async def register(bus: Bus) -> None:
    for kind in ("glossary", "term-index"):
        await register_kind(bus, kind, (EXAMPLES / "kinds" / f"{kind}.json").read_bytes())
    for role in ("glossarist", "indexer"):
        await register_role(bus, (EXAMPLES / f"{role}.toml").read_text("utf-8"))


@pytest.mark.skipif(shutil.which("node") is None and not os.environ.get("CI"), reason="needs Node")
async def test_a_planned_and_a_triggered_role_of_the_users(nats_server: NatsServer, tmp_path: Path) -> None:
    model = script(
        tmp_path / "script.json", plan(("terms", "glossarist", ()), ("fix", "coder", ())),
        edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE), finish("fix"),
    )  # fmt: skip
    environment = os.environ | {"KOKUBAN_NATS_URL": nats_server.url}
    async with team(nats_server.url, model, tmp_path / "homes") as (leader,), await Bus.connect(nats_server.url) as bus:
        await asyncio.wait_for(leader.leading.wait(), 20)
        await register(bus)
        contract = parse_contract((EXAMPLES / "glossarist.toml").read_text("utf-8"), "glossarist.toml", ["glossary"])
        worker = Worker(bus, contract, glossarist(), home=tmp_path / "glossarist")
        node = await asyncio.create_subprocess_exec("node", str(EXAMPLES / "indexer.mjs"), env=environment)
        try:
            async with running(worker.run()), await Client.connect(nats_server.url) as board:
                task = await board.submit(
                    "Fix both, and list the terms", workspace=workspace(tmp_path / "w"), checks=[CHECK],
                    sources=[EXAMPLES / "samples" / "sources"],
                )  # fmt: skip
                given = [(e.kind, e.role, e.artifact()) async for e in board.watch(task) if e.event == "artifact"]
                outcome = await board.result(task, timeout=0)
                state = await board.status(task)
        finally:
            await end(node)
    assert outcome.state == "done", outcome.reason
    found = {kind: (role, content) for kind, role, content in given}
    assert [entry["term"] for entry in found["glossary"][1]["terms"]] == ["Lease", "Fence", "Claim"]
    assert found["term-index"] == (
        "indexer", {"count": 3, "letters": {"C": ["Claim"], "F": ["Fence"], "L": ["Lease"]}},
    )  # fmt: skip
    whole, _ = audited(await records(nats_server.url))
    for name, step in state.steps.items():  # a reader of this task alone comes to the same answer
        assert step.status == whole.tasks[task].steps[name].status == "done", name
