"""What a turn of the agent loop costs beside the model, and what loops weigh.

    python bench/loop [--rounds 20] [--turns 40] [--idle 50] [--busy 20] [--json FILE]

A real server, a supervisor, a planner and one worker, each a process. The worker's model answers at once; a turn is
what passes from one answer to the next question: the reply settled and the tool's call opened (a line of the journal),
the tool, its result settled and the next question opened (another line), and the conversation made ready. After each
round of turns this process awaits as many bare publishes of a record of that size on the same server: read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from worker import ANSWER, CONTRACT, KIND, ROLE

from kokuban.blackboard import Client
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.schemas import subjects

WORKER = Path(__file__).with_name("worker.py")
STEP = "look"
PATIENCE_SECONDS = 120.0


@dataclass
class Bench:
    """The board, and the worker under test with what it has told so far."""

    board: Client
    bus: Bus
    bare: Any
    worker: asyncio.subprocess.Process
    told: list[dict[str, Any]] = field(default_factory=list)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Listen to the worker until it has told enough."""
        assert self.worker.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not enough():
                line = await self.worker.stdout.readline()
                assert line, "the worker has ended"
                self.told.append(json.loads(line))

    def count(self, what: str) -> int:
        return sum(what in one for one in self.told)

    async def begin(self, goal: str, steps: int) -> str:
        """Have this done by so many loops, each a task; returns the last one's id once all have begun."""
        wanted, task = self.count("began") + steps, ""
        for _ in range(steps):
            task = await self.board.submit(goal)
        await self.until(lambda: self.count("began") >= wanted)
        return task

    async def round(self, turns: int) -> tuple[list[float], list[float], list[int]]:
        """The turns of one step, as many bare publishes, and the sizes of its journal's lines; ms and bytes."""
        wanted = self.count("ended") + 1
        task = await self.begin(f"Look {turns} times", 1)
        await self.until(lambda: self.count("ended") >= wanted)
        passed = next(one["turns"] for one in reversed(self.told) if "turns" in one)
        lines = await self.bus.history(subjects.journal(task, ROLE, STEP))
        sizes = [len(line.data) for line in lines]
        record, publishes = b"x" * int(statistics.median(sizes)), []
        for _ in range(turns):
            begun = time.perf_counter()
            await self.bare.publish("bare.line", record)
            publishes.append(1_000 * (time.perf_counter() - begun))
        return passed, publishes, sizes


@asynccontextmanager
async def bench(sync: str, folder: Path, concurrency: int) -> AsyncIterator[Bench]:
    """Everything, for the length of the block."""
    home = folder / sync
    home.mkdir()
    script = home / "script.json"
    plan = {"steps": [{"id": STEP, "role": ROLE, "goal": "Do as the task says.", "needs": []}]}
    script.write_text(json.dumps({"replies": [{"when": {"role": "planner"}, "reply": {"content": plan}}]}))
    async with EmbeddedServer(home / "store", sync=sync) as server, await Bus.connect(server.url) as bus:  # type: ignore[arg-type]
        await ensure_board(bus)
        await register_kind(bus, KIND, json.dumps(ANSWER).encode())
        await register_role(bus, CONTRACT)
        connection = await nats.connect(server.url)
        bare = connection.jetstream()
        await bare.add_stream(name="BARE", subjects=["bare.>"])
        console = [sys.executable, "-m", "kokuban.console.main"]
        commands = [
            [*console, "supervisor", "--limit", f"planner={concurrency}"],
            [*console, "worker", "planner", "--concurrency", "4", "--model", f"scripted:{script}"],
            [sys.executable, str(WORKER), server.url, str(home / "worker"), str(concurrency)],
        ]
        environment = os.environ | {"KOKUBAN_NATS_URL": server.url, "KOKUBAN_LOG_LEVEL": "error"}
        children = [
            await asyncio.create_subprocess_exec(
                *argv, env=environment, stdout=asyncio.subprocess.PIPE if argv is commands[-1] else None, limit=2**20
            )
            for argv in commands
        ]
        try:
            async with await Client.connect(server.url) as board:
                found = Bench(board, bus, bare, children[-1])
                await found.until(lambda: bool(found.told))
                yield found
        finally:
            for child in children:
                child.kill()  # nothing here is to be kept
            for child in children:
                await child.wait()
            await connection.close()


def memory(pid: int) -> dict[str, float]:
    """Resident and proportional memory in MB; nothing where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return {}
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith("kB")}
    return {"rss": kilobytes["Rss"] / 1024, "pss": kilobytes["Pss"] / 1024}


def spread(times: list[float]) -> dict[str, float]:
    """Three percentiles."""
    cut = statistics.quantiles(times, n=100, method="inclusive")
    return {"p50": cut[49], "p90": cut[89], "p99": cut[98]}


async def turns(sync: str, folder: Path, rounds: int, length: int) -> dict[str, Any]:
    """What a turn costs, over all rounds and in the quietest one."""
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    sizes: list[int] = []
    async with bench(sync, folder, 4) as found:
        await found.round(length)  # warm up
        for _ in range(rounds):
            passed, publishes, lines = await found.round(length)
            ours.append(passed)
            bare.append(publishes)
            sizes += lines
    medians = [statistics.median(one) for one in ours]
    per_bare = [a / statistics.median(b) for a, b in zip(medians, bare, strict=True)]
    return {
        "turns": sum(map(len, ours)), "turn_ms": spread([t for one in ours for t in one]),
        "bare_publish_ms": spread([t for one in bare for t in one]), "quietest_round_p50_ms": min(medians),
        "turn_over_bare_publish": statistics.median(per_bare), "line_bytes": statistics.median(sizes),
    }  # fmt: skip


async def weights(folder: Path, idle: int, busy: int) -> dict[str, Any]:
    """Memory of the worker: with nothing to do, with loops that wait for a model, with others at work beside them."""
    async with bench("default", folder, idle + busy) as found:
        pid, weighed = found.worker.pid, {}
        weighed["nothing"] = memory(pid)
        await found.begin("Wait", idle)
        weighed[f"{idle} idle"] = memory(pid)
        ended = found.count("ended")
        await found.begin("Look 60 times", busy)
        most: dict[str, float] = {}
        for n in range(busy):  # weighed as each ends: the conversations are longest then
            most = max(most, memory(pid), key=lambda one: one.get("rss", 0.0))
            await found.until(lambda n=n: found.count("ended") > ended + n)  # type: ignore[misc]
        weighed[f"{idle} idle, {busy} busy (most)"] = most
    return weighed


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--idle", type=int, default=50)
    parser.add_argument("--busy", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sync in ("default", "always"):
            report[sync] = row = await turns(sync, folder, options.rounds, options.turns)
            print(f"sync_interval: {sync}, {row['turns']} turns")
            for what in ("turn", "bare_publish"):
                ms = row[f"{what}_ms"]
                print(f"  {what:13} p50 {ms['p50']:6.2f} ms   p90 {ms['p90']:6.2f} ms   p99 {ms['p99']:6.2f} ms")
            print(
                f"  p50 of the quietest round {row['quietest_round_p50_ms']:.2f} ms; a turn is "
                f"{row['turn_over_bare_publish']:.1f} bare publishes of {row['line_bytes']:.0f} bytes"
            )
        (folder / "memory").mkdir()
        report["memory_mb"] = await weights(folder / "memory", options.idle, options.busy)
        for what, mb in report["memory_mb"].items():
            print(f"memory, {what}: " + ", ".join(f"{name.upper()} {value:.1f} MB" for name, value in mb.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
