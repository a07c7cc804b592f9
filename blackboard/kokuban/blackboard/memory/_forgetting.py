"""Deleting what was forgotten: everything under a tombstone but the tombstone, also what comes late. Only a user that
may set the board up can; the leading supervisor does it for everybody."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from kokuban.blackboard._reading import Reading
from kokuban.blackboard.core import Stored
from kokuban.blackboard.memory._fold import said
from kokuban.blackboard.wire import Bus, BusError, Refused
from kokuban.schemas import subjects

AGAIN_SECONDS = 1.0
_GONE = (10043, 10057)
"""The server's codes for a message that is deleted already."""
log = structlog.get_logger("kokuban.memory")


async def forgotten_deleted(bus: Bus, *, tenant: str) -> tuple[int, set[tuple[str, str]]]:
    """Delete what a tenant's tombstones stand for (`*`: every tenant of this board); how many records went, and which
    tenants' memories are forgotten. Raises `BusError`: what was not deleted then is deleted by the next call."""
    records: dict[tuple[str, str], list[int]] = defaultdict(list)
    gone: set[tuple[str, str]] = set()
    reading = Reading(bus, subjects.memories(tenant))
    try:
        while (stored := await reading.next(wait=False)) is not None:
            if said(stored.subject).word == "forgotten":
                gone.add(_whose(stored))
            else:
                records[_whose(stored)].append(stored.seq)
    finally:
        await reading.stop()
    doomed = sorted(seq for whose in gone for seq in records[whose])
    for seq in doomed:
        await _delete(bus, seq)
    return len(doomed), gone


async def _delete(bus: Bus, seq: int) -> None:
    call = f"STREAM.MSG.DELETE.{subjects.BOARD}"
    try:
        await bus.patiently(lambda: bus.api(call, {"seq": seq}))
    except Refused as error:
        if error.code not in _GONE:  # somebody was faster
            raise


def _whose(stored: Stored) -> tuple[str, str]:
    return stored.subject.split(".")[2], said(stored.subject).name


class Forgetting:
    """The leader's part: `saw` every record that the board folds, `run` while leading."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._gone: set[tuple[str, str]] = set()
        self._due = asyncio.Event()
        self._due.set()
        self._looking = False

    def saw(self, stored: Stored) -> None:
        """Note a record."""
        if not stored.subject.startswith(subjects.MEMORY):
            return
        if said(stored.subject).word == "forgotten":
            self._gone.add(_whose(stored))
        if self._looking or _whose(stored) in self._gone:  # a look that is under way may have passed it already
            self._due.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled. A server that is away is waited for."""
        while True:
            await self._due.wait()
            self._due.clear()
            self._looking = True
            try:
                deleted, gone = await forgotten_deleted(self._bus, tenant="*")
                self._gone |= gone
                if deleted:
                    log.info("forgotten memories deleted", records=deleted)
            except BusError as error:
                log.warning("forgotten memories are not all deleted yet", error=str(error))
                self._due.set()
                await asyncio.sleep(AGAIN_SECONDS)
            finally:
                self._looking = False
