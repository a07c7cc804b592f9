"""An upgrade while work is under way: members of two versions side by side, and the older ones drain."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.roles import BUILT_IN
from kokuban.blackboard import Client
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.wire import Bus
from kokuban.schemas import VERSION, subjects
from models.chat_server import DONE, Answer, delta, serving, stream, usage
from retention import run_version
from support.nats_server import NatsServer
from support.processes import child, linux_only
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, edit, finish, plan, records, script, team, workspace
from support.waiting import eventually

pytestmark = [pytest.mark.anyio, linux_only]

OTHERS = [role for role in BUILT_IN if role not in ("coder", "researcher")]
NEXT = VERSION + 1


@asynccontextmanager
async def members(folder: Path, *commands: tuple[str, ...]) -> AsyncIterator[list[Path]]:
    """Processes of a team, each with a log of its own, which is given; killed at the end."""
    logs = [folder / f"{command[1]}-{command[0]}-{secrets.token_hex(3)}.log" for command in commands]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    async with AsyncExitStack() as stack:
        for command, log in zip(commands, logs, strict=True):
            await stack.enter_async_context(child(str(run_version.__file__), *command, env=path, log=log))
        yield logs


def held(content: dict[str, Any]) -> tuple[Answer, asyncio.Event, asyncio.Event]:
    """A model's answer that comes when the test says so, and the news that it was asked for."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await go.wait()
        writer.write(says(content))
        await writer.drain()

    return write, asked, go


def says(content: dict[str, Any]) -> bytes:
    return stream(delta(json.dumps(content)), delta(finish="stop"), usage(100, 20), DONE)


async def end_of(bus: Bus, task: str) -> str | None:
    """How a task ended, whatever version says so."""
    stored = await bus.last(subjects.final(task))
    return json.loads(stored.data)["body"]["state"] if stored else None


async def test_two_versions_side_by_side_and_the_older_drains(nats_server: NatsServer, tmp_path: Path) -> None:
    """An older coder is in the middle of a step when everybody else is upgraded, and another one is idle. That one
    leaves the newer orders to a newer coder, and says so; what the first one commits counts."""
    url, home = nats_server.url, str(tmp_path)
    fixing = [
        {**edit(None, FIX_ADD), "when": {"role": "coder", "turn": 1}, "times": None},
        {**edit(None, FIX_DOUBLE), "when": {"role": "coder", "turn": 2}, "times": None},
        {**finish(None), "times": None},
    ]
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *fixing)
    add, double = (edit(None, fix)["reply"]["content"] for fix in (FIX_ADD, FIX_DOUBLE))
    answer, asked, go = held(add)
    source = workspace(tmp_path / "ws")
    async with (
        serving(answer, says(double)) as chat,
        await Client.connect(url) as board,
        await Bus.connect(url) as bus,
        members(tmp_path, (str(VERSION), "coder", url, home, "openai-compatible:m", chat.url)),
    ):
        async with team(url, model, tmp_path / "team", roles=OTHERS):
            old = await board.submit("Fix it", workspace=source, checks=[CHECK])
            await asyncio.wait_for(asked.wait(), 30)
        newer = [(str(NEXT), role, url, home, model) for role in ("supervisor", *OTHERS)]
        idle = (str(VERSION), "coder", url, home, model)
        async with members(tmp_path, idle, *newer) as (log, *_), AsyncExitStack() as later:
            new = await board.submit("Fix another", workspace=source, checks=[CHECK])
            await eventually(lambda: f"schema version {NEXT} is newer" in log.read_text(), seconds=60)
            await later.enter_async_context(members(tmp_path, (str(NEXT), "coder", url, home, model)))
            assert await eventually(lambda: end_of(bus, new), seconds=60) == "done"
            assert await end_of(bus, old) is None
            go.set()
            assert await eventually(lambda: end_of(bus, old), seconds=60) == "done"
    written = [json.loads(stored.data) for stored in await records(url)]
    wrote = {
        (record["task"], record["type"]): record["version"]
        for record in written
        if record["type"] in ("step.claimed", "step.done") and record.get("role") == "coder"
    }
    assert wrote == {
        (old, "step.claimed"): VERSION, (old, "step.done"): VERSION,
        (new, "step.claimed"): NEXT, (new, "step.done"): NEXT,
    }  # fmt: skip


async def test_an_older_reader_leaves_newer_records_alone(nats_server: NatsServer, tmp_path: Path) -> None:
    """They are counted and change nothing; it does not stop, and what it can read counts."""
    url = nats_server.url
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())))
    async with (
        await Client.connect(url) as board,
        await Bus.connect(url) as bus,
        members(tmp_path, *((str(NEXT), role, url, str(tmp_path), model) for role in ("supervisor", "planner"))),
    ):
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        await eventually(lambda: bus.last(subjects.work(task, "coder", "fix")), seconds=30)
    folded = Board()
    ignored = [fold(folded, stored).ignored for stored in await records(url)]
    assert folded.tasks[task].steps == {}
    assert {why for why in ignored if why} == {f"schema version {NEXT} is newer than {VERSION}"}
