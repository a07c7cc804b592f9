"""The supervisor: a thin shell that reads the stream, calls `fold` and `decide`, and publishes what comes out."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from typing import Any

import structlog

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.blackboard.wire import Bus, BusError, Conflict, Fence, Reader, Written, ensure_board, ensure_roles, write
from kokuban.schemas import encode, seal, subjects
from kokuban.schemas.contracts import Crew, builtin_crew
from kokuban.supervisor._lease import TTL_SECONDS, Leadership
from kokuban.supervisor._sweep import SILENCE_SECONDS, Sweeper
from kokuban.supervisor.decide import Command, End, Limits, Order, Release, Revoke, decide

REVIEW_SECONDS = 5.0
log = structlog.get_logger("kokuban.supervisor")


class Supervisor:
    """One of possibly several; only the one that holds the lease decides. `run` until cancelled.

    `limits` bound what is under way; `crew` are the role contracts, the five built-in ones by default. A step is taken
    back when its worker has not been heard for `silence_seconds` (workers speak every second); another supervisor leads
    once the leader has not renewed its lease for `lease_seconds` (at least 1).
    """

    def __init__(
        self,
        bus: Bus,
        *,
        crew: Crew | None = None,
        limits: Limits | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        lease_seconds: int = TTL_SECONDS,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[:128]
        self.board = Board()
        self.leading = asyncio.Event()
        self._bus = bus
        self._crew = crew or builtin_crew()
        self._limits = limits or Limits()
        self._reader = Reader(bus, self._on_record)
        self._leadership = Leadership(bus, self.id, ttl_seconds=lease_seconds, clock=clock)
        self._sweeper = Sweeper(bus, self.board, silence_seconds=silence_seconds, clock=clock)
        self._shards = [asyncio.Lock() for _ in range(subjects.EPOCH_SHARDS)]
        self._dirty: dict[str, None] = {}
        self._starved: dict[str, None] = {}
        self._busy: Counter[str] = Counter()
        self._offered: Counter[str] = Counter()
        self._folded: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Set up the board, fold it, lead when the lease is free. Raises `BusError` when the connection is lost for
        good; whatever was decided until then is on the board."""
        await ensure_board(self._bus)
        await ensure_roles(self._bus, self._crew)
        reading = asyncio.create_task(self._reader.run())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_forward(reading))
                group.create_task(self._sweeper.listen())
                group.create_task(self._lead_for_ever())
        finally:
            reading.cancel()
            for task in self._running:
                task.cancel()
            await asyncio.gather(reading, *self._running, return_exceptions=True)
            if not self._bus.closed.is_set():
                await self._leadership.give_up()

    # ------------------------------------------------------------------ reading

    async def _on_record(self, stored: Stored) -> None:
        applied = fold(self.board, stored)
        self._sweeper.saw(applied, stored)
        while self._folded and self._folded[0][0] <= stored.seq:
            waiting = self._folded.pop(0)[1]
            if not waiting.done():
                waiting.set_result(None)
        if applied.task is not None:
            self._mark(applied.task.id)
        if applied.admitted and self.leading.is_set():
            await self._announce(applied)

    async def _announce(self, applied: Applied) -> None:
        assert applied.task is not None
        for artifact in applied.admitted:
            ref = artifact.ref
            await self._bus.hint(subjects.announcement(applied.task.id, ref.kind, ref.name), encode(ref))

    def _mark(self, task: str) -> None:
        self._dirty[task] = None
        self._wake.set()

    async def _has_folded(self, seq: int) -> None:
        if self.board.last_seq >= seq:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folded.append((seq, waiting))
        self._folded.sort(key=lambda entry: entry[0])
        await waiting

    # ------------------------------------------------------------------ leading

    async def _lead_for_ever(self) -> None:
        await self._reader.caught_up.wait()
        while True:
            await self._leadership.acquire()
            try:
                await self._until_deposed()
            except BusError as error:
                log.warning("leadership interrupted", error=str(error))
            finally:
                self.leading.clear()
            log.info("following", supervisor=self.id)
            await self._leadership.give_up()  # what is left of the lease, so that nobody has to wait for its end

    async def _until_deposed(self) -> None:
        """Keep the lease from its first moment on, beside all that a leader does."""
        keeping = asyncio.create_task(self._leadership.keep())
        others = [asyncio.create_task(self._decide_for_ever()), asyncio.create_task(self._sweep_for_ever())]
        try:
            done, _ = await asyncio.wait([keeping, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (keeping, *others):
                task.cancel()
            await asyncio.gather(keeping, *others, return_exceptions=True)

    async def _take_over(self) -> None:
        """Fence earlier leaders off and fold past the epochs; only then decide."""
        await self._has_folded(await self._leadership.raise_epochs())
        log.info("leading", supervisor=self.id, tasks=len(self.board.tasks), position=self.board.last_seq)
        self._sweeper.start_over()
        self.leading.set()
        for task in self.board.tasks.values():
            if task.final is None:
                self._mark(task.id)

    async def _decide_for_ever(self) -> None:
        """Returns when a decision was refused because another leader's epoch is in force."""
        await self._take_over()
        while True:
            await self._wake.wait()
            if not self.leading.is_set():
                return
            self._wake.clear()
            todo, self._dirty = self._dirty, {}
            for name in (*self._starved, *todo):
                self._decide_one(name)

    def _decide_one(self, name: str) -> None:
        if self._busy[name]:
            return
        free = {
            role: contract.limits.concurrency - self.board.running[role] - self._offered[role]
            for role, contract in self._crew.items()
        }
        commands, starved = decide(self.board.tasks[name], self._crew, self._limits, free, self._sweeper.now())
        if starved:
            self._starved[name] = None
        else:
            self._starved.pop(name, None)
        for command in commands:
            self._start(name, command)

    def _start(self, name: str, command: Command) -> None:
        role = command.role if isinstance(command, Order) else ""
        self._busy[name] += 1
        self._offered[role] += 1
        task = asyncio.create_task(self._carry_out(name, role, command))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry_out(self, name: str, role: str, command: Command) -> None:
        """Publish one command and wait until it is folded: until then its task is not decided about again."""
        try:
            stored = await self._publish(name, command)
            if isinstance(stored, Written):
                await self._has_folded(stored.seq)
            elif isinstance(command, Order | End):
                self.leading.clear()
                self._wake.set()
        except BusError as error:
            log.warning("decision not stored", task=name, command=type(command).__name__, error=str(error))
            await asyncio.sleep(0.5)
        finally:
            self._busy[name] -= 1
            self._offered[role] -= 1
            if not self._busy[name]:
                del self._busy[name]
            self._mark(name)

    async def _publish(self, name: str, command: Command) -> Written | Conflict:
        op = secrets.token_hex(12)
        shard = subjects.shard(name)
        epoch = self._leadership.epochs[shard]
        fields: dict[str, Any] = {
            "id": op, "task": name, "worker": self.id, "fence": epoch,
            "time": self._clock.stamp(),
        }  # fmt: skip
        if isinstance(command, Release | Revoke):
            subject = subjects.register(name, command.role, command.step)
            kind = "step.released" if isinstance(command, Release) else "step.revoked"
            data = seal(command.body, type=kind, step=command.step, role=command.role, **fields)
            log.info(kind, task=name, step=command.step, reason=command.body.reason[:200])
            return await write(self._bus, subject, data, op=op, fence=Fence(subject, command.reg))
        if isinstance(command, Order):
            subject = subjects.work(name, command.role, command.step)
            data = seal(
                command.order, type="step.order", step=command.step, role=command.role, attempt=command.attempt,
                derived_from=tuple(ref.digest for ref in command.order.inputs), **fields,
            )  # fmt: skip
            log.info("step.order", task=name, step=command.step, role=command.role, attempt=command.attempt)
        else:
            subject = subjects.final(name)
            data = seal(command.body, type="task.final", **fields)
            log.info("task.final", task=name, state=command.body.state, reason=command.body.reason[:200])
        async with self._shards[shard]:
            return await write(self._bus, subject, data, op=op, fence=Fence(subjects.epoch(shard), epoch))

    async def _sweep_for_ever(self) -> None:
        """Take back what fell silent or was lost, and look again at what may be overdue."""
        await self.leading.wait()
        loop = asyncio.get_running_loop()
        review = loop.time()
        while self.leading.is_set():
            await asyncio.sleep(0.5)
            for name, command in await self._sweeper.sweep():
                if not self._busy[name]:
                    self._start(name, command)
            if loop.time() - review > REVIEW_SECONDS:
                review = loop.time()
                for name in self._sweeper.tasks_under_way():
                    self._mark(name)


async def _forward(reading: asyncio.Task[None]) -> None:
    """Let the end of the reader be the end of the group."""
    await reading
