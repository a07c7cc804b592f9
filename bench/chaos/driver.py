"""One chaos run: servers, members, tasks, faults, and what the history says afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from board_digest import board_digest
from crew import Crew
from effects import EFFECTS
from endpoint import Endpoint
from faults import FILLER, Attack
from proxy import Proxy
from servers import Cluster, One, Servers

from kokuban.blackboard import Client
from kokuban.blackboard.audit import Message, Report, Settings, audit, write_lines
from kokuban.blackboard.core import Board, Stored, fold
from kokuban.blackboard.wire import Bus, BusError, Reader, ensure_board, ensure_roles
from kokuban.schemas.contracts import builtin_crew

MAX_BYTES = 48 * 1024 * 1024
ACK_WAIT_SECONDS = 2
"""Short, so that many orders are delivered again while their owner is at work."""
PLAN = {
    "replies": [
        {
            "when": {"role": "planner"},
            "reply": {"content": {"steps": [{"id": "work", "role": "coder", "goal": "Make the effects.", "needs": []}]}},
        }
    ]
}


@dataclass(frozen=True)
class Options:
    """What a run is to be."""

    folder: Path
    seed: int
    tasks: int
    faults: int
    nodes: int
    seconds: float
    settle_seconds: float
    kinds: tuple[str, ...] = ()
    breaks: str = ""


@dataclass
class Outcome:
    """How a run went. `broken` has a line a violation."""

    faults: Counter[str]
    counts: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def line(self) -> dict[str, object]:
        return {
            "faults": dict(self.faults), "counts": self.counts, "notes": self.notes, "broken": self.broken[:50],
            "rules": dict(self.rules), "seconds": round(self.seconds, 1),
        }  # fmt: skip


async def drive(options: Options) -> Outcome:
    """Run it. Raises only when it cannot be run at all."""
    started = time.monotonic()
    folder, log = options.folder, options.folder / "effects.jsonl"
    servers: Servers = One(folder / "store") if options.nodes == 1 else Cluster(folder / "store")
    script = folder / "script.json"
    script.write_text(json.dumps(PLAN))
    await servers.start()
    try:
        async with Endpoint(log, options.seed) as endpoint:
            quiet = await Proxy(lambda: servers.ports).start()  # nobody attacks the driver's own connections
            bus = await _board(quiet.url, servers, options)
            crew = Crew(servers, folder, endpoint.url, script, options.breaks)
            await crew.start()
            attack = Attack(options.seed, crew, servers, bus, options.faults, options.seconds, options.kinds)
            watching = asyncio.create_task(crew.watch())
            try:
                run = _Run(options, bus, quiet.url)
                await run.whole(attack, crew)
                boards = await crew.boards()
            finally:
                watching.cancel()
                await crew.end()
            history = await _history(bus)
            await bus.close()
            quiet.stop()
    finally:
        await servers.stop()
    outcome = await asyncio.to_thread(_judged, options, history, log)
    outcome.faults = attack.done
    for death, count in Counter(crew.deaths).items():
        outcome.notes[death] = count
    refold = Board()
    for message in history:
        fold(refold, Stored(message.seq, message.subject, message.time, message.data))
    if any(digest != board_digest(refold) for digest in boards):
        outcome.broken.append("refold: a supervisor's board is not the fold of the history from zero")
        outcome.rules["refold"] += 1
    outcome.broken += run.missing
    outcome.rules["accepted"] += len(run.missing)
    outcome.seconds = time.monotonic() - started
    return outcome


async def _board(url: str, servers: Servers, options: Options) -> Bus:
    for _ in range(100):
        try:
            bus = await Bus.connect(url, timeout=2)
            break
        except BusError:
            await asyncio.sleep(0.1)
    else:
        raise RuntimeError("no server answers")
    await ensure_board(bus, replicas=servers.replicas, max_bytes=MAX_BYTES)
    await ensure_roles(bus, builtin_crew(), ack_wait_seconds=ACK_WAIT_SECONDS)
    return bus


class _Run:
    """Submits the tasks while the faults go on, and waits for the ends of all that were accepted."""

    def __init__(self, options: Options, bus: Bus, url: str) -> None:
        self.missing: list[str] = []
        self._options = options
        self._bus = bus
        self._url = url
        self._accepted: set[str] = set()
        self._ended: set[str] = set()
        self._known: set[str] = set()
        self._dice = random.Random(options.seed + 1)

    async def whole(self, attack: Attack, crew: Crew) -> None:
        reader = Reader(self._bus, self._saw)
        reading = asyncio.create_task(reader.run())
        attacking = asyncio.create_task(attack.run())
        try:
            async with await Client.connect(self._url) as board:
                await self._submit_all(board)
            await attacking
            await crew.heal()
            await self._settle()
        finally:
            attacking.cancel()
            reading.cancel()
            await asyncio.gather(reading, attacking, return_exceptions=True)
        self.missing = [f"accepted: task {name} was accepted and is not there" for name in self._accepted - self._known]

    async def _submit_all(self, board: Client) -> None:
        """Spread over the first three quarters of the faults."""
        loop, pace = asyncio.get_running_loop(), self._options.seconds * 0.75 / self._options.tasks
        begun = loop.time()
        slots = asyncio.Semaphore(16)
        async with asyncio.TaskGroup() as group:
            for number in range(self._options.tasks):
                await asyncio.sleep(max(0.0, begun + number * pace - loop.time()))
                group.create_task(self._submit(board, slots, number))

    async def _submit(self, board: Client, slots: asyncio.Semaphore, number: int) -> None:
        words = ["keyed"] * self._dice.randint(1, 3) + ["other"] * (self._dice.random() < 0.15)
        self._dice.shuffle(words)
        async with slots:
            while True:
                try:
                    task = await board.submit(f"Task {number}: {' '.join(words)}", key=f"chaos-{number}")
                except BusError:  # with its key it can be submitted again and again
                    await asyncio.sleep(0.3)
                else:
                    self._accepted.add(task)
                    return

    async def _settle(self) -> None:
        give_up = asyncio.get_running_loop().time() + self._options.settle_seconds
        while not self._accepted <= self._ended and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # what comes late, comes now

    async def _saw(self, stored: Stored) -> None:
        parts = stored.subject.split(".")
        if parts[-1] == "final":
            self._ended.add(parts[2])
        elif parts[-1] == "spec":
            self._known.add(parts[2])


async def _history(bus: Bus) -> list[Message]:
    """Every record that is stored now."""
    found: list[Message] = []

    async def keep(stored: Stored) -> None:
        if stored.subject != FILLER:
            found.append(Message(*stored))

    reader = Reader(bus, keep)
    reading = asyncio.create_task(reader.run())
    await asyncio.wait_for(reader.caught_up.wait(), 60)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return found


def settings() -> Settings:
    """What the members run with, for the checker."""
    roles = {role: contract.limits.concurrency for role, contract in builtin_crew().items()}
    return Settings(roles=roles, steps_per_task=8, effects=EFFECTS)


def _judged(options: Options, history: list[Message], log: Path) -> Outcome:
    """The checker's word; its file is kept beside, for `python -I …/audit history.jsonl --effects effects.jsonl`."""
    position = history[-1].seq if history else 0
    with (options.folder / "history.jsonl").open("w", encoding="utf-8") as file:
        for line in write_lines(history, {"scope": "board", "position": position}):
            file.write(line + "\n")
    effects = [json.loads(line) for line in log.read_text().splitlines()]
    report: Report = audit(history, settings(), effects=effects)
    outcome = Outcome(Counter(), report.counts, dict(report.notes), [str(v) for v in report.violations])
    outcome.rules = Counter(v.rule for v in report.violations)
    return outcome


if __name__ == "__main__":
    sys.exit("run the folder: python bench/chaos --tasks 200")
