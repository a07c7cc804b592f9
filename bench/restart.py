"""How long a supervisor takes to lead again on a board that holds many finished tasks: from the log alone, from a
snapshot, and once the tasks are archived.

    python bench/restart.py [--tasks 10000] [--archive 2000] [--json FILE]

A process is started and the time until it leads is taken, imports and the server's answers included. The background
check of the snapshot against the log goes on after that; its time is given too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.schemas import (
    Claimed,
    Done,
    Epoch,
    Final,
    Finding,
    Result,
    TaskSpec,
    Usage,
    WorkOrder,
    digest,
    encode,
    seal,
    subjects,
)
from kokuban.schemas.artifacts import Citation
from kokuban.supervisor import Retention, Supervisor

STEPS = 5
NOTHING = digest(b"")


class Filler:
    """Writes finished tasks of five steps, 17 records each, as fast as the server stores them. It is the only writer,
    so it knows each record's sequence beforehand."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._seq = 0
        self._epochs: dict[int, int] = {}
        self._unconfirmed = 0

    async def fill(self, tasks: int) -> None:
        for shard in range(subjects.EPOCH_SHARDS):
            self._epochs[shard] = await self._put(subjects.epoch(shard), Epoch("bench", shard), "ctl.epoch")
        for number in range(tasks):
            await self._task(f"t-{number:06d}")
        await self._confirm()

    async def _task(self, task: str) -> None:
        epoch = self._epochs[subjects.shard(task)]
        spec = TaskSpec(f"Task {task}: find out what is so.", NOTHING)
        at = await self._put(subjects.spec(task), spec, "task.spec", task=task)
        for number in range(STEPS):
            step = f"look-{number}"
            who = {"task": task, "step": step, "role": "researcher", "attempt": 1}
            order = WorkOrder(0, at, f"look at part {number}", ("finding",))
            subject = subjects.work(task, "researcher", step)
            ordered = await self._put(subject, order, "step.order", fence=epoch, **who)
            register = subjects.register(task, "researcher", step)
            claim = await self._put(register, Claimed(ordered, 0), "step.claimed", worker="w", **who)
            body = encode(Finding(f"part {number} is so", (Citation("a.md", 1, 1, "so it is", NOTHING),)))
            result = Result("finding", "fact", digest(body), msgspec.Raw(body))
            done = Done((result,), usage=Usage(900, 80, 1))
            await self._put(register, done, "step.done", worker="w", fence=claim, **who)
        end = Final("failed", "this is but a bench", usage=Usage(4_500, 400, 5))
        await self._put(subjects.final(task), end, "task.final", task=task, fence=epoch)

    async def _put(self, subject: str, body: Any, kind: str, **fields: Any) -> int:
        self._seq += 1
        await self._bus.send(subject, seal(body, id=f"op-{self._seq}", type=kind, **fields))
        self._unconfirmed += 1
        if self._unconfirmed >= 4_000:
            await self._confirm()
        return self._seq

    async def _confirm(self) -> None:
        await _until(self._stored)
        self._unconfirmed = 0

    async def _stored(self) -> bool:
        return await self._bus.last_seq() >= self._seq


async def _until(look: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(100_000):
        if await look():
            return
        await asyncio.sleep(0.01)


async def lead(url: str) -> None:
    """In a process of its own: lead, say so, wait for the check, let a snapshot be stored, end in good order."""
    async with await Bus.connect(url) as bus:
        supervisor = Supervisor(bus)
        running = asyncio.create_task(supervisor.run())
        await supervisor.leading.wait()
        print("leading", len(supervisor.board.tasks), flush=True)
        check = supervisor._upkeep._check
        if check is not None:
            await check.agreed.wait()
        else:
            await _until(lambda: bus.history(subjects.SNAPSHOT))
        print("settled", flush=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def restart(url: str, tasks: int) -> tuple[float, float]:
    """Seconds until it leads, and until all else is settled."""
    environment = os.environ | {"KOKUBAN_LOG_LEVEL": "error"}
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, __file__, "--lead", url], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    said = [(line.split(), time.perf_counter() - started) for line in child.stdout if line.startswith(("lead", "sett"))]
    assert child.wait(60) == 0
    assert [words[0] for words, _ in said] == ["leading", "settled"]
    assert int(said[0][0][1]) == tasks
    return said[0][1], said[1][1]


async def archive(url: str, tasks: int) -> float:
    """Archive that many of the tasks; returns how many a second."""
    async with await Bus.connect(url) as bus:
        supervisor = Supervisor(bus, retention=Retention(finished=timedelta(0)))
        running = asyncio.create_task(supervisor.run())
        await supervisor.leading.wait()
        check = supervisor._upkeep._check
        if check is not None:  # nothing is removed before
            await check.agreed.wait()
        started = time.perf_counter()

        async def archived() -> bool:
            return sum(task.tombstone is not None for task in supervisor.board.tasks.values()) >= tasks

        await _until(archived)
        seconds = time.perf_counter() - started
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return tasks / seconds


async def bench(tasks: int, archived: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder) / "store", sync="default") as server:
            async with await Bus.connect(server.url) as bus:
                await ensure_board(bus)
                await Filler(bus).fill(tasks)
                records = await bus.last_seq()
            plain = await asyncio.to_thread(restart, server.url, tasks)
            snapshot = await asyncio.to_thread(restart, server.url, tasks)
            found = {
                "tasks": tasks, "records": records, "log_seconds": plain[0], "snapshot_seconds": snapshot[0],
                "check_seconds": snapshot[1], "ratio": plain[0] / snapshot[0],
            }  # fmt: skip
            if archived:
                found["archived_a_second"] = await archive(server.url, min(archived, tasks))
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--archive", type=int, default=2_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lead", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.lead:
        asyncio.run(lead(arguments.lead))
        return
    found = asyncio.run(bench(arguments.tasks, arguments.archive))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name:20} {value:10.2f}" if isinstance(value, float) else f"{name:20} {value:10,}")


if __name__ == "__main__":
    main()
