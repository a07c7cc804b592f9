"""Archiving: a finished task becomes one compressed payload and a tombstone, and its records are deleted (DESIGN 4.8).

The order is what makes it safe to die anywhere: the archive is stored and read back; the tombstone is written under the
leader's epoch, on a subject that is the leader's alone; when the fold has taken it, a copy takes the spec's place by
compare-and-set, which keeps the key; only then are records deleted, one by one in ascending order, the old spec last.
Whoever leads next finds the tombstone, puts the copy there if it is missing, and sweeps whatever else stands under it.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from kokuban.blackboard._archive import keeps_key, pack
from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored, Task
from kokuban.blackboard.wire import (
    Bus,
    BusError,
    Conflict,
    Fence,
    Payloads,
    Refused,
    Written,
    crash_point,
    write,
)
from kokuban.schemas import BadRecord, TaskSpec, Tombstone, open_record, seal, subjects

SWEEP_SECONDS = 1.0
AT_ONCE = 4
PRESSED_SECONDS = 2.0
"""How old the end of a task is at least before a full store has it archived early."""
AGAIN_SECONDS = 30.0
"""When a task is looked at again that others still wait for, or that could not be archived."""
NOT_THERE = (10043, 10057)
"""The server's codes for a message that is deleted already."""
_MOST_ORPHANS = 10_000
log = structlog.get_logger("kokuban.archive")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things stay, by the server's clock. `finished`: a task's records after its end, 7 days by default; then
    it is archived. `tombstones`: its key, its end and its archive after that, 90 days by default; 0 is for ever.
    `payloads`: content that no record or archive names, since somebody last stored it, 1 day by default; it must be
    longer than a worker may take from storing content to the record that names it."""

    finished: timedelta = timedelta(days=7)
    tombstones: timedelta = timedelta(days=90)
    payloads: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        if self.finished < timedelta(0) or self.payloads < timedelta(0):
            raise ValueError("retention: an age below 0")
        if timedelta(0) != self.tombstones < timedelta(seconds=1):
            raise ValueError("retention: tombstones stay for at least a second, or for ever (0)")


class Archiver:
    """Archives what has been over for long enough, and sweeps what is written under a tombstone. Only a leader's `run`
    does anything; every supervisor's `saw` keeps the list, so that the next leader has it.

    `now` is the server's time; `epoch_of` the leader's epoch for a task; `folded` waits until a sequence is folded;
    `pressed` says that the store is filling up: then tasks are archived before their time, oldest first. `shards` are
    held, one for each, while something is written under an epoch.
    """

    def __init__(
        self, bus: Bus, board: Board, worker: str, *, now: Callable[[], float], epoch_of: Callable[[str], int],
        folded: Callable[[int], Awaitable[None]], pressed: Callable[[], bool] = lambda: False,
        retention: Retention | None = None, clock: Clock = SYSTEM, shards: Sequence[asyncio.Lock] | None = None,
    ) -> None:  # fmt: skip
        self.retention = retention or Retention()
        self._shards = shards or [asyncio.Lock() for _ in range(subjects.EPOCH_SHARDS)]
        self._bus = bus
        self._board = board
        self._worker = worker
        self._now = now
        self._epoch_of = epoch_of
        self._folded = folded
        self._pressed = pressed
        self._clock = clock
        self._payloads = Payloads(bus)
        self._ended: list[tuple[float, str]] = []  # a heap by the time of the end
        self._later: list[tuple[float, tuple[float, str]]] = []
        self._unswept: dict[str, None] = {}
        self._orphans: list[Stored] = []
        self._epochs: dict[int, tuple[int, list[Stored]]] = {}  # a shard's chain, and the epoch up to which it goes

    def restored(self) -> None:
        """The board was loaded: it tells what is over, but not what is left under tombstones."""
        self._ended = [(t.final_time, t.id) for t in self._board.tasks.values() if t.final and t.tombstone is None]
        heapq.heapify(self._ended)
        self._unswept = {task.id: None for task in self._board.tasks.values() if task.tombstone is not None}

    def saw(self, applied: Applied, stored: Stored) -> None:
        """Note a folded record."""
        task, record = applied.task, applied.record
        if task is None:
            if applied.ignored == "no such task" and len(self._orphans) < _MOST_ORPHANS:
                self._orphans.append(stored)
        elif applied.ignored:
            if task.tombstone is not None and not keeps_key(stored, task.tombstone):
                self._unswept[task.id] = None
        elif record is not None and record.type == "task.final":
            heapq.heappush(self._ended, (task.final_time, task.id))
        elif task.tombstone is not None:
            self._unswept[task.id] = None

    async def run(self) -> None:
        """Archive and sweep until cancelled. A server that is away is waited for."""
        while True:
            try:
                if await self.sweep():
                    continue
            except BusError as error:
                log.warning("archiving was interrupted", error=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> int:
        """Do what is due now, a few tasks of it; returns how many were archived or swept. Raises `BusError`: what was
        not finished is taken up by the next call."""
        while self._orphans:
            await self._drop_orphan(self._orphans[-1])
            self._orphans.pop()
        unswept = list(self._unswept)[:AT_ONCE]
        await asyncio.gather(*(self._sweep_one(name) for name in unswept))
        archived = await asyncio.gather(*(self._try(entry) for entry in self._due()))
        return len(unswept) + sum(archived)

    async def _try(self, entry: tuple[float, str]) -> bool:
        try:
            if await self._archive_one(entry[1]):
                return True
        except (BusError, LookupError, BadRecord, msgspec.DecodeError) as error:
            log.warning("not archived yet", task=entry[1], error=repr(error)[:300])
        self._later.append((self._now() + AGAIN_SECONDS, entry))
        return False

    def _due(self) -> list[tuple[float, str]]:
        """The next few tasks to archive, oldest end first."""
        now = self._now()
        again = [entry for when, entry in self._later if when <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for entry in again:
            heapq.heappush(self._ended, entry)
        age = PRESSED_SECONDS if self._pressed() else self.retention.finished.total_seconds()
        age = min(age, self.retention.finished.total_seconds())
        found: list[tuple[float, str]] = []
        while self._ended and self._ended[0][0] + age <= now and len(found) < AT_ONCE:
            entry = heapq.heappop(self._ended)
            task = self._board.tasks.get(entry[1])
            if task is None or task.final is None or task.tombstone is not None or entry in found:
                continue
            if _wanted(self._board, task):
                self._later.append((now + AGAIN_SECONDS, entry))
            else:
                found.append(entry)
        return found

    # ------------------------------------------------------------------ one task

    async def _archive_one(self, name: str) -> bool:
        """Archive one task. False when another leader decides about it now. Raises `LookupError` when its records are
        not all there."""
        found = await self._bus.patiently(lambda: self._bus.history(subjects.task_records(name)))
        messages = [message for message in found if message.subject != subjects.buried(name)]  # one that did not count
        task = self._board.tasks[name]
        spec = next((message for message in messages if message.seq == task.spec_seq), None)
        if task.tombstone is not None:
            return True
        if spec is None or not any(
            message.seq == task.final_seq and _is(message, "task.final") for message in messages
        ):
            raise LookupError("its spec or its end is not on the board")
        crash_point("archive:begin")
        around = await self._around(name, messages[-1].seq)
        data = await asyncio.to_thread(pack, name, sorted((*around, *messages), key=lambda message: message.seq))
        archive = await self._payloads.put(data)
        await self._payloads.get(archive)  # it can be read, and is what its digest says
        crash_point("archive:stored")
        if not await self._bury(task, spec, archive):
            return False
        log.info("archived", task=name, records=len(messages), bytes=len(data), archive=archive)
        crash_point("archive:buried")
        await self._sweep_one(name)
        return True

    async def _around(self, name: str, until: int) -> list[Stored]:
        """What the board says about leaders and registered kinds, as far as a reader of the task needs it."""
        shard = subjects.shard(name)
        subject, now = subjects.epoch(shard), self._board.epochs.get(shard, 0)
        known, chain = self._epochs.get(shard, (0, []))
        if known != now:
            chain = await self._bus.patiently(lambda: self._bus.history(subject))
            self._epochs[shard] = now, chain
        kinds: list[Stored] = []
        if self._board.kinds:
            kinds = await self._bus.patiently(lambda: self._bus.history(subjects.REGISTERED_KINDS))
        return [message for message in (*chain, *kinds) if message.seq <= until]

    async def _bury(self, task: Task, spec: Stored, archive: str) -> bool:
        """Write the tombstone under the leader's epoch, and wait until it is folded. False when another leader's epoch
        is in force: then the server has refused it."""
        record = open_record(spec.data)
        body, final = msgspec.json.decode(record.body, type=TaskSpec), task.final
        assert final is not None
        stone = Tombstone(
            final.state, final.reason[:2_000], spec.seq, task.final_seq, task.tenant, body.key, record.sha256, archive,
            task.usage, round(self.retention.tombstones.total_seconds()), task.dropped,
        )  # fmt: skip
        shard, epoch = subjects.shard(task.id), self._epoch_of(task.id)
        async with self._shards[shard]:
            stored = await self._put(task, subjects.buried(task.id), stone, Fence(subjects.epoch(shard), epoch), epoch)
        await self._folded(stored.seq if isinstance(stored, Written) else stored.last)
        now = self._board.tasks.get(task.id)
        if now is not None and now.tombstone is None:
            log.warning("not buried: another leader's epoch is in force", task=task.id)
            return False
        return now is not None

    async def _put(self, task: Task, subject: str, stone: Tombstone, when: Fence, epoch: int = 0) -> Written | Conflict:
        op = secrets.token_hex(12)
        data = seal(
            stone, id=op, type="task.tombstone", task=task.id, parent=task.parent, worker=self._worker, fence=epoch,
            time=self._clock.stamp(),
        )  # fmt: skip
        ttl = f"{stone.keep_seconds}s" if stone.keep_seconds else None
        return await write(self._bus, subject, data, op=op, fence=when, ttl=ttl)

    async def _keep_key(self, task: Task, stone: Tombstone, standing: Sequence[Stored]) -> int:
        """See to it that the tombstone's copy stands on the spec's subject, and return its sequence. It is written
        after the tombstone and lasts as long, so the key is free only when the tombstone has had its time."""
        subject = subjects.spec(task.id)
        while True:
            there = [message for message in standing if message.subject == subject]
            copy = next((message.seq for message in there if keeps_key(message, stone)), None)
            if copy is not None:
                return copy
            fence = Fence(subject, there[-1].seq if there else 0)  # over whatever a client may have put there
            stored = await self._put(task, subject, stone, fence)
            if isinstance(stored, Written):
                return stored.seq
            standing = await self._bus.patiently(lambda: self._bus.history(subject))

    async def _sweep_one(self, name: str) -> None:
        """Delete what stands under a task's tombstone: its records, and what was written too late. The tombstone and
        its copy stay."""
        task = self._board.tasks.get(name)
        if task is None or task.tombstone is None:  # its time is over, and its key may be in use again
            self._unswept.pop(name, None)
            return
        stone, spec, position = task.last_seq, task.tombstone.spec, self._board.last_seq
        self._unswept.pop(name, None)
        try:
            messages = await self._bus.patiently(lambda: self._bus.history(subjects.task_records(name)))
            if not any(message.seq == stone and _is(message, "task.tombstone") for message in messages):
                return  # the server has taken it away: what is left belongs to no task
            kept = (stone, await self._keep_key(task, task.tombstone, messages))
            crash_point("archive:kept")
            left = [message for message in messages if message.seq <= position and message.seq not in kept]
            for message in (*(m for m in left if m.seq != spec), *(m for m in left if m.seq == spec)):
                crash_point("archive:delete")
                await self._delete(message.seq)
        except BaseException:
            self._unswept[name] = None
            raise

    async def _drop_orphan(self, message: Stored) -> None:
        """Delete what was written under no task: it would stand in the way of one that comes."""
        address = subjects.parse(message.subject)
        assert address is not None
        subject = subjects.spec(address.task)
        spec = await self._bus.patiently(lambda: self._bus.find(subject))
        if spec is None or spec.seq > message.seq:
            await self._delete(message.seq)

    async def _delete(self, seq: int) -> None:
        call, body = f"STREAM.MSG.DELETE.{subjects.BOARD}", {"seq": seq, "no_erase": True}
        try:
            await self._bus.patiently(lambda: self._bus.api(call, body))
        except Refused as error:
            if error.code not in NOT_THERE:
                raise


def _is(message: Stored, kind: str) -> bool:
    try:
        return open_record(message.data).type == kind
    except BadRecord:
        return False


def _wanted(board: Board, task: Task) -> bool:
    """Whether somebody still needs the task: one that waits for its end, one below it that goes on, or one above it,
    whose budget it counts in."""
    names, above = {*task.dependents, *task.children}, task.parent
    while above and above not in names:
        names.add(above)
        parent = board.tasks.get(above)
        above = parent.parent if parent else None
    return any((other := board.tasks.get(name)) is not None and other.final is None for name in names)
