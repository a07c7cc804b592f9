"""Reading a board's history for an export: the records as they were stored, of one task or of all."""

from __future__ import annotations

from kokuban.blackboard import _archive
from kokuban.blackboard._reading import Reading
from kokuban.blackboard.audit import Message
from kokuban.blackboard.client import NoSuchTask
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, PayloadMissing, Payloads
from kokuban.schemas import BadRecord, open_record, subjects


async def history_of(bus: Bus, task: str | None) -> list[Message]:
    """Every record of the board; or those of a task, of all tasks below it, and of the board itself (epochs, limits …).
    What was archived is read from its archive. Raises `NoSuchTask`, `LookupError` when an archive is gone,
    `BusError`."""
    wanted = None if task is None else {subjects.token(task, "task")}
    found: dict[int, Stored] = {}
    reading = Reading(bus, None)
    try:
        while (stored := await reading.next(wait=False)) is not None:
            address = subjects.parse(stored.subject)
            if address is None:
                if stored.subject.startswith("kb.ctl."):
                    found[stored.seq] = stored
                continue
            if address.kind in ("spec", "buried"):
                _below(stored, address.task, wanted)
            if wanted is None or address.task in wanted:
                found[stored.seq] = stored
                if address.kind == "buried":
                    found |= await _archived(bus, address.task, stored)
    finally:
        await reading.stop()
    if task is not None and not any(f".{task}." in stored.subject for stored in found.values()):
        raise NoSuchTask(f"task: there is no {task!r} on this board")
    return [Message(*found[seq]) for seq in sorted(found)]


def _below(stored: Stored, task: str, wanted: set[str] | None) -> None:
    """A task that stands below a wanted one is wanted, too: its spec or tombstone comes after the other's."""
    try:
        if wanted is not None and open_record(stored.data).parent in wanted:
            wanted.add(task)
    except BadRecord:
        return


async def _archived(bus: Bus, task: str, stored: Stored) -> dict[int, Stored]:
    """The records that a tombstone stands for."""
    if b'"type":"task.tombstone"' not in stored.data:
        return {}
    tombstone = await _archive.tombstone_of(bus, task)
    if tombstone is None or tombstone.archive is None:
        return {}
    try:
        kept = _archive.unpack(await Payloads(bus).get(tombstone.archive))
    except (_archive.ArchiveMissing, PayloadMissing) as error:
        raise LookupError(f"task {task}: {error}") from error
    return {one.seq: one for one in kept}
