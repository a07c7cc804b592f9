"""What keeps a board in shape beside the deciding: archive, intake, snapshots, payloads, forgotten
memories. One thing to call for each moment of a supervisor's life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored
from kokuban.blackboard.memory import Forgetting
from kokuban.blackboard.wire import Bus, BusError
from kokuban.supervisor._archive import Archiver, Retention
from kokuban.supervisor._garbage import PayloadSweep
from kokuban.supervisor._intake import Gauge
from kokuban.supervisor._snapshot import EVERY_RECORDS, Check, Snapshots, SnapshotWrong

PAYLOADS_SECONDS = 3_600.0
"""How often payloads are looked through, and how long after the beginning of a leadership first."""
log = structlog.get_logger("kokuban.upkeep")


class Upkeep:
    """`restore` before reading, `saw` for every folded record, `check` beside everything, `run` while leading.

    `now` is the server's time; `epoch_of` the leader's epoch for a task; `folded` waits until a sequence is folded;
    `shards` are held, one for each, while something is written under an epoch.
    """

    def __init__(
        self, bus: Bus, board: Board, worker: str, *, now: Callable[[], float], epoch_of: Callable[[str], int],
        folded: Callable[[int], Awaitable[None]], retention: Retention | None = None, clock: Clock = SYSTEM,
        snapshot_every: int = EVERY_RECORDS, payloads_seconds: float = PAYLOADS_SECONDS,
        shards: Sequence[asyncio.Lock] | None = None,
    ) -> None:  # fmt: skip
        retention = retention or Retention()
        self._bus = bus
        self._board = board
        self._now = now
        self._snapshots = Snapshots(bus, board, worker, every_records=snapshot_every, clock=clock)
        self._gauge = Gauge(bus, board, worker, folded, clock=clock)
        self._archiver = Archiver(
            bus, board, worker, now=now, epoch_of=epoch_of, folded=folded, pressed=lambda: self._gauge.pressed,
            retention=retention, clock=clock, shards=shards,
        )  # fmt: skip
        self._forgetting = Forgetting(bus)
        self._payloads = PayloadSweep(bus, board, retention.payloads)
        self._payloads_seconds = payloads_seconds
        self._check: Check | None = None

    async def restore(self) -> bool:
        """Fill the empty board from a snapshot; read on after `board.last_seq`. False: there is none that fits."""
        if not await self._snapshots.load():
            return False
        self._check = Check(self._bus, self._board)
        self._archiver.restored()
        return True

    def saw(self, applied: Applied, stored: Stored) -> None:
        """Note a record that the board has just folded."""
        self._archiver.saw(applied, stored)
        self._gauge.saw(stored)
        self._forgetting.saw(stored)
        self._snapshots.saw(applied, stored)
        if self._check is not None:
            self._check.saw(stored)

    async def check(self) -> None:
        """Compare a restored board with the log. Returns when they agree, or when nothing was restored. Raises
        `SnapshotWrong` after having thrown the snapshot away, `BusError` when the connection is closed."""
        if self._check is None:
            return
        try:
            await self._check.run()
        except SnapshotWrong as error:
            log.error("a snapshot contradicts the log and is thrown away", differences=str(error))
            await self._snapshots.throw_away()
            raise

    async def run(self, leading: asyncio.Event) -> None:
        """The work of a leader, until cancelled: begins before its epochs are written, so that a snapshot can stand on
        one of them. Nothing is deleted on the word of a snapshot."""
        self._snapshots.taking = True
        try:
            await leading.wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._snapshots.run())
                group.create_task(self._gauge.run())
                group.create_task(self._remove())
        finally:
            self._snapshots.taking = False

    async def _remove(self) -> None:
        if self._check is not None:
            await self._check.agreed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._archiver.run())
            group.create_task(self._forgetting.run())
            group.create_task(self._sweep_payloads())

    async def _sweep_payloads(self) -> None:
        while True:
            await asyncio.sleep(self._payloads_seconds)
            try:
                await self._payloads.sweep(self._now())
            except BusError as error:
                log.warning("payloads were not looked through", error=str(error))
