"""What grows with size: the cost of a task on a board that holds many finished ones, the cost of a step in a task that
has many artifacts, and what a hundred watchers cost.

    python bench/scale.py [--stored 1000,100000] [--tasks 100] [--watchers 100] [--only stored|artifacts|watchers]

Everything runs on one embedded server with the server's default sync, so that the disk does not hide what is ours.
Read the ratios. A full run stores 1.7 million records and takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from overhead import ROLES, SCRIPT, _Ends, _memory, _start

from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.schemas import (
    Claimed,
    Done,
    Epoch,
    Final,
    Finding,
    RegisteredKind,
    RegisteredRole,
    Result,
    TaskSpec,
    Wire,
    WorkOrder,
    digest,
    encode,
    seal,
    subjects,
)
from kokuban.schemas.artifacts.finding import Citation

FLIGHT = 20
PIPELINED = 400
NOTE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
MAKER = """
role = "maker"
summary = "Makes notes."
when = "planned"
produces = ["note"]
[limits]
concurrency = 4
"""


@asynccontextmanager
async def crew(server: EmbeddedServer, folder: Path, script: dict[str, Any]) -> AsyncIterator[dict[str, int]]:
    """A supervisor and a worker of each role, as processes; their ids."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    environment = os.environ | {"KOKUBAN_NATS_URL": server.url, "KOKUBAN_LOG_LEVEL": "error"}
    limits = [argument for role in ROLES for argument in ("--limit", f"{role}={FLIGHT}")]
    commands = {"supervisor": ["supervisor", *limits]}
    for role in ROLES:
        commands[role] = ["worker", role, "--concurrency", str(FLIGHT), "--model", f"scripted:{path}"]
    children = {name: _start(["-m", "kokuban.console.main", *argv], environment) for name, argv in commands.items()}
    try:
        yield {name: child.pid for name, child in children.items()}
    finally:
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.wait(30)


async def throughput(board: Client, url: str, tasks: int) -> tuple[float, float]:
    """Tasks a second, and the median time of a task alone, in ms."""
    ends, slots = await _Ends.start(url), asyncio.Semaphore(FLIGHT)

    async def one(name: str) -> float:
        async with slots:
            begin = time.perf_counter()
            await ends.of(await board.submit(f"{name}: write the file."))
            return time.perf_counter() - begin

    await one("warm up")
    started = time.perf_counter()
    await asyncio.gather(*(one(f"Task {n}") for n in range(tasks)))
    seconds = time.perf_counter() - started
    alone = [await one(f"Alone {n}") for n in range(30)]
    await ends.stop()
    return tasks / seconds, 1_000 * statistics.median(alone)


# ---------------------------------------------------------------- many finished tasks


class _Past:
    """Finished tasks of five steps, written as their writers would have: 17 records each."""

    def __init__(self, bus: Bus, seq: int) -> None:
        self._bus = bus
        self._seq = seq
        self._epochs: dict[int, int] = {}
        self._pending: list[asyncio.Task[object]] = []

    async def _put(self, subject: str, body: Wire, kind: str, **fields: Any) -> int:
        self._seq += 1
        data = seal(body, id=f"op-{self._seq}", type=kind, time="2026-01-01T00:00:00.000+00:00", **fields)
        self._pending.append(asyncio.ensure_future(self._bus.publish(subject, data, timeout=60)))
        if len(self._pending) >= PIPELINED:
            await self.flush()
        return self._seq

    async def flush(self) -> None:
        acks = await asyncio.gather(*self._pending)
        self._pending.clear()
        assert acks[-1].seq == self._seq, "somebody else writes"  # type: ignore[attr-defined]

    async def lead(self) -> None:
        for shard in range(subjects.EPOCH_SHARDS):
            epoch = Epoch("past", shard)
            self._epochs[shard] = await self._put(subjects.epoch(shard), epoch, "ctl.epoch", worker="past")

    async def task(self, name: str) -> None:
        fence = self._epochs[subjects.shard(name)]
        spec = TaskSpec(f"{name}: mend what is broken, and say what was done", digest(b"workspace"), tenant="past")
        at = await self._put(subjects.spec(name), spec, "task.spec", task=name, principal="ann")
        for number in range(5):
            step, role = f"s{number}", "researcher"
            who = {"task": name, "step": step, "role": role, "attempt": 1}
            order = WorkOrder(0, at, f"look at {number}", ("finding",))
            seq = await self._put(subjects.work(name, role, step), order, "step.order", fence=fence, **who)
            register = subjects.register(name, role, step)
            claim = await self._put(register, Claimed(seq, 0), "step.claimed", worker="w-1", **who)
            quote = f"{name} {number} says so"
            finding = Finding(f"{quote}, in words", (Citation("notes.md", 1, 1, quote, digest(quote.encode())),))
            content = encode(finding)
            result = Result("finding", "fact", digest(content), msgspec.Raw(content))
            await self._put(register, Done((result,)), "step.done", fence=claim, worker="w-1", **who)
        await self._put(subjects.final(name), Final("failed", "it was a test"), "task.final", task=name, fence=fence)


async def stored(counts: list[int], tasks: int, folder: Path) -> list[dict[str, Any]]:
    """The same work on boards that hold more and more finished tasks."""
    rows: list[dict[str, Any]] = []
    for count in counts:
        async with EmbeddedServer(folder / f"stored-{count}", sync="default") as server:
            async with await Bus.connect(server.url) as bus:
                await ensure_board(bus, max_bytes=8 * 1024**3)
                past = _Past(bus, await bus.last_seq())
                await past.lead()
                for number in range(count):
                    await past.task(f"past-{number}")
                await past.flush()
            async with await Client.connect(server.url) as board, crew(server, folder, SCRIPT) as pids:
                begin = time.perf_counter()
                await throughput(board, server.url, 1)
                ready = time.perf_counter() - begin
                await throughput(board, server.url, tasks)  # a leader's first snapshot is taken meanwhile
                rate, alone = await throughput(board, server.url, tasks)
                memory = {"supervisor": _memory(pids["supervisor"]), "server": _memory(server.pid)}
        rows.append({"stored": count, "ready_s": ready, "tasks_per_second": rate, "alone_ms": alone, "mb": memory})
        print(
            f"{count:7} stored tasks: ready after {ready:6.1f} s; {rate:6.1f} tasks/s; alone {alone:6.1f} ms; "
            f"supervisor {memory['supervisor']:.0f} MB, server {memory['server']:.0f} MB"
        )
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        print(
            f"cost of a task, {last['stored']} over {first['stored']} stored: "
            f"{first['tasks_per_second'] / last['tasks_per_second']:.2f} (throughput), "
            f"{last['alone_ms'] / first['alone_ms']:.2f} (alone)"
        )
    return rows


# ---------------------------------------------------------------- many artifacts in a task

MAKER_PROGRAM = """
import asyncio, sys, tempfile, pathlib
from kokuban.agents._output import Output
from kokuban.agents.worker import Worker
from kokuban.blackboard.wire import Bus
from kokuban.schemas import encode
from kokuban.schemas.contracts import parse_contract
import msgspec

class Maker:
    def __init__(self, each): self.each = each
    async def perform(self, work):
        at = work.assignment
        return [
            Output(f"n{n}", {"text": f"{at.step} {at.attempt} {n}"}, of="note")
            for n in range(self.each)
        ]

async def main(url, each, contract):
    async with await Bus.connect(url) as bus:
        home = pathlib.Path(tempfile.mkdtemp())
        contract = parse_contract(contract, "maker", ["note"])
        await Worker(bus, contract, Maker(int(each)), home=home, concurrency=4).run()

asyncio.run(main(*sys.argv[1:]))
"""


async def artifacts(folder: Path) -> list[dict[str, Any]]:
    """The time of a step, in a task that ends up with 5 artifacts and in one that ends up with 504."""
    rows: list[dict[str, Any]] = []
    for steps, each in ((5, 1), (63, 8)):
        async with (
            EmbeddedServer(folder / f"artifacts-{steps}", sync="default") as server,
            await Client.connect(server.url) as board,
            await Bus.connect(server.url) as bus,
        ):
            await _register(bus)
            plan = [
                {"id": f"m{n}", "role": "maker", "goal": "Make notes.", "needs": [f"m{n - 1}"] if n else []}
                for n in range(steps)
            ]
            script = {"replies": [{"when": {"role": "planner"}, "reply": {"content": {"steps": plan}}}]}
            maker = _start(["-c", MAKER_PROGRAM, server.url, str(each), MAKER], os.environ)
            try:
                async with crew(server, folder, script):
                    times: list[float] = []
                    for _ in range(3):
                        seen = []
                        async for event in board.watch(await board.submit("Make many notes.")):
                            if event.event == "claimed" and event.role == "maker":
                                seen.append(event.time)
                        times += [after - before for before, after in itertools.pairwise(seen)]
            finally:
                maker.terminate()
                maker.wait(30)
        last = times[-4:] if steps > 5 else times
        row = {"artifacts": steps * each, "step_ms": 1_000 * statistics.median(last)}
        rows.append(row)
        print(f"{row['artifacts']:7} artifacts in a task: {row['step_ms']:.1f} ms a step (the last ones)")
    print(f"cost of a step, 504 over 5 artifacts: {rows[1]['step_ms'] / rows[0]['step_ms']:.2f}")
    return rows


async def _register(bus: Bus) -> None:
    kind = RegisteredKind("note", 1, msgspec.Raw(encode(NOTE)))
    await bus.publish(subjects.kind("note", 1), seal(kind, id="kind", type="ctl.kind"))
    await bus.publish(subjects.contract("maker"), seal(RegisteredRole("maker", MAKER), id="role", type="ctl.role"))


# ---------------------------------------------------------------- many watchers


async def watchers(count: int, tasks: int, folder: Path) -> dict[str, Any]:
    """The throughput without and with watchers of the whole board, all in one other process."""
    rates = []
    for number in (0, count):
        async with (
            EmbeddedServer(folder / f"watchers-{number}", sync="default") as server,
            await Client.connect(server.url) as board,
            crew(server, folder, SCRIPT),
        ):
            await throughput(board, server.url, 1)
            watching = _start([__file__, "--watch", server.url, str(number)], os.environ)
            try:
                await _until_watched(server.url)
                rate, _ = await throughput(board, server.url, tasks)
            finally:
                watching.terminate()
                watching.wait(30)
        rates.append(rate)
    without, with_them = rates
    lost = 1 - with_them / without
    print(f"{count} watchers: {without:.1f} tasks/s without, {with_them:.1f} with; {lost:.0%} of the throughput")
    return {"watchers": count, "without": without, "with": with_them}


async def _until_watched(url: str) -> None:
    """Until the other process says that all of its watchers have caught up."""
    async with await Bus.connect(url) as bus:
        ready = asyncio.Event()

        async def heard(_: object) -> None:
            ready.set()

        await bus.subscribe("bench.watching", heard)  # type: ignore[arg-type]
        await asyncio.wait_for(ready.wait(), 60)


async def watch(url: str, count: int) -> None:
    """The other process: `count` watchers of everything, until it is ended."""
    async with await Client.connect(url) as board, await Bus.connect(url) as bus:
        begun = [asyncio.Event() for _ in range(count)]

        async def one(first: asyncio.Event) -> None:
            async for _ in board.watch():
                first.set()

        watching = [asyncio.create_task(one(first)) for first in begun]
        await asyncio.gather(*(first.wait() for first in begun))
        pause = asyncio.create_task(asyncio.sleep(3_600))
        while True:
            await bus.send("bench.watching", b"")
            done, _ = await asyncio.wait([*watching, pause], timeout=0.5)
            for one_done in done:
                one_done.result()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stored", default="1000,100000")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--watchers", type=int, default=100)
    parser.add_argument("--only", choices=("stored", "artifacts", "watchers"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", nargs=2, metavar=("URL", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        await watch(options.watch[0], int(options.watch[1]))
        return
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only in (None, "watchers"):
            report["watchers"] = await watchers(options.watchers, options.tasks, folder)
        if options.only in (None, "artifacts"):
            report["artifacts"] = await artifacts(folder)
        if options.only in (None, "stored"):
            counts = [int(text) for text in options.stored.split(",")]
            report["stored"] = await stored(counts, options.tasks, folder)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
