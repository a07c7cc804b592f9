"""Content behind a reference: artifacts by their record, files by their digest."""

from __future__ import annotations

import base64
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

import msgspec

from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import PayloadMissing, Payloads
from kokuban.blackboard.workspace import Change, File, Tree, unpack
from kokuban.schemas import BadRecord, Done, FileChange, Ref, Trust, Wire, digest, open_record, subjects
from kokuban.schemas.kinds import decode_artifact

T = TypeVar("T")
INLINE_BYTES = 256 * 1024
"""Content above this travels outside its record."""


class Records(Protocol):
    """Where records are read: the board, or an archive."""

    async def read(self, seq: int) -> Stored | None: ...

    async def find(self, subject: str) -> Stored | None: ...

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T: ...


class Content:
    """Reads what records refer to. What comes back matches the digest that was asked for."""

    def __init__(self, bus: Records, payloads: Payloads) -> None:
        self._bus = bus
        self._payloads = payloads
        self._trees: dict[str, Tree] = {}

    async def artifact(self, ref: Ref) -> Wire:
        """The artifact that `ref` names. Raises `LookupError` when its record is gone or holds something else."""
        return decode_artifact(ref.kind, await self.raw(ref))

    async def trust(self, ref: Ref) -> Trust:
        """The label of the record that carries an artifact; of one that is gone, the worst."""
        stored = await self._bus.patiently(lambda: self._bus.read(ref.seq))
        try:
            return open_record(stored.data).trust if stored is not None else "untrusted"
        except BadRecord:
            return "untrusted"

    async def raw(self, ref: Ref) -> bytes:
        """The artifact's JSON, byte for byte. Raises `LookupError`."""
        stored = await self._bus.patiently(lambda: self._bus.read(ref.seq))
        if stored is None:
            raise LookupError(f"artifact {ref.kind} {ref.name!r}: its record {ref.seq} is gone")
        try:
            record = open_record(stored.data)
            done = msgspec.json.decode(record.body, type=Done)
        except (BadRecord, msgspec.ValidationError) as error:
            raise LookupError(f"artifact {ref.kind} {ref.name!r}: record {ref.seq} holds something else") from error
        for result in done.results:
            if result.digest == ref.digest:
                if not isinstance(result.body, msgspec.UnsetType):
                    return bytes(result.body)
                return await self._stored(ref, subjects.artifact(
                    record.task or "", record.role or "", ref.kind, ref.name, record.fence
                ))  # fmt: skip
        raise LookupError(f"artifact {ref.kind} {ref.name!r}: record {ref.seq} holds no {ref.digest}")

    async def _stored(self, ref: Ref, subject: str) -> bytes:
        stored = await self._bus.patiently(lambda: self._bus.find(subject))
        body = bytes(open_record(stored.data).body) if stored else b""
        if digest(body) != ref.digest:
            raise LookupError(f"artifact {ref.kind} {ref.name!r}: its stored content is gone")
        return body

    async def keep(self, data: bytes) -> str:
        """Store what no artifact names, for as long as payloads are; its digest. Raises `BusError`."""
        return await self._payloads.put(data)

    async def kept(self, name: str) -> bytes | None:
        """What was kept under a digest, None when it is gone. Raises `BusError`."""
        try:
            return await self._payloads.get(name)
        except PayloadMissing:
            return None

    async def tree(self, name: str | None) -> Tree:
        """The files of a packed tree, by the digest of the pack; none for None. Kept for the next call."""
        if name is None:
            return {}
        if name not in self._trees:
            if len(self._trees) >= 16:
                self._trees.pop(next(iter(self._trees)))
            self._trees[name] = unpack(await self._payloads.get(name))
        return self._trees[name]

    async def changes(self, changes: Iterable[FileChange]) -> tuple[Change, ...]:
        """File changes with their content, read from outside where it is not in them."""
        return tuple([await self._change(change) for change in changes])

    async def files(self, changes: Iterable[FileChange]) -> Tree:
        """The changed files as they are after the change; deleted ones are not there."""
        full = await self.changes(changes)
        return {c.path: File(c.content, c.executable) for c in full if c.content is not None}

    async def _change(self, change: FileChange) -> Change:
        if change.op == "delete":
            content = None
        elif change.text is not None:
            content = change.text.encode()
        elif change.base64 is not None:
            content = base64.b64decode(change.base64, validate=True)
        else:
            content = await self._payloads.get(change.after or "")
        return Change(change.path, change.op, change.before, change.after, change.executable, content)

    async def to_wire(
        self, changes: Iterable[Change], *, room_bytes: int = INLINE_BYTES // 2
    ) -> tuple[FileChange, ...]:
        """Changes for a record. Once `room_bytes` are used up, contents are stored outside, by digest."""
        result = []
        for change in changes:
            shape = functools.partial(
                FileChange, path=change.path, op=change.op, before=change.before, after=change.after,
                executable=change.executable,
            )  # fmt: skip
            if change.content is None:
                result.append(shape())
            elif len(change.content) > room_bytes:
                await self._payloads.put(change.content)
                result.append(shape())
            else:
                room_bytes -= len(change.content)
                try:
                    result.append(shape(text=change.content.decode("utf-8")))
                except UnicodeDecodeError:
                    result.append(shape(base64=base64.b64encode(change.content).decode()))
        return tuple(result)
