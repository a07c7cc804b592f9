"""Killed anywhere, the work goes on: nothing is lost, done twice or bought twice.

Processes are killed as by `kill -9`, at named points around every publish and acknowledgement (`KOKUBAN_CRASH_AT`) and
in the middle of things. What a failing run needs to be run again is its point, which is the test's own id or printed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.roles import BUILT_IN
from kokuban.blackboard import Client
from kokuban.blackboard.core import Applied
from kokuban.blackboard.wire import Bus, Reader, ensure_board, ensure_roles
from models.chat_server import DONE, SSE_HEAD, Answer, ChatServer, delta, serving, stream, usage
from support import run_member
from support.nats_server import NatsServer
from support.processes import Process, child, end, linux_only
from support.team import (
    CHECK,
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
from support.waiting import eventually, running

pytestmark = [pytest.mark.anyio, linux_only]

OTHERS = [role for role in BUILT_IN if role != "coder"]


def member(*arguments: str, crash_at: str = "") -> AbstractAsyncContextManager[Process]:
    """A process of the team; killed at the end of the block, if not before."""
    return child(str(run_member.__file__), *arguments, crash_at=crash_at)


async def crashed(process: Process, point: str) -> None:
    """It was killed at its point, not by us and not by a fault."""
    code = await asyncio.wait_for(process.wait(), 30)
    assert code == -signal.SIGKILL, f"crash point {point} was not reached: the process ended with {code}"


def proven(applied: Sequence[Applied], tasks: int) -> None:
    """Every task ended once, with each of its artifacts admitted once."""
    assert types(applied)["task.final"] == tasks
    admitted = Counter(a.ref.digest + (did.task.id if did.task else "") for did in applied for a in did.admitted)
    assert admitted
    assert set(admitted.values()) == {1}


WORKER_POINTS = [
    "claim:before", "claim:after", "before-write:kb.task.*", "after-write:kb.task.*#2", "journal:before#2",
    "journal:after#2", "done:before", "done:after", "ack:before", "failed:before", "failed:after",
]  # fmt: skip


async def test_a_worker_killed_at_every_point(nats_server: NatsServer, tmp_path: Path) -> None:
    """For each point a task and a coder that crashes there, all at once; then one coder that lives finishes."""
    url, home = nats_server.url, str(tmp_path)
    print("crash points:", *WORKER_POINTS)
    right = script(tmp_path / "right.json", plan(("fix", "coder", ())), *fixing())
    stuck = script(tmp_path / "stuck.json", {**finish(None), "times": None})  # it never gets anywhere
    async with await Bus.connect(url) as bus:
        await ensure_board(bus)
        await ensure_roles(
            bus, BUILT_IN, ack_wait_seconds=2
        )  # orders whose worker died before the claim come back soon
    async with (
        team(url, right, tmp_path / "team", roles=OTHERS, silence_seconds=2.5),
        await Client.connect(url) as board,
    ):
        tasks = [
            await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK], attempts=3)
            for _ in WORKER_POINTS
        ]
        async with asyncio.TaskGroup() as crashes:
            for point in WORKER_POINTS:
                crashes.create_task(one_crash(url, home, stuck if "failed" in point else right, point))
        async with member("coder", url, home, right):
            outcomes = [await board.result(task, timeout=60) for task in tasks]
    assert [outcome.state for outcome in outcomes] == ["done"] * len(tasks), [o.reason for o in outcomes]
    _, applied = audited(await records(url))
    proven(applied, len(tasks))
    assert types(applied)["step.released"] >= 5  # those that died as owners were found silent


def fixing() -> list[dict[str, Any]]:
    """What a coder says, told by its turn, so that any process can take over in the middle."""
    return [
        {**edit(None, FIX_ADD), "when": {"role": "coder", "turn": 1}, "times": None},
        {**edit(None, FIX_DOUBLE), "when": {"role": "coder", "turn": 2}, "times": None},
        {**finish(None), "times": None},
    ]


async def one_crash(url: str, home: str, model: str, point: str) -> None:
    async with member("coder", url, home, model, crash_at=point) as process:
        await crashed(process, point)


async def test_a_supervisor_killed_at_every_point(nats_server: NatsServer, tmp_path: Path) -> None:
    """One supervisor after the other dies at its point, on the same board; the last one finishes."""
    url, home = nats_server.url, str(tmp_path)
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *fixing())
    async with team(url, model, tmp_path / "team", supervisors=0), await Client.connect(url) as board:
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK], key="one")
        order, final = f"kb.task.{task}.work.", f"kb.task.{task}.final"
        points = [
            "after-write:kb.ctl.lease", "before-write:kb.ctl.epoch.7", f"before-write:{order}planner.plan",
            f"after-write:{order}planner.plan", f"after-write:{order}coder.fix", f"after-write:{order}integrator.*",
            f"before-write:{final}", f"after-write:{final}",
        ]  # fmt: skip
        print("crash points:", *points)
        for point in points:
            async with member("supervisor", url, home, crash_at=point) as process:
                await crashed(process, point)
        outcome = await board.result(task, timeout=0)  # the last one died with the end stored
    assert outcome.state == "done", outcome.reason
    _, applied = audited(await records(url))
    proven(applied, 1)
    orders = Counter(did.record.step for did in applied if did.record and did.record.type == "step.order")
    assert set(orders.values()) == {1}  # nothing was ordered twice


def says(content: dict[str, Any]) -> bytes:
    return stream(delta(json.dumps(content)), delta(finish="stop"), usage(100, 20), DONE)


def hangs() -> tuple[Answer, asyncio.Event]:
    """An answer that never ends, and the news that it was asked for."""
    asked = asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.write(SSE_HEAD)
        while True:  # until the other end is gone, which ends this with a ConnectionError
            writer.write(b": still thinking\n\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    return write, asked


async def test_a_worker_killed_in_a_call_does_not_buy_again_what_is_settled(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    url, home = nats_server.url, str(tmp_path)
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())))
    add, double = (edit(None, fix)["reply"]["content"] for fix in (FIX_ADD, FIX_DOUBLE))
    never, asked = hangs()
    async with (
        serving(says(add), never, says(double)) as chat,
        team(url, model, tmp_path / "team", roles=OTHERS, silence_seconds=2.5),
        await Client.connect(url) as board,
    ):
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        arguments = ("coder", url, home, "openai-compatible:m", chat.url)
        async with member(*arguments) as first:
            await asyncio.wait_for(asked.wait(), 30)  # it has bought one turn, acted on it, and asks for the next
            await end(first)
        async with member(*arguments):
            outcome = await board.result(task, timeout=40)
        assert outcome.state == "done", outcome.reason
        assert bought(chat) == [1, 2]  # the settled turn once; the one that was cut off, again
    assert outcome.usage.model_calls == 4  # the plan, the settled turn, the one that was cut off, and its repetition
    _, applied = audited(await records(url))
    proven(applied, 1)
    assert types(applied)["step.released"] == 1


def bought(chat: ChatServer) -> list[int]:
    """How often each different request was made, in order of first appearance."""
    return list(Counter(json.dumps(body, sort_keys=True) for body in chat.bodies).values())


async def test_everything_killed_in_the_middle(nats_server: NatsServer, tmp_path: Path) -> None:
    """The supervisor mid-task, then the NATS server under working processes; readers see all of it, in order."""
    url, home = nats_server.url, str(tmp_path)
    double = edit(None, FIX_DOUBLE)["reply"]["content"]
    never, asked = hangs()
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())))
    add = edit(None, FIX_ADD)["reply"]["content"]
    seen: list[int] = []
    async with (
        serving(says(add), never, says(double)) as chat,
        team(url, model, tmp_path / "team", roles=OTHERS, supervisors=0),
        await Client.connect(url) as board,
        await Bus.connect(url) as bus,
    ):

        async def keep(stored: Any) -> None:
            seen.append(stored.seq)

        reader = Reader(bus, keep)
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        arguments = ("coder", url, home, "openai-compatible:m", chat.url)
        async with running(reader.run()):
            async with member("supervisor", url, home) as leader, member(*arguments) as coder:
                await asyncio.wait_for(asked.wait(), 30)
                await end(leader)
                await end(coder)
            nats_server.kill()
            async with member("supervisor", url, home), member(*arguments):
                nats_server.restart()
                loop = asyncio.get_running_loop()
                back = loop.time()
                last = await bus.patiently(bus.last_seq)
                await eventually(lambda: reader.position >= last, seconds=5)
                assert loop.time() - back < 5
                outcome = await board.result(task, timeout=40)
            last = await bus.last_seq()
            await eventually(lambda: reader.position >= last, seconds=5)
        assert outcome.state == "done", outcome.reason
        assert bought(chat) == [1, 2]
    stored = await records(url)
    assert seen == [*range(1, seen[-1] + 1)]
    _, applied = audited(stored)
    proven(applied, 1)


async def test_a_consumer_of_orders_that_vanishes_is_made_anew(nats_server: NatsServer, tmp_path: Path) -> None:
    url = nats_server.url
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *fixing())
    async with (
        team(url, model, tmp_path / "team") as (leader,),
        await Client.connect(url) as board,
        await Bus.connect(url) as bus,
    ):
        await asyncio.wait_for(leader.leading.wait(), 10)
        await bus.api("CONSUMER.DELETE.BOARD.coder")
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        assert (await board.result(task, timeout=40)).state == "done"
