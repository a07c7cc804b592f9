"""What Kokuban costs: a five-step task with an instant scripted model, beside a bare hand-written nats-py pipeline of
the same five hops, in the same run, on the same kind of server, with `sync_interval: always` (the shipped default) and
the server's default.

    python bench/overhead.py [--tasks 200] [--flight 50] [--json FILE]

Every part is a process of its own: server, supervisor, one worker per role, this client. Read ratios, not seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import nats

from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, Reader
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.schemas import subjects

ROLES = ("planner", "coder", "verifier", "integrator")
SCRIPT = {
    "replies": [
        {
            "when": {"role": "planner"},
            "reply": {"content": {"steps": [{"id": "code", "role": "coder", "goal": "Write the file.", "needs": []}]}},
        },
        {
            "when": {"role": "coder"},
            "reply": {
                "calls": [
                    {"name": "write_file", "arguments": {"path": "done.txt", "content": "done\n"}},
                    {"name": "finish", "arguments": {"summary": "wrote it"}},
                ]
            },
        },
    ]
}
STEPS = 5  # plan, code, verify-code, integrate, verify-integrate


async def kokuban(sync: str, tasks: int, flight: int, folder: Path) -> dict[str, object]:
    """Throughput, latency, records per step and memory of the whole crew."""
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    async with EmbeddedServer(folder / f"store-{sync}", sync=sync) as server:  # type: ignore[arg-type]
        environment = os.environ | {"KOKUBAN_NATS_URL": server.url, "KOKUBAN_LOG_LEVEL": "error"}
        limits = [argument for role in ROLES for argument in ("--limit", f"{role}={flight}")]
        commands = {"supervisor": ["supervisor", *limits]}
        for role in ROLES:
            commands[role] = ["worker", role, "--concurrency", str(flight), "--model", f"scripted:{script}"]
        children = {name: _start(["-m", "kokuban.console.main", *argv], environment) for name, argv in commands.items()}
        try:
            async with await Client.connect(server.url) as board:
                await (await _submit(board, "warm up"))
                started, latencies = time.perf_counter(), []
                slots = asyncio.Semaphore(flight)
                ends = await _Ends.start(server.url)

                async def one(number: int) -> None:
                    async with slots:
                        begin = time.perf_counter()
                        task = await board.submit(f"Task {number}: write the file.")
                        await ends.of(task)
                        latencies.append(time.perf_counter() - begin)

                await asyncio.gather(*(one(n) for n in range(tasks)))
                seconds = time.perf_counter() - started
                alone = []
                for number in range(20):
                    begin = time.perf_counter()
                    task = await board.submit(f"Alone {number}: write the file.")
                    await ends.of(task)
                    alone.append(time.perf_counter() - begin)
                counted = ends.records
                await ends.stop()
            memory = {name: _memory(child.pid) for name, child in children.items()} | {"server": _memory(server.pid)}
        finally:
            for child in children.values():
                child.terminate()
            for child in children.values():
                child.wait(30)
    return {
        "tasks_per_second": tasks / seconds,
        "p50_ms_alone": 1_000 * statistics.median(alone),
        "p50_ms_in_flight": 1_000 * statistics.median(latencies),
        "records_per_step": counted / (tasks + 20) / STEPS,
        "memory_mb": memory,
    }


async def _submit(board: Client, goal: str) -> asyncio.Task[None]:
    task = await board.submit(goal)

    async def ended() -> None:
        outcome = await board.result(task, timeout=60)
        assert outcome.state == "done", outcome.reason

    return asyncio.create_task(ended())


class _Ends:
    """Folds the board once and tells when each task has ended."""

    def __init__(self, bus: Bus) -> None:
        self.records = 0
        self._bus = bus

        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, url: str) -> _Ends:
        bus = await Bus.connect(url)
        ends = cls(bus)
        reader = Reader(bus, ends._on_record, after=await bus.last_seq())
        ends._running = asyncio.create_task(reader.run())
        await reader.caught_up.wait()
        return ends

    async def _on_record(self, stored) -> None:  # type: ignore[no-untyped-def]
        self.records += stored.subject.startswith("kb.task.")
        if stored.subject.endswith(".final"):
            address = subjects.parse(stored.subject)
            assert address is not None
            assert b'"state":"done"' in stored.data, stored.data
            self._future(address.task).set_result(None)

    def _future(self, task: str) -> asyncio.Future[None]:
        return self._waiting.setdefault(task, asyncio.get_running_loop().create_future())

    async def of(self, task: str) -> None:
        await self._future(task)
        del self._waiting[task]

    async def stop(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await self._bus.close()


# ---------------------------------------------------------------- the bare pipeline

HOP = """
import asyncio, sys, nats
async def main(url, hop, flight):
    connection = await nats.connect(url)
    stream = connection.jetstream()
    subscription = await stream.pull_subscribe(f"p.{hop}.*", f"hop{hop}", stream="P")
    async def handle(message):
        task = message.subject.rsplit(".", 1)[1]
        await stream.publish(f"p.{hop + 1}.{task}", message.data)
        await message.ack()
    while True:
        try:
            messages = await subscription.fetch(flight, timeout=30)
        except nats.errors.TimeoutError:
            continue
        await asyncio.gather(*(handle(message) for message in messages))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


async def bare(sync: str, tasks: int, flight: int, folder: Path) -> dict[str, object]:
    """The same five hops, one process each, with nats-py's own calls and no rules at all."""
    async with EmbeddedServer(folder / f"bare-{sync}", sync=sync) as server:  # type: ignore[arg-type]
        connection = await nats.connect(server.url)
        stream = connection.jetstream()
        await stream.add_stream(name="P", subjects=["p.>"])
        children = [_start(["-c", HOP, server.url, str(hop), str(flight)], os.environ) for hop in range(1, STEPS + 1)]
        ends: dict[str, asyncio.Future[None]] = {}

        async def ended(message) -> None:  # type: ignore[no-untyped-def]
            ends[message.subject.rsplit(".", 1)[1]].set_result(None)

        try:
            await connection.subscribe(f"p.{STEPS + 1}.*", cb=ended)

            async def one(name: str) -> float:
                begin = time.perf_counter()
                ends[name] = asyncio.get_running_loop().create_future()
                await stream.publish(f"p.1.{name}", b"x" * 400)
                await ends[name]
                return time.perf_counter() - begin

            await one("warm")
            slots = asyncio.Semaphore(flight)

            async def bounded(number: int) -> float:
                async with slots:
                    return await one(f"t{number}")

            started = time.perf_counter()
            latencies = await asyncio.gather(*(bounded(n) for n in range(tasks)))
            seconds = time.perf_counter() - started
            alone = [await one(f"a{n}") for n in range(20)]
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait(30)
            await connection.close()
    return {
        "tasks_per_second": tasks / seconds,
        "p50_ms_alone": 1_000 * statistics.median(alone),
        "p50_ms_in_flight": 1_000 * statistics.median(latencies),
    }


def _start(arguments: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], env=environment)


def _memory(pid: int) -> float:
    """Resident memory in MB; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS")), 0.0)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--flight", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = {}
    with tempfile.TemporaryDirectory() as name:
        for sync in ("always", "default"):
            plain = await bare(sync, options.tasks, options.flight, Path(name))
            ours = await kokuban(sync, options.tasks, options.flight, Path(name))
            ratio = {
                "throughput": plain["tasks_per_second"] / ours["tasks_per_second"],  # type: ignore[operator]
                "latency": ours["p50_ms_alone"] / plain["p50_ms_alone"],  # type: ignore[operator]
            }
            report[sync] = {"bare": plain, "kokuban": ours, "bare over kokuban": ratio}
            print(f"sync_interval: {sync}")
            for who, row in (("bare nats-py", plain), ("kokuban", ours)):
                print(
                    f"  {who:13} {row['tasks_per_second']:8.1f} tasks/s   p50 alone {row['p50_ms_alone']:7.2f} ms"
                    f"   p50 at {options.flight} in flight {row['p50_ms_in_flight']:8.1f} ms"
                )
            print(
                f"  ratios: throughput {ratio['throughput']:.1f} times less, latency {ratio['latency']:.1f} times more"
            )
            print(f"  records per step: {ours['records_per_step']:.2f}")
            memory: dict[str, float] = ours["memory_mb"]  # type: ignore[assignment]
            print("  memory, MB: " + ", ".join(f"{name} {mb:.0f}" for name, mb in memory.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
