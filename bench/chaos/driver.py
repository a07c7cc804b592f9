"""One chaos run: servers, members, tasks, faults, and what the history says afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import breaks
from board_text import board_text, first_difference
from breaks import BREAKS
from crew import ROLES, Crew
from effects import EFFECTS
from endpoint import Endpoint
from faults import FILLER, Attack
from proxy import Proxy
from servers import Cluster, One, Servers
from tasks import People

from kokuban.blackboard.audit import Message, Report, Settings, audit, write_lines
from kokuban.blackboard.core import Board, Stored, fold
from kokuban.blackboard.wire import Bus, BusError, Reader, ensure_board, ensure_roles
from kokuban.schemas import subjects
from kokuban.schemas.contracts import builtin_crew

MAX_BYTES = 48 * 1024 * 1024
ACK_WAIT_SECONDS = 2
"""Short, so that many orders are delivered again while their owner is at work."""
PLAN = {
    "replies": [
        {
            "when": {"role": "planner"},
            "reply": {
                "content": {"steps": [{"id": "work", "role": "coder", "goal": "Make the effects.", "needs": []}]}
            },
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
    breaks.apply(options.breaks, "people")
    await servers.start()
    try:
        async with Endpoint(log, options.seed) as endpoint:
            quiet = await Proxy(lambda: servers.ports).start()  # nobody attacks the driver's own connections
            bus = await _board(quiet.url, servers, options)
            crew = Crew(servers, folder, endpoint.url, script, options.breaks)
            attack = Attack(options.seed, crew, servers, bus, options.faults, options.seconds, options.kinds)
            watching = asyncio.create_task(crew.watch())
            try:
                await crew.start()
                await _at_work(bus)
                run = _Run(options, bus, quiet.url)
                await run.whole(attack, crew)
                boards = await crew.boards()
            finally:
                watching.cancel()
                await crew.end()
            stored = await _history(bus)
            await bus.close()
            quiet.stop()
    finally:
        await servers.stop()
    history = run.merged(stored)
    outcome = await asyncio.to_thread(_judged, options, history, log)
    outcome.faults = attack.done
    for death, count in Counter(crew.deaths).items():
        outcome.notes[death] = count
    for said in boards:
        position, _, text = said.partition("\n")
        for what, messages in (("all records", history), ("what is stored now", stored)):
            if differs := first_difference(text, _refolded(messages, position)):
                outcome.broken.append(f"refold: a supervisor's board is not the fold of {what} from zero: {differs}")
                outcome.rules["refold"] += 1
    outcome.broken += run.missing + run.vanished(stored)
    outcome.rules["durable"] += len(run.vanished(stored))
    outcome.rules["accepted"] += len(run.missing)
    outcome.seconds = time.monotonic() - started
    return outcome


def _refolded(messages: list[Message], position: str) -> str:
    """What the fold from zero says of the board, up to the record that a supervisor had read last."""
    board = Board(slim=True)
    for message in messages:
        if message.seq <= int(position if position.isdecimal() else "0"):
            fold(board, Stored(message.seq, message.subject, message.time, message.data))
    return board_text(board)


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


async def _at_work(bus: Bus, seconds: float = 30) -> None:
    """Wait until somebody leads and every role's workers ask for orders, so that the faults meet a team at work."""
    with suppress(TimeoutError, BusError):
        async with asyncio.timeout(seconds):
            for _ in range(10_000):
                if await bus.last(subjects.epoch(subjects.EPOCH_SHARDS - 1)) and await _all_ask(bus):
                    return
                await asyncio.sleep(0.1)


async def _all_ask(bus: Bus) -> bool:
    calls = {
        role: f"CONSUMER.INFO.{subjects.BOARD}.{subjects.consumer(role)}" for role in ROLES if role in builtin_crew()
    }
    return all([(await bus.api(call)).get("num_waiting", 0) >= ROLES[role] for role, call in calls.items()])


class _Run:
    """Lets people work on the board while the faults go on, and waits for the ends of all tasks that were accepted."""

    def __init__(self, options: Options, bus: Bus, url: str) -> None:
        self.missing: list[str] = []
        self._options = options
        self._bus = bus
        broken = BREAKS.get(options.breaks)
        words, sort = (broken.words, broken.sort) if broken else ("", None)
        pace = options.seconds * 0.75
        self._people = People(url, bus, options.seed, options.tasks, pace, words, sort)
        self._records: dict[int, Message] = {}
        self._ended: set[str] = set()
        self._known: set[str] = set()
        self._news = asyncio.Event()

    async def whole(self, attack: Attack, crew: Crew) -> None:
        reader = Reader(self._bus, self._saw)
        reading = asyncio.create_task(reader.run())
        attacking = asyncio.create_task(attack.run())
        try:
            await self._people.run()
            await attacking
            await crew.heal()
            await self._settle()
        finally:
            attacking.cancel()
            reading.cancel()
            await asyncio.gather(reading, attacking, return_exceptions=True)
            await self._people.close()
        lost = self._people.accepted - self._known
        self.missing = [f"accepted: task {name} was accepted and is not there" for name in lost]

    async def _settle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.settle_seconds):
                while not self._people.accepted <= self._ended:
                    self._news.clear()
                    await self._news.wait()
        await asyncio.sleep(1.0)  # what comes late, comes now

    def vanished(self, stored: list[Message]) -> list[str]:
        """Records that were stored once and are gone, although nobody may have taken them away."""
        there = {message.seq for message in stored}
        archived = {m.subject.split(".")[2] for m in stored if b'"type":"task.tombstone"' in m.data}
        found = []
        for seq, message in self._records.items():
            parts = message.subject.split(".")
            expires = message.subject in (subjects.LEASE, subjects.SNAPSHOT)
            if seq not in there and not expires and not (parts[1] == "task" and parts[2] in archived):
                found.append(f"durable at {seq}: {message.subject} was stored and is gone")
        return found

    def merged(self, stored: list[Message]) -> list[Message]:
        """Every record that ever was: what was archived since, or expired, was seen when it was stored."""
        return sorted({**self._records, **{m.seq: m for m in stored}}.values(), key=lambda m: m.seq)

    async def _saw(self, stored: Stored) -> None:
        if stored.subject != FILLER:
            self._records[stored.seq] = Message(*stored)
        parts = stored.subject.split(".")
        if parts[-1] == "final":
            self._ended.add(parts[2])
            self._news.set()
        elif parts[-1] == "spec":
            self._known.add(parts[2])
        self._people.saw(stored)


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
    """The checker's word. What it needs lies in files beside, for whoever runs it by itself."""
    position = history[-1].seq if history else 0
    with (options.folder / "history.jsonl").open("w", encoding="utf-8") as file:
        for line in write_lines(history, {"scope": "board", "position": position}):
            file.write(line + "\n")
    given = settings()
    told = {"roles": given.roles, "steps_per_task": given.steps_per_task, "effects": given.effects}
    (options.folder / "settings.json").write_text(json.dumps(told))
    effects = [json.loads(line) for line in log.read_text().splitlines()]
    report: Report = audit(history, given, effects=effects)
    outcome = Outcome(Counter(), report.counts, dict(report.notes), [str(v) for v in report.violations])
    outcome.rules = Counter(v.rule for v in report.violations)
    return outcome


if __name__ == "__main__":
    sys.exit("run the folder: python bench/chaos --tasks 200")
