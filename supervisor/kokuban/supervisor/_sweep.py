"""The sweeper: which steps are held by nobody alive, and which orders were lost (DESIGN 4.6).

Heartbeats are hints that come over core NATS; silence leads to a compare-and-set on the register, which alone transfers
ownership. All times are this process's monotonic clock, or the server's.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog
from nats.aio.msg import Msg

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored
from kokuban.blackboard.wire import Bus, BusError, ack_floor, ensure_roles
from kokuban.schemas import Released, subjects
from kokuban.supervisor._commands import Release

SILENCE_SECONDS = 5.0
LOST_AFTER_SECONDS = 2.0
STOPPED_SECONDS = 2.0
"""A pause between two sweeps above this means that we were stopped, and may have heard nothing for that reason."""
log = structlog.get_logger("kokuban.sweeper")

Key = tuple[str, str]
"""Task and step."""


class Heartbeat(msgspec.Struct):
    """What a worker says it holds: task, step, fence."""

    holds: list[tuple[str, str, int]]


class Sweeper:
    """Keeps, per running step, since when it has been silent, and proposes releases."""

    def __init__(
        self, bus: Bus, board: Board, *, silence_seconds: float = SILENCE_SECONDS, clock: Clock = SYSTEM
    ) -> None:
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._bus = bus
        self._board = board
        self._heard: dict[Key, tuple[int, float]] = {}
        self._ordered: dict[Key, float] = {}
        self._server_time = (0.0, 0.0)
        self._swept = self._clock.monotonic()
        self._decoder = msgspec.json.Decoder(Heartbeat)

    def saw(self, applied: Applied, stored: Stored) -> None:
        """Note a folded record."""
        mono = self._clock.monotonic()
        self._server_time = (stored.time, mono)
        record, task = applied.record, applied.task
        if record is None or task is None or applied.ignored:
            return
        if record.type in ("task.final", "task.tombstone"):
            for held in [held for held in (*self._heard, *self._ordered) if held[0] == task.id]:
                self._forget(held)
        if record.step is None or record.type in ("step.journal", "step.granted", "artifact"):
            return
        key = (task.id, record.step)
        self._forget(key)
        if record.type == "step.order":
            self._ordered[key] = mono
        elif record.type == "step.claimed":
            self._heard[key] = (stored.seq, mono)

    def _forget(self, key: Key) -> None:
        self._ordered.pop(key, None)
        self._heard.pop(key, None)

    def restored(self) -> None:
        """The board was loaded: what is under way on it is watched from now on."""
        mono = self._clock.monotonic()
        for key, step in self._board.under_way.items():
            if step.status == "claimed":
                self._heard[key] = (step.fence, mono)
            else:
                self._ordered[key] = mono

    def start_over(self) -> None:
        """A new leader gives everybody the full time again."""
        mono = self._clock.monotonic()
        self._heard = {key: (fence, mono) for key, (fence, _) in self._heard.items()}
        self._ordered = dict.fromkeys(self._ordered, mono)

    def now(self) -> float:
        """The server's time, in seconds since 1970: the last record's, carried on by our monotonic clock."""
        stamp, mono = self._server_time
        return stamp + (self._clock.monotonic() - mono)

    def tasks_under_way(self) -> set[str]:
        """Tasks with a claimed step."""
        return {task for task, _ in self._heard}

    async def listen(self) -> None:
        """Hear heartbeats until cancelled."""
        subscription = await self._bus.subscribe(f"{subjects.HEARTBEATS}.*.*", self._on_heartbeat)
        try:
            await asyncio.Event().wait()
        finally:
            if not self._bus.closed.is_set():
                await subscription.unsubscribe()

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            beat = self._decoder.decode(message.data)
        except msgspec.DecodeError:
            return
        mono = self._clock.monotonic()
        for task, step, fence in beat.holds:
            known = self._heard.get((task, step))
            if known is not None and known[0] == fence:
                self._heard[(task, step)] = (fence, mono)

    async def sweep(self) -> list[tuple[str, Release]]:
        """Steps to take back now."""
        mono = self._clock.monotonic()
        stopped, self._swept = mono - self._swept > STOPPED_SECONDS, mono
        if stopped or not self._bus.connected:
            self.start_over()
            return []
        found = [
            self._release(key, Released("silent", f"nothing heard of its worker for {self._silence_seconds:g} s"))
            for key, (_, heard) in self._heard.items()
            if mono - heard > self._silence_seconds
        ]
        old = [key for key, since in self._ordered.items() if mono - since > LOST_AFTER_SECONDS]
        return found + await self._lost(old)

    async def _lost(self, old: list[Key]) -> list[tuple[str, Release]]:
        """Orders that the consumer counts as settled although nobody claimed the step."""
        floors: dict[str, int | None] = {}
        found = []
        for key in old:
            task = self._board.tasks.get(key[0])
            step = task.steps.get(key[1]) if task is not None else None
            if step is None:  # it ended while we asked about another
                self._forget(key)
                continue
            if step.role not in floors:
                try:
                    floors[step.role] = await ack_floor(self._bus, step.role)
                    if floors[step.role] is None:
                        log.warning("consumer of work orders is gone: made anew", role=step.role)
                        await ensure_roles(self._bus, [step.role])
                except BusError as error:
                    log.debug("no consumer state", role=step.role, error=str(error))
                    floors[step.role] = None
            floor = floors[step.role]
            if key not in self._ordered:  # it was claimed, or its task has ended, while we asked
                continue
            if floor is not None and floor >= step.order_seq and step.status == "ordered":
                found.append(self._release(key, Released("lost", "the order was settled and nobody claimed the step")))
            else:
                self._ordered[key] = self._clock.monotonic()
        return found

    def _release(self, key: Key, body: Released) -> tuple[str, Release]:
        step = self._board.tasks[key[0]].steps[key[1]]
        return key[0], Release(step.id, step.role, step.reg, body)
