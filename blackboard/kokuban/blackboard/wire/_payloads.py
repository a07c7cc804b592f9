"""Content outside the stream, by hash: a JetStream object store, one object a digest."""

from __future__ import annotations

import asyncio

import nats.errors
import nats.js.errors
from nats.js.api import ObjectStoreConfig, StorageType
from nats.js.object_store import ObjectStore

from kokuban.blackboard.wire._bus import Bus, BusError, NoAnswer
from kokuban.schemas import digest, subjects


class PayloadMissing(BusError):
    """No content under that digest, or content that does not match it. Nothing was written."""


class Payloads:
    """Bytes by digest. The same content is stored once; what comes back is checked against its name."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._store: ObjectStore | None = None
        self._lock = asyncio.Lock()

    async def put(self, data: bytes) -> str:
        """Store `data` durably and return its digest. Raises `NoAnswer`: unknown whether it landed; putting again is
        harmless."""
        name = digest(data)
        try:
            store = await self._open()
            try:
                await store.get_info(name)
            except nats.js.errors.ObjectNotFoundError:
                await store.put(name, data)
        except (nats.errors.Error, TimeoutError) as error:
            raise NoAnswer(f"payload {name}: {error!r}") from error
        return name

    async def get(self, name: str) -> bytes:
        """The content of a digest. Raises `PayloadMissing`, `NoAnswer`."""
        try:
            store = await self._open()
            data = (await asyncio.wait_for(store.get(name), 60)).data or b""
        except (nats.js.errors.NotFoundError, nats.js.errors.ObjectNotFoundError) as error:
            raise PayloadMissing(f"payload {name} is not stored") from error
        except (nats.errors.Error, TimeoutError) as error:
            raise NoAnswer(f"payload {name}: {error!r}") from error
        if digest(data) != name:
            raise PayloadMissing(f"payload {name} does not match its digest")
        return data

    async def _open(self) -> ObjectStore:
        async with self._lock:
            if self._store is None:
                stream = self._bus._nats.jetstream()
                try:
                    self._store = await stream.object_store(subjects.PAYLOADS)
                except nats.js.errors.NotFoundError:
                    config = ObjectStoreConfig(bucket=subjects.PAYLOADS, storage=StorageType.FILE)
                    self._store = await stream.create_object_store(subjects.PAYLOADS, config)
        return self._store
