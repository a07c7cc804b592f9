"""Payloads that nothing names any more: no record on the board, and no archive that a tombstone names. What is named is
found as a digest anywhere in a record's bytes, so that a new kind of record cannot be forgotten here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Set
from datetime import timedelta

import structlog

from kokuban.blackboard._archive import ArchiveMissing, unpack
from kokuban.blackboard.core import Board, Stored
from kokuban.blackboard.wire import Bus, PayloadMissing, Payloads, Reader

_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")
log = structlog.get_logger("kokuban.garbage")


class PayloadSweep:
    """Removes payloads that nobody has put for `grace` and nothing names. Two tasks may share one: it stays as long as
    either needs it. Whoever puts one again before it is removed keeps it: the removal is by compare-and-set."""

    def __init__(self, bus: Bus, board: Board, grace: timedelta) -> None:
        self._bus = bus
        self._board = board
        self._grace_seconds = grace.total_seconds()
        self._payloads = Payloads(bus)
        self._inside: dict[str, frozenset[str]] = {}  # what the archives name

    async def sweep(self, now: float) -> int:
        """Remove what may go at `now` (server time) and return how many that were. Raises `BusError`."""
        entries = await self._payloads.entries()
        old = {entry.name: entry for entry in entries if now - entry.time >= self._grace_seconds}
        if old:
            named: Set[str] = await self._on_the_board()
            old = {name: entry for name, entry in old.items() if name not in named}
        if old:
            named = await self._in_archives({entry.name for entry in entries})
            old = {name: entry for name, entry in old.items() if name not in named}
        dropped = sum([await self._payloads.drop(entry) for entry in old.values()])
        if dropped:
            log.info("payloads removed", count=dropped, of=len(entries))
        return dropped

    async def _on_the_board(self) -> set[str]:
        """Every digest in any record: read after the list of payloads was, so what is put and named later is not
        missed (it is younger)."""
        found: set[str] = set()

        async def look(stored: Stored) -> None:
            found.update(digest.decode() for digest in _DIGEST.findall(stored.data))

        reader = Reader(self._bus, look)
        reading = asyncio.create_task(reader.run())
        caught_up = asyncio.create_task(reader.caught_up.wait())
        try:
            await asyncio.wait([reading, caught_up], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            caught_up.cancel()
            await asyncio.gather(reading, caught_up, return_exceptions=True)
        return found

    async def _in_archives(self, payloads: Set[str]) -> Set[str]:
        """Which payloads the archives name. One that cannot be read names them all: nothing is removed then."""
        stones = [task.tombstone for task in self._board.tasks.values() if task.tombstone is not None]
        archives = {stone.archive for stone in stones if stone.archive is not None}
        self._inside = {name: inside for name, inside in self._inside.items() if name in archives}
        for name in archives - self._inside.keys():
            try:
                messages = await asyncio.to_thread(unpack, await self._payloads.get(name))
            except (ArchiveMissing, PayloadMissing) as error:
                log.warning("an archive cannot be read: no payload is removed", archive=name, error=str(error)[:200])
                return payloads
            digests = {digest.decode() for message in messages for digest in _DIGEST.findall(message.data)}
            self._inside[name] = frozenset(digests & payloads)
        return frozenset().union(*self._inside.values())
