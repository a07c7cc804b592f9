"""Archived tasks: how their records are packed into one payload, and how they are read back.

The payload is the task's export (`kokuban.blackboard.audit`), compressed: every record byte for byte, each chained to
the one before, with what the board says about leaders and registered kinds. So what is archived can still be audited,
and folds to what it was.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from kokuban.blackboard._content import Content
from kokuban.blackboard.audit._export import BadExport, Message, read_lines, write_lines
from kokuban.blackboard.core import Applied, Board, Stored, Task, fold
from kokuban.blackboard.registered import load_kinds
from kokuban.blackboard.wire import Bus, PayloadMissing, Payloads
from kokuban.schemas import BadRecord, Final, Tombstone, encode, open_record, subjects

MAX_BYTES = 1024**3
"""What an archive may unpack to."""
T = TypeVar("T")


class ArchiveMissing(LookupError):
    """A task was archived, and its archive is gone or damaged. The tombstone still tells how it ended."""


class Past(NamedTuple):
    """An archived task as its records say. `applied` are the records of its subjects with what each did, in order;
    `content` reads its artifacts."""

    task: Task
    final: Final
    applied: tuple[tuple[Stored, Applied], ...]
    content: Content


def pack(task: str, messages: Sequence[Stored]) -> bytes:
    """The archive of a task: the same messages give the same bytes."""
    about = {"scope": "task", "task": task, "position": messages[-1].seq if messages else 0}
    lines = write_lines((Message(*message) for message in messages), about)
    return zlib.compress("".join(f"{line}\n" for line in lines).encode(), 6)


def unpack(data: bytes) -> list[Stored]:
    """The messages of an archive. Raises `ArchiveMissing` when it is damaged, too large, or no archive."""
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(data, MAX_BYTES).decode()
        if inflate.unconsumed_tail or not inflate.eof:
            raise BadExport("it is cut off, or larger than any archive")
        messages = read_lines(text.split("\n")[:-1]).messages
    except (zlib.error, ValueError) as error:
        raise ArchiveMissing(f"the archive is damaged: {error}") from error
    return [Stored(message.seq, message.subject, message.time, message.data) for message in messages]


async def tombstone_of(bus: Bus, task: str) -> Tombstone | None:
    """The task's tombstone; None when it has none. Only a leader can have written it."""
    stored = await bus.patiently(lambda: bus.find(subjects.buried(subjects.token(task, "task"))))
    if stored is None:
        return None
    try:
        record = open_record(stored.data)
        return msgspec.json.decode(record.body, type=Tombstone) if record.type == "task.tombstone" else None
    except (BadRecord, msgspec.DecodeError):
        return None


def keeps_key(stored: Stored, tombstone: Tombstone) -> bool:
    """Whether this is the copy of the tombstone that keeps the task's key: it stands where the spec stood."""
    address = subjects.parse(stored.subject)
    if address is None or address.kind != "spec" or b'"type":"task.tombstone"' not in stored.data:
        return False
    try:
        record = open_record(stored.data)
    except BadRecord:
        return False
    return record.type == "task.tombstone" and bytes(record.body) == encode(tombstone)


async def past(bus: Bus, payloads: Payloads, task: str, tombstone: Tombstone) -> Past:
    """The archived task. Raises `ArchiveMissing`."""
    if tombstone.archive is None:
        raise ArchiveMissing(f"task {task} ended {tombstone.state}; its records were removed without an archive")
    try:
        data = await payloads.get(tombstone.archive)
    except PayloadMissing as error:
        raise ArchiveMissing(f"task {task} ended {tombstone.state} and was archived: {error}") from error
    kept, board = unpack(data), Board(filtered=True)
    await load_kinds(bus, board)
    folded = [(message, fold(board, message)) for message in kept]
    found = board.tasks.get(task)
    if found is None or found.final is None or (found.spec_seq, found.final_seq) != (tombstone.spec, tombstone.final):
        raise ArchiveMissing(f"task {task}: its archive {tombstone.archive} is of another task")
    found.tombstone, found.dropped = tombstone, tombstone.dropped
    applied = tuple(one for one in folded if one[1].task is found)
    return Past(found, found.final, applied, Content(_Kept(kept), payloads))


class _Kept:
    """Reads records from an archive, as `Content` reads them from a board."""

    def __init__(self, messages: Sequence[Stored]) -> None:
        self._by_seq = {message.seq: message for message in messages}
        self._last = {message.subject: message for message in messages}

    async def read(self, seq: int) -> Stored | None:
        return self._by_seq.get(seq)

    async def find(self, subject: str) -> Stored | None:
        return self._last.get(subject)

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await ask()
