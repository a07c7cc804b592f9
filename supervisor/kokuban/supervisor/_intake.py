"""Intake: new tasks are taken while the store has room. It closes at a high-water mark, so that what was accepted can
still end, and opens again by itself once the archiver has made room."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Board, Stored
from kokuban.blackboard.wire import Bus, BusError, Fence, Written, write
from kokuban.schemas import Intake, seal, subjects

HIGH_WATER, LOW_WATER = 0.80, 0.70
"""Shares of the store: closed from the first on, open again below the second."""
LOOK_SECONDS = 3.0
LOOK_SHARE = 0.01
"""Looks again at once after having read this share of the store as new records."""
RECORD_BYTES = 150
"""What a record takes beside its payload, roughly: its subject, headers and the store's own."""
log = structlog.get_logger("kokuban.intake")


class Gauge:
    """Says whether new tasks are taken. Only a leader's `run` does anything; `saw` tells it how fast the store fills.
    `folded` waits until a sequence is folded."""

    def __init__(
        self, bus: Bus, board: Board, worker: str, folded: Callable[[int], Awaitable[None]], *, clock: Clock = SYSTEM
    ) -> None:
        self._bus = bus
        self._board = board
        self._worker = worker
        self._folded = folded
        self._clock = clock
        self._limit = 0
        self._new = 0
        self._full = asyncio.Event()

    @property
    def pressed(self) -> bool:
        """Whether intake is closed, as the board says."""
        return self._board.intake is not None and not self._board.intake.open

    def saw(self, stored: Stored) -> None:
        """Note a folded record."""
        self._new += len(stored.data) + RECORD_BYTES
        if self._limit and self._new > LOOK_SHARE * self._limit:
            self._full.set()

    async def run(self) -> None:
        """Look after intake until cancelled."""
        while True:
            try:
                await self.look()
            except BusError as error:
                log.warning("the store's size is not known", error=str(error))
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._full.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Close or open intake when the store's size calls for it. Raises `BusError`."""
        self._full.clear()
        self._new = 0
        used, self._limit = await self._size()
        share, closed = used / self._limit if self._limit else 0.0, self.pressed
        if (closed and share < LOW_WATER) or (not closed and share >= HIGH_WATER):
            await self._say(Intake(closed, used, self._limit))

    async def _size(self) -> tuple[int, int]:
        """Bytes used and the most there may be, 0 for no limit: of the stream, or of the account if that is nearer to
        its end."""
        info = await self._bus.api(f"STREAM.INFO.{subjects.BOARD}")
        used, limit = int(info["state"]["bytes"]), max(0, int(info["config"]["max_bytes"]))
        account = await self._account()
        if account is not None and (not limit or account[0] / account[1] > used / limit):
            return account
        return used, limit

    async def _account(self) -> tuple[int, int] | None:
        """What all streams together use, where the account has a limit. What a stream has reserved counts as used by
        nobody: only what is stored does."""
        try:
            info = await self._bus.api("INFO")
        except BusError:  # not everybody may ask; the stream's own limit is left
            return None
        limit = int(info.get("limits", {}).get("max_storage", -1))
        return (int(info.get("storage", 0)), limit) if limit > 0 else None

    async def _say(self, body: Intake) -> None:
        last = await self._bus.patiently(lambda: self._bus.last(subjects.INTAKE))
        op = secrets.token_hex(12)
        data = seal(body, id=op, type="ctl.intake", worker=self._worker, time=self._clock.stamp())
        fence = Fence(subjects.INTAKE, last.seq if last else 0)
        stored = await write(self._bus, subjects.INTAKE, data, op=op, fence=fence)
        if isinstance(stored, Written):
            log.info("intake", open=body.open, used_bytes=body.used_bytes, limit_bytes=body.limit_bytes)
            await self._folded(stored.seq)
