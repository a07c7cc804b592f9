"""Content outside the stream, by hash: a JetStream object store, one object a digest.

It has the layout that other clients' object-store commands know, but is asked with our own requests: an outage is
ridden out, nobody waits for a piece that is gone, and two who put the same at once do not delete each other's pieces.
"""

from __future__ import annotations

import base64
import hashlib
import secrets

import msgspec

from kokuban.blackboard.wire._bus import Bus, BusError, Refused
from kokuban.blackboard.wire._setup import ensure_payloads
from kokuban.blackboard.wire._write import MESSAGE_ID
from kokuban.schemas import digest, subjects

CHUNK_BYTES = 128 * 1024
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


class Payloads:
    """Bytes by digest. The same content is stored once; what comes back is checked against its name."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._made = False

    async def put(self, data: bytes) -> str:
        """Store `data` durably and return its digest. Raises `Refused` (a full store: not landed) and `NoAnswer`
        (unknown); putting again is harmless."""
        name = digest(data)
        if await self._find(name) is not None:
            return name
        nuid = secrets.token_hex(11)
        pieces = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
        for number, piece in enumerate(pieces):
            await self._publish(f"{_SPACE}.C.{nuid}", piece, {MESSAGE_ID: f"{nuid}.{number}"})
        check = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        entry = _Object(name, nuid, size=len(data), chunks=len(pieces), digest=f"SHA-256={check}")
        await self._publish(_entry(name), msgspec.json.encode(entry), {MESSAGE_ID: nuid, "Nats-Rollup": "sub"})
        return name

    async def get(self, name: str) -> bytes:
        """The content of a digest. Raises `PayloadMissing`, `NoAnswer`."""
        entry = await self._find(name)
        if entry is None:
            raise PayloadMissing(f"payload {name} is not stored")
        chunks = f"{_SPACE}.C.{entry.nuid}"
        pieces = await self._bus.patiently(lambda: self._bus.history(chunks, stream=_STREAM))
        data = b"".join(piece.data for piece in pieces)
        if digest(data) != name:
            raise PayloadMissing(f"payload {name}: what is stored does not match its digest")
        return data

    async def _find(self, name: str) -> _Object | None:
        if not self._made:
            await ensure_payloads(self._bus, _STREAM, [f"{_SPACE}.C.>", f"{_SPACE}.M.>"])
            self._made = True
        stored = await self._bus.patiently(lambda: self._bus.last(_entry(name), stream=_STREAM))
        if stored is None:
            return None
        try:
            entry = msgspec.json.decode(stored.data, type=_Object)
        except msgspec.DecodeError as error:
            raise PayloadMissing(f"payload {name}: its entry is not readable") from error
        return None if entry.deleted else entry

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        ack = await self._bus.patiently(lambda: self._bus.publish(subject, data, headers))
        if ack.code:
            raise Refused(ack.code, f"payload: {ack.description}")


def _entry(name: str) -> str:
    return f"{_SPACE}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
