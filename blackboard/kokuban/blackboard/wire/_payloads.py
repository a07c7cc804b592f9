"""Content outside the stream, by hash: a JetStream object store, one object a digest.

It has the layout that other clients' object-store commands know, but is asked with our own requests: an outage is
ridden out, nobody waits for a piece that is gone, and two who put the same at once do not delete each other's pieces.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from typing import NamedTuple

import msgspec

from kokuban.blackboard.wire._bus import Bus, BusError, Refused
from kokuban.blackboard.wire._setup import ensure_payloads
from kokuban.blackboard.wire._write import ANOTHER_IN_FLIGHT, EXPECTED, MESSAGE_ID, WRONG_LAST_SEQUENCE
from kokuban.schemas import digest, subjects

CHUNK_BYTES = 128 * 1024
MARKED_SECONDS = 600.0
"""How long a payload that we put needs no new mark."""
_STREAM = f"OBJ_{subjects.PAYLOADS}"
_SPACE = f"$O.{subjects.PAYLOADS}"


class PayloadMissing(BusError):
    """No content under that digest, or content that does not match it. Nothing was written."""


class _Object(msgspec.Struct):
    name: str
    nuid: str
    bucket: str = subjects.PAYLOADS
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    options: dict[str, int] = msgspec.field(default_factory=lambda: {"max_chunk_size": CHUNK_BYTES})


class _Found(NamedTuple):
    entry: _Object
    seq: int
    data: bytes


class Entry(NamedTuple):
    """A stored payload: its digest, and when (server time, in seconds since 1970) somebody last put it."""

    name: str
    seq: int
    time: float


class Payloads:
    """Bytes by digest. The same content is stored once; what comes back is checked against its name."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._made = False
        self._marked: dict[str, float] = {}

    async def put(self, data: bytes) -> str:
        """Store `data` durably and return its digest. Raises `Refused` (a full store: not landed) and `NoAnswer`
        (unknown); putting again is harmless. What is there already is marked as wanted anew: whoever removes what
        nothing names goes by the age of the mark."""
        name = digest(data)
        while (found := await self._find(name)) is not None:
            if await self._mark(name, found):
                return name
        nuid = secrets.token_hex(11)
        pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        for number, piece in enumerate(pieces):
            await self._publish(f"{_SPACE}.C.{nuid}", piece, {MESSAGE_ID: f"{nuid}.{number}"})
        check = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        entry = _Object(name, nuid, size=len(data), chunks=len(pieces), digest=f"SHA-256={check}")
        await self._publish(_entry(name), msgspec.json.encode(entry), {MESSAGE_ID: nuid, "Nats-Rollup": "sub"})
        self._note(name)
        return name

    async def _mark(self, name: str, found: _Found) -> bool:
        """Give the entry a new age. False when it is another one by now, or gone."""
        now = asyncio.get_running_loop().time()
        if now - self._marked.get(name, -MARKED_SECONDS) < MARKED_SECONDS:
            return True
        mark = secrets.token_hex(11)
        headers = {MESSAGE_ID: mark, EXPECTED: str(found.seq), "Nats-Rollup": "sub"}
        ack = await self._bus.patiently(lambda: self._bus.publish(_entry(name), found.data, headers))
        if ack.code in (WRONG_LAST_SEQUENCE, ANOTHER_IN_FLIGHT):
            return False
        if ack.code:
            raise Refused(ack.code, f"payload: {ack.description}")
        self._note(name)
        return True

    def _note(self, name: str) -> None:
        self._marked.pop(name, None)
        self._marked[name] = asyncio.get_running_loop().time()
        if len(self._marked) > 1_024:
            self._marked.pop(next(iter(self._marked)))

    async def get(self, name: str) -> bytes:
        """The content of a digest. Raises `PayloadMissing`, `NoAnswer`."""
        found = await self._find(name)
        if found is None:
            raise PayloadMissing(f"payload {name} is not stored")
        chunks = f"{_SPACE}.C.{found.entry.nuid}"
        pieces = await self._bus.patiently(lambda: self._bus.history(chunks, stream=_STREAM))
        data = b"".join(piece.data for piece in pieces)
        if digest(data) != name:
            raise PayloadMissing(f"payload {name}: what is stored does not match its digest")
        return data

    async def entries(self) -> list[Entry]:
        """What is stored, in the order in which it was last wanted."""
        await self._ensure()
        entries = await self._bus.patiently(lambda: self._bus.history(f"{_SPACE}.M.*", stream=_STREAM))
        named = ((_name(stored.subject), stored) for stored in entries)
        return [Entry(name, stored.seq, stored.time) for name, stored in named if name]

    async def drop(self, entry: Entry) -> bool:
        """Remove what nobody names any more, unless it was wanted anew since. False: it stays, or was gone already."""
        found = await self._find(entry.name)
        if found is None or found.seq != entry.seq:
            return False
        try:
            call = f"STREAM.MSG.DELETE.{_STREAM}"
            await self._bus.patiently(lambda: self._bus.api(call, {"seq": entry.seq, "no_erase": True}))
        except Refused:  # it is not there: somebody was faster
            return False
        chunks = {"filter": f"{_SPACE}.C.{found.entry.nuid}"}
        await self._bus.patiently(lambda: self._bus.api(f"STREAM.PURGE.{_STREAM}", chunks))
        return True

    async def _ensure(self) -> None:
        if not self._made:
            await ensure_payloads(self._bus, _STREAM, [f"{_SPACE}.C.>", f"{_SPACE}.M.>"])
            self._made = True

    async def _find(self, name: str) -> _Found | None:
        await self._ensure()
        stored = await self._bus.patiently(lambda: self._bus.find(_entry(name), stream=_STREAM))
        if stored is None:
            return None
        try:
            entry = msgspec.json.decode(stored.data, type=_Object)
        except msgspec.DecodeError as error:
            raise PayloadMissing(f"payload {name}: its entry is not readable") from error
        return None if entry.deleted else _Found(entry, stored.seq, stored.data)

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        ack = await self._bus.patiently(lambda: self._bus.publish(subject, data, headers))
        if ack.code:
            raise Refused(ack.code, f"payload: {ack.description}")


def _entry(name: str) -> str:
    return f"{_SPACE}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _name(subject: str) -> str:
    """The digest in an entry's subject, '' for what we never wrote."""
    try:
        return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except ValueError:  # neither base64 nor text
        return ""
