"""A whole team on one server and on three, whose stream loses its leader in the middle."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from chaos.decisions import Decisions, Limits, Message
from chaos.several import team_script
from cluster.nodes import Nodes
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, BusError, ensure_board
from support.processes import end, linux_only
from support.team import audited, records, team, workspace
from support.waiting import eventually

pytestmark = [pytest.mark.anyio, linux_only]


async def test_tasks_end_as_they_should_when_the_leader_of_the_stream_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    model = team_script(tmp_path)
    async with await Bus.connect(nodes.url) as bus, await Client.connect(nodes.url) as board:
        await ensure_board(bus, replicas=nodes.replicas)
        async with team(nodes.url, model, tmp_path / "team", supervisors=2):
            source = workspace(tmp_path / "ws")
            tasks = [await board.submit(f"Fix it {n}", workspace=source) for n in range(6)]
            await eventually(lambda: bus.last("kb.task.*.work.coder.*"), what="they are at work")
            killed, gone = await nodes.kill_leader(bus), time.monotonic()
            if nodes.count == 1:
                nodes.start(killed)
            more = await asyncio.wait_for(board.submit("Fix it in between", workspace=source), 30)
            outcomes = [await board.result(task, timeout=60) for task in [*tasks, more]]
            print(f"{nodes.count} servers: all done {time.monotonic() - gone:.1f} s after the kill")
            nodes.start(killed)
        assert [outcome.state for outcome in outcomes] == ["done"] * 7, [outcome.reason for outcome in outcomes]
        await nodes.settled(bus)
        stored = await records(nodes.url)
    found = Decisions(Limits({}, {}, 100)).read([Message(*one) for one in stored])
    assert found.wrong == []
    audited(stored)


async def test_a_supervisor_process_makes_the_board_with_as_many_replicas_as_it_is_told(
    nodes: Nodes, tmp_path: Path
) -> None:
    command = ["-m", "kokuban.console.main", "supervisor", "--nats", nodes.url, "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env={"KOKUBAN_REPLICAS": "3"}, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    try:
        if nodes.count == 1:
            _, words = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode != 0
            assert b"replicas" in words
            assert b"Traceback" not in words
            return
        async with await Bus.connect(nodes.url) as bus:

            async def replicas() -> list[int]:
                try:
                    return [
                        (await bus.api(f"STREAM.INFO.{name}"))["config"]["num_replicas"]
                        for name in ("BOARD", "CONTROL", "OBJ_KOKUBAN_PAYLOADS")
                    ]
                except BusError:
                    return []

            await eventually(replicas, seconds=20)
            assert await replicas() == [3, 3, 3]
    finally:
        await end(process)
