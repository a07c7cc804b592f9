"""A run with three supervisor processes that are killed and stopped while two processes of workers go on; by a seed.

What it gives is what was stored, and, for each time that a leader was hit, when the next one led by the server's clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.decisions import SHARDS, Limits, Message
from kokuban.blackboard import Client
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, Reader, change_board_limits, ensure_board, ensure_roles
from kokuban.blackboard.wire.embedded import die_with_parent
from kokuban.schemas import BoardLimits, TenantLimits, open_record
from kokuban.schemas.contracts import builtin_crew
from support.processes import end
from support.team import FIX_ADD, FIX_DOUBLE, edit, finish, plan, script, workspace
from support.waiting import cancelled, eventually

LIMITS = Limits({"planner": 3, "coder": 3, "verifier": 3, "integrator": 2}, {"north": 3, "south": 4}, 2)
PROGRAM = Path(__file__).with_name("run_several.py")


@dataclass
class Hit:
    """Something that was done to a supervisor at `at` (seconds since 1970); `leader` if it led or held the lease."""

    at: float
    what: str
    pid: int
    leader: bool


@dataclass
class Gap:
    """From a hit on a leader until others' epochs were all in force, and until the next decision, in seconds."""

    what: str
    until_led: float
    until_decided: float | None


@dataclass
class Run:
    """How it went. `messages` are all records that ever were, `accepted` the tasks that clients were told of."""

    seed: int
    hits: list[Hit] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    def gaps(self) -> list[Gap]:
        """For each hit on a leader, with nothing done to its successor meanwhile."""
        led = [(m.time, _worker(m)) for m in self.messages if m.subject == f"kb.ctl.epoch.{SHARDS - 1}"]
        decided = [m.time for m in self.messages if ".work." in m.subject or m.subject.endswith(".final")]
        hits = [hit for hit in self.hits if hit.leader]
        found = []
        for number, hit in enumerate(hits):
            until = hits[number + 1].at if number + 1 < len(hits) else float("inf")
            first = next((at for at, _ in led if hit.at < at < until), None)
            if first is not None:
                next_one = next((at for at in decided if first <= at < until), None)
                found.append(Gap(hit.what, first - hit.at, None if next_one is None else next_one - hit.at))
        return found

    def unhurt(self) -> int:
        """How often the leader changed although nobody had done anything to it."""
        led = [m.time for m in self.messages if m.subject == f"kb.ctl.epoch.{SHARDS - 1}"][1:]
        hits = [hit.at for hit in self.hits if hit.leader]
        used: set[float] = set()
        for at in led:
            used.add(max((hit for hit in hits if hit < at and hit not in used), default=-at))
        return sum(hit < 0 for hit in used)


class Member:
    """A process that is started again and again."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.ready = False
        self.stopped = False
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[None] | None = None

    @property
    def awake(self) -> bool:
        return self._process is not None and self._process.returncode is None and self.ready and not self.stopped

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, str(PROGRAM), *self._arguments, env=environment, stdout=asyncio.subprocess.PIPE,
                stderr=log, preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip
        self.ready = self.stopped = False
        self._hearing = asyncio.create_task(self._hear(self._process))

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        if await process.stdout.readline() == b"ready\n" and process is self._process:
            self.ready = True

    def send(self, sent: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sent)
        self.stopped = sent == signal.SIGSTOP

    async def kill(self) -> None:
        if self._process is not None:
            await end(self._process)
        if self._hearing is not None:
            await cancelled(self._hearing)


class Several:
    """Three supervisors, two processes of workers, and somebody who reads all of it."""

    def __init__(self, bus: Bus, url: str, home: Path, seed: int, options: Sequence[str] = ()) -> None:
        self.run = Run(seed)
        model = team_script(home)
        self.supervisors = [
            Member("supervisor", url, str(home), model, *options, log=home / f"supervisor-{n}.log") for n in range(3)
        ]
        self.workers = [Member("workers", url, str(home / f"w{n}"), model, log=home / f"w{n}.log") for n in range(2)]
        self._bus = bus
        self._dice = random.Random(seed)
        self._epochs: dict[str, str] = {}
        self._lease = ""
        self._ended = 0
        self._healing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Everything runs, until the end of the block."""
        reading = asyncio.create_task(Reader(self._bus, self._saw).run())
        try:
            await asyncio.gather(*(member.start() for member in (*self.supervisors, *self.workers)))
            await eventually(lambda: all(m.ready for m in (*self.supervisors, *self.workers)), seconds=300)
            yield
        finally:
            await cancelled(*self._healing)
            for member in (*self.supervisors, *self.workers):
                await member.kill()
            await cancelled(reading)

    async def _saw(self, stored: Stored) -> None:
        self.run.messages.append(message := Message(*stored))
        if stored.subject.startswith("kb.ctl.epoch."):
            self._epochs[stored.subject] = _worker(message)
        elif stored.subject == "kb.ctl.lease":
            self._lease = _worker(message)
        elif stored.subject.endswith(".final"):
            self._ended += 1

    def leader(self) -> Member | None:
        """Who leads, if it is awake and has all epochs."""
        who = set(self._epochs.values())
        if len(self._epochs) < SHARDS or len(who) > 1 or self._lease not in who:
            return None
        return next((m for m in self.supervisors if m.awake and f"-{m.pid}-" in self._lease), None)

    async def attack(
        self, hits: int, *, stop_seconds: tuple[float, float], pace_seconds: float, only_stops: bool = False
    ) -> None:
        """Hit one supervisor after the other, mostly the leader; at least one other is always awake."""
        for _ in range(hits):
            at_leader, kill = self._dice.random() < 0.6 or only_stops, self._dice.random() < 0.5 and not only_stops
            rest, pause = self._dice.uniform(*stop_seconds), self._dice.uniform(0.1, 2.0)
            choice, wait = self._dice.random(), self._dice.uniform(0.1, 2 * pace_seconds)
            if at_leader:
                await eventually(self.leader, seconds=20, what="somebody leads")
            await asyncio.sleep(wait)
            await eventually(lambda: sum(m.awake for m in self.supervisors) > 1, seconds=60, what="another is awake")
            awake = [m for m in self.supervisors if m.awake]
            victim = (self.leader() if at_leader else None) or awake[int(choice * len(awake))]
            names = {*self._epochs.values(), self._lease}
            leads = any(f"-{victim.pid}-" in name for name in names)
            self.run.hits.append(Hit(time.time(), "killed" if kill else f"stopped {rest:.1f} s", victim.pid, leads))
            if kill:
                await victim.kill()
                self._heal(victim.start(), pause)
            else:
                victim.send(signal.SIGSTOP)
                self._heal(self._go_on(victim), rest)

    async def _go_on(self, member: Member) -> None:
        member.send(signal.SIGCONT)

    def _heal(self, work: object, after: float) -> None:
        async def heal() -> None:
            await asyncio.sleep(after)
            await work  # type: ignore[misc]

        task = asyncio.create_task(heal())
        self._healing.add(task)
        task.add_done_callback(self._healing.discard)

    async def submit(self, board: Client, tasks: int, folder: Path, hits: int) -> None:
        """Tasks of two tenants, with two coders' steps each: a third at once, the others while it is hit again and
        again, so that whoever takes over finds work."""
        source, first = workspace(folder), tasks // 3
        for number in range(tasks):
            due = (number - first) * hits // (tasks - first)
            await eventually(lambda due=due: len(self.run.hits) >= due, seconds=3_600)  # type: ignore[misc]
            tenant = ("north", "south")[number % 2]
            self.run.accepted.append(
                await board.submit(f"Task {number}", workspace=source, tenant=tenant, key=f"n-{number}")
            )

    async def ended(self, seconds: float) -> None:
        """Wait until every accepted task has ended, and what comes late has come."""
        await eventually(lambda: self._ended >= len(self.run.accepted), seconds=seconds, what="all tasks have ended")
        while self._healing:
            await asyncio.wait(self._healing)


def team_script(home: Path) -> str:
    """A plan with two coders at once, each of whom does its part in one turn."""

    def does(step: str, change: tuple[str, str]) -> dict[str, Any]:
        return {**edit(step, change), "when": {"role": "coder", "step": step, "turn": 1}, "times": None}

    steps = plan(("add", "coder", ()), ("double", "coder", ()))
    rest = {**finish(None), "times": None}
    return script(home / "script.json", steps, does("add", FIX_ADD), does("double", FIX_DOUBLE), rest)


def _worker(message: Message) -> str:
    return open_record(message.data).worker or ""


async def several(
    url: str, home: Path, seed: int, *, tasks: int = 40, hits: int = 20, stop_seconds: tuple[float, float] = (3, 8),
    pace_seconds: float = 0.3, only_stops: bool = False, options: Sequence[str] = (), replicas: int = 1,
    prepare: Callable[[Bus], Awaitable[object]] | None = None,
    until: Callable[[Several], Awaitable[object]] = lambda group: group.ended(60),
) -> Run:  # fmt: skip
    """A whole run on the server at `url`, which `prepare`, if any, fills before; it ends when `until` does."""
    async with await Bus.connect(url) as bus, await Client.connect(url) as board:
        await ensure_board(bus, replicas=replicas)
        if prepare is not None:
            await prepare(bus)
        await ensure_roles(bus, builtin_crew(), ack_wait_seconds=3)
        tenants = {name: TenantLimits(concurrency=limit) for name, limit in LIMITS.tenants.items()}
        wanted = BoardLimits(roles=dict(LIMITS.roles), tenants=tenants, steps_per_task=LIMITS.per_task)
        await change_board_limits(bus, lambda _: wanted)
        group = Several(bus, url, home, seed, options)
        async with group.going():
            attacking = asyncio.create_task(
                group.attack(hits, stop_seconds=stop_seconds, pace_seconds=pace_seconds, only_stops=only_stops)
            )
            submitting = asyncio.create_task(group.submit(board, tasks, home / "workspace", hits))
            try:
                await asyncio.gather(attacking, submitting)
                await until(group)
            finally:
                await cancelled(attacking, submitting)
            last = await bus.patiently(bus.last_seq)
            await eventually(lambda: group.run.messages[-1].seq >= last)
        return group.run
