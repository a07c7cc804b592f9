"""Killed anywhere while it archives, the next leader carries it on: nothing is lost, and nothing comes back."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from kokuban.blackboard import Client, Ended, KeyInUse
from kokuban.blackboard._archive import past, tombstone_of
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.wire import Bus, Payloads
from kokuban.schemas import Claimed, Control, Final, Journal, seal, subjects
from retention import run_keeper
from retention.keeper import BURIED, keeping, on_board
from support.nats_server import NatsServer
from support.processes import Process, child, linux_only
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, audited, edit, finish, plan, records, script, team, workspace
from support.waiting import eventually

pytestmark = [pytest.mark.anyio, linux_only]

TASKS = [f"t-{number}" for number in range(24)]
POINTS = [
    "archive:begin", "archive:stored", "before-write:kb.task.*", "after-write:kb.task.*", "archive:buried",
    "archive:kept", "archive:delete", "archive:delete#2", "archive:delete#9", "archive:delete#19",
]  # fmt: skip


def process(url: str, crash_at: str = "") -> AbstractAsyncContextManager[Process]:
    """A supervisor that archives; killed at the end of the block, if not before."""
    return child(str(run_keeper.__file__), url, crash_at=crash_at)


async def test_an_archiver_killed_at_every_point(nats_server: NatsServer) -> None:
    print("crash points:", *POINTS)
    async with keeping(nats_server.url) as keeper:
        for task in TASKS:
            await keeper.finished(task)
        await keeper.up_to_date()
        before = {task: await keeper.bus.history(subjects.task_records(task)) for task in TASKS}
    for point in POINTS:
        async with process(nats_server.url, point) as child:
            code = await asyncio.wait_for(child.wait(), 30)
            assert code == -signal.SIGKILL, f"crash point {point} was not reached: the process ended with {code}"
    async with process(nats_server.url), await Bus.connect(nats_server.url) as bus:

        async def archived() -> bool:
            return all([await on_board(bus, task) == BURIED for task in TASKS])

        await eventually(archived, seconds=30)
        for task in TASKS:
            stone = await tombstone_of(bus, task)
            assert stone is not None
            told = await past(bus, Payloads(bus), task, stone)
            assert [stored for stored, _ in told.applied] == before[task]
    board = Board(slim=True)
    for stored in await records(nats_server.url):
        fold(board, stored)
    assert all(task.tombstone is not None for task in board.tasks.values())
    assert len(board.tasks) == len(TASKS)


async def test_killed_between_the_tombstone_and_its_copy(nats_server: NatsServer) -> None:
    """The task is archived for whoever asks, its key is taken by its spec; whoever leads next puts the copy there."""
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        task = await board.submit("mend it", key="once")
        await keeper.end(task)
        await keeper.up_to_date()
        async with process(nats_server.url, "archive:buried") as child:
            assert await asyncio.wait_for(child.wait(), 30) == -signal.SIGKILL
        assert await on_board(keeper.bus, task) == ["task.spec", "task.final", "task.tombstone"]
        assert (await board.status(task)).tombstone is not None
        assert isinstance(await board.cancel(task), Ended)
        assert await board.submit("mend it", key="once") == task
        with pytest.raises(KeyInUse):
            await board.submit("another", key="once")
        async with process(nats_server.url):

            async def swept() -> bool:
                return await on_board(keeper.bus, task) == BURIED

            await eventually(swept, seconds=30)
        assert [stored.subject for stored in await keeper.bus.history(subjects.task_records(task))] == [
            subjects.buried(task), subjects.spec(task),
        ]  # fmt: skip
        assert await board.submit("mend it", key="once") == task
        with pytest.raises(KeyInUse):
            await board.submit("another", key="once")


async def test_a_live_archiver_and_those_who_come_late(nats_server: NatsServer, tmp_path: Path) -> None:
    """Tasks are worked off and archived at once by a live supervisor, while zombies of every kind write under them."""
    url = nats_server.url
    fixing = [
        {**edit(None, FIX_ADD), "when": {"role": "coder", "turn": 1}, "times": None},
        {**edit(None, FIX_DOUBLE), "when": {"role": "coder", "turn": 2}, "times": None},
        {**finish(None), "times": None},
    ]
    model, source = script(tmp_path / "s.json", plan(("fix", "coder", ())), *fixing), workspace(tmp_path / "ws")
    async with (
        process(url),
        team(url, model, tmp_path / "team", supervisors=0),
        await Client.connect(url) as board,
        await Bus.connect(url) as bus,
    ):

        async def one(number: int) -> str:
            task = await board.submit("Fix it", workspace=source, checks=[CHECK], key=f"key {number}")
            outcome = await board.result(task, timeout=60)
            assert outcome.state == "done", outcome.reason
            for late in range(10):
                await zombie(bus, task, late)
            return task

        tasks = await asyncio.gather(*(one(number) for number in range(6)))

        async def archived() -> bool:
            return all([await on_board(bus, task) == BURIED for task in tasks])

        await eventually(archived, seconds=30)
        for number, task in enumerate(tasks):
            again = await board.submit("Fix it", workspace=source, checks=[CHECK], key=f"key {number}")
            assert again == task
            assert (await board.result(task)).state == "done"
    folded, _ = audited(await records(url))
    assert all(task.tombstone is not None for task in folded.tasks.values())


async def zombie(bus: Bus, task: str, number: int) -> None:
    """A claim of an untouched register, a journal line, an end, a control: by who does not know that it is over."""
    who = {"task": task, "step": "fix", "role": "coder", "attempt": 1, "worker": "zombie"}
    late = [
        (subjects.register(task, "coder", "fix"), Claimed(1, 0), "step.claimed", who),
        (subjects.journal(task, "coder", "fix"), Journal(), "step.journal", {**who, "fence": 1}),
        (subjects.final(task), Final("failed", "late"), "task.final", {"task": task, "fence": 1}),
        (subjects.control(task, "ann", f"c-{number}"), Control("cancel"), "task.control", {"task": task}),
    ]
    for subject, body, kind, fields in late:
        ack = await bus.publish(subject, seal(body, id=f"late-{kind}-{number}", type=kind, **fields))
        assert ack.code == 0
