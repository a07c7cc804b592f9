"""Snapshots: a restart reads the state as it was, and only the rest from the log. The log stays the truth.

A snapshot is taken when a record is folded that stays on the board; its pointer names that record: who loads it asks
the log whether it has that record in that place. Then it works with it at once, and folds the whole log again beside:
when the two do not agree, the snapshot is thrown away and the supervisor ends, to start from the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import importlib.resources
import secrets
import zlib
from importlib.resources.abc import Traversable

import msgspec
import structlog

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored, fold, snapshot
from kokuban.blackboard.wire import Bus, BusError, Fence, PayloadMissing, Payloads, Reader, Refused, Written, write
from kokuban.schemas import BadRecord, Snapshot, open_record, seal, subjects

EVERY_RECORDS = 5_000
KEPT = 3
"""Pointers that stay: the record that the newest one names may be archived before the next is taken."""
MAX_BYTES = 2 * 1024**3
PACE_RECORDS, PACE_SECONDS = 25, 0.005
"""The check against the log takes turns with the work: it rests this long after so many records."""
_PASSING = frozenset({"ctl.lease", "ctl.snapshot"})
_LOOKS = 3
log = structlog.get_logger("kokuban.snapshot")


class SnapshotWrong(Exception):
    """What a snapshot said is not what the log says. It has been thrown away: start again, from the log."""


@functools.cache
def this_release() -> str:
    """Names the form of a board and everything that decides what a record does to it: another release's snapshot may
    look the same and mean something else."""
    found = hashlib.sha256(snapshot.shapes().encode())
    for package in ("kokuban.blackboard.core", "kokuban.schemas"):
        for name, content in sorted(_files(importlib.resources.files(package), package)):
            found.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return found.hexdigest()


def _files(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            found += _files(entry, name)
        elif entry.name.endswith((".py", ".json", ".toml")):
            found.append((name, entry.read_bytes()))
    return found


class Snapshots:
    """Takes snapshots while `taking` is set (a leader does), and loads the last one that fits the log."""

    def __init__(
        self, bus: Bus, board: Board, worker: str, *, every_records: int = EVERY_RECORDS, clock: Clock = SYSTEM
    ) -> None:
        self.taking = False
        self._bus = bus
        self._board = board
        self._worker = worker
        self._every = every_records
        self._clock = clock
        self._payloads = Payloads(bus)
        self._since = 0
        self._taken: tuple[bytes, int, str] | None = None
        self._wake = asyncio.Event()

    # ------------------------------------------------------------------ loading

    async def load(self) -> bool:
        """Fill the board, which must be empty, from the newest snapshot that fits the log; False when there is none.
        Read on after `board.last_seq`. Raises `BusError` when the server does not answer."""
        for pointer in reversed(await self._pointers()):
            try:
                loaded = await self._read(pointer)
            except (BadRecord, msgspec.DecodeError, snapshot.BadSnapshot, PayloadMissing, zlib.error) as error:
                log.warning("snapshot is not usable", pointer=pointer.seq, why=str(error)[:300])
                continue
            for field in dataclasses.fields(Board):
                setattr(self._board, field.name, getattr(loaded, field.name))
            log.info("snapshot loaded", position=loaded.last_seq, tasks=len(loaded.tasks))
            return True
        return False

    async def _read(self, pointer: Stored) -> Board:
        body = msgspec.json.decode(open_record(pointer.data).body, type=Snapshot)
        if body.format != this_release():
            raise snapshot.BadSnapshot("it is of another release")
        there = await self._bus.patiently(lambda: self._bus.read(body.position))
        if there is None or body.position >= pointer.seq or open_record(there.data).id != body.record:
            raise snapshot.BadSnapshot(f"the log does not have its record at {body.position}")
        packed = await self._payloads.get(body.payload)
        loaded = await asyncio.to_thread(_unpack, packed)
        if (loaded.last_seq, loaded.slim, loaded.filtered) != (body.position, self._board.slim, False):
            raise snapshot.BadSnapshot("it is of another position or board")
        return loaded

    async def _pointers(self) -> list[Stored]:
        return await self._bus.patiently(lambda: self._bus.history(subjects.SNAPSHOT))

    async def throw_away(self) -> None:
        """Remove every pointer: the next start reads the log. Raises `BusError`."""
        for pointer in await self._pointers():
            await self._delete(pointer)

    # ------------------------------------------------------------------ taking

    def saw(self, applied: Applied, stored: Stored) -> None:
        """Note a folded record, and take a snapshot now when one is due: the board stands exactly at this record."""
        record = applied.record
        if record is None or record.type in _PASSING:
            return
        self._since += 1
        # What it costs grows with the tasks on the board, so it is taken the less often.
        due = self.taking and self._taken is None and self._since >= max(self._every, len(self._board.tasks))
        if due and not applied.ignored:
            self._since = 0
            self._taken = snapshot.dump(self._board), stored.seq, record.id
            self._wake.set()

    async def run(self) -> None:
        """Store what was taken, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            assert self._taken is not None
            try:
                await self._store(*self._taken)
            except BusError as error:
                log.warning("snapshot not stored", error=str(error))
            finally:
                self._taken = None

    async def _store(self, data: bytes, position: int, record: str) -> None:
        packed = await asyncio.to_thread(zlib.compress, data, 3)
        payload = await self._payloads.put(packed)
        pointers = await self._pointers()
        op = secrets.token_hex(12)
        body = Snapshot(payload, position, record, this_release())
        sealed = seal(body, id=op, type="ctl.snapshot", worker=self._worker, time=self._clock.stamp())
        fence = Fence(subjects.SNAPSHOT, pointers[-1].seq if pointers else 0)
        if isinstance(await write(self._bus, subjects.SNAPSHOT, sealed, op=op, fence=fence), Written):
            log.info("snapshot", position=position, bytes=len(packed), tasks=len(self._board.tasks))
            for pointer in pointers[: 1 - KEPT]:
                await self._delete(pointer)

    async def _delete(self, pointer: Stored) -> None:
        try:
            call = f"STREAM.MSG.DELETE.{subjects.BOARD}"
            await self._bus.patiently(lambda: self._bus.api(call, {"seq": pointer.seq, "no_erase": True}))
        except Refused:  # it is gone already
            log.debug("pointer was gone", seq=pointer.seq)


def _unpack(packed: bytes) -> Board:
    inflate = zlib.decompressobj()
    data = inflate.decompress(packed, MAX_BYTES)
    if inflate.unconsumed_tail or not inflate.eof:
        raise snapshot.BadSnapshot("it is cut off, or larger than any snapshot")
    return snapshot.load(data)


class Check:
    """Folds the whole log beside a board that came from a snapshot, and compares the two at the same position.
    `agreed` is set once they agree."""

    def __init__(self, bus: Bus, board: Board) -> None:
        self.agreed = asyncio.Event()
        self._bus = bus
        self._board = board
        self._log = Board(slim=board.slim)
        self._waits_at = 0
        self._passed = asyncio.Event()
        self._looks = 0
        self._folded = 0
        self._found: list[str] = []
        self._wrong = asyncio.Event()

    def saw(self, stored: Stored) -> None:
        """Note a record that the board has just folded."""
        if stored.seq >= self._waits_at > 0:
            if stored.seq == self._waits_at:
                self._compare()
            self._waits_at = 0
            self._passed.set()

    async def run(self) -> None:
        """Returns when they agree. Raises `SnapshotWrong`, `BusError`."""
        reading = asyncio.create_task(Reader(self._bus, self._on_record).run())
        ends = [asyncio.create_task(self.agreed.wait()), asyncio.create_task(self._wrong.wait())]
        try:
            await asyncio.wait([reading, *ends], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            if not self.agreed.is_set():
                raise SnapshotWrong("; ".join(self._found[:5]))
            log.info("snapshot agrees with the log", position=self._log.last_seq)
        finally:
            for task in (reading, *ends):
                task.cancel()
            await asyncio.gather(reading, *ends, return_exceptions=True)
            self._log = Board()

    async def _on_record(self, stored: Stored) -> None:
        fold(self._log, stored)
        self._folded += 1
        if self._folded % PACE_RECORDS == 0:
            await asyncio.sleep(PACE_SECONDS)
        if stored.seq == self._board.last_seq:
            self._compare()
        elif stored.seq > self._board.last_seq:
            self._waits_at = stored.seq
            self._passed.clear()
            await self._passed.wait()

    def _compare(self) -> None:
        """More than once when they differ: a record of a task that is being archived may be gone before this fold came
        to it, and the tombstone that makes up for it not yet be there."""
        if self.agreed.is_set():
            return
        self._found = snapshot.differences(self._board, self._log)
        self._looks += 1
        if not self._found:
            self.agreed.set()
        elif self._looks >= _LOOKS:
            self._wrong.set()
