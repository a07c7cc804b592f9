"""The typed async client: submit, watch, status, result. The rest of Kokuban reads the board through it too."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from kokuban.blackboard._answers import Approval, Ended, Kin, Lineage, NotVoted, Told, Voted
from kokuban.blackboard._archive import ArchiveMissing, past, tombstone_of
from kokuban.blackboard._content import Content
from kokuban.blackboard._events import Event, events_of
from kokuban.blackboard._feed import Feed
from kokuban.blackboard._people import People
from kokuban.blackboard._reading import Reading
from kokuban.blackboard._spending import Spending
from kokuban.blackboard._submit import (
    NO_CONTENT,
    InvalidRequest,
    InvalidTask,
    KeyInUse,
    NoSuchArtifact,
    NoSuchGate,
    NoSuchTask,
    StoreFull,
    check_spec,
    full,
    person_name,
    read_sources,
    task_id,
)
from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Applied, Board, Stored, Task, fold
from kokuban.blackboard.registered import load_kinds
from kokuban.blackboard.wire import Bus, BusError, Conflict, Fence, NoAnswer, Payloads, Refused, ensure_board, write
from kokuban.blackboard.wire.embedded import store_credential
from kokuban.blackboard.workspace import File, Tree, pack, scan
from kokuban.schemas import (
    KINDS,
    Budget,
    Deliverable,
    Final,
    Intake,
    Record,
    Ref,
    TaskSpec,
    Tombstone,
    Usage,
    digest,
    encode,
    open_record,
    seal,
    subjects,
)
from kokuban.schemas.records import State

DEFAULT_URL = "nats://127.0.0.1:4222"
STORE_IS_FULL = 10077
"""The server's code for a stream that is at its `max_bytes`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended: `state` is done, failed, cancelled, deadline, out_of_budget, dependency_failed, refused or
    dead. `deliverable` and `files` (the changed files as they are now; a deleted one is missing) are there when it is
    done; `checked` is false when nobody gave a check. `blocked` are planned steps that were never done, `unconfirmed`
    steps whose worker had not said that it stopped."""

    task: str
    state: State
    reason: str
    checked: bool
    usage: Usage
    deliverable: Deliverable | None
    files: Tree
    blocked: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()

    def as_folder(self) -> Tree:
        """The result as files to write out: `files/…`, `changes.diff`, `report.md`, `manifest.json`."""
        if self.deliverable is None:
            return {}
        manifest = {
            "task": self.task, "checked": self.checked, "base": self.deliverable.base, "tree": self.deliverable.tree,
            "parts": self.deliverable.manifest, "cites": self.deliverable.cites,
        }  # fmt: skip
        folder = {f"files/{path}": file for path, file in self.files.items()}
        folder["changes.diff"] = File(self.deliverable.diff.encode(), False)
        folder["report.md"] = File(self.deliverable.report.encode(), False)
        folder["manifest.json"] = File(msgspec.json.format(encode(manifest), indent=2) + b"\n", False)
        return dict(sorted(folder.items()))


class Client(People):
    """A connection to a board. Closed is closed: connect again.

    >>> async with await Client.connect("nats://127.0.0.1:4222") as board:      # doctest: +SKIP
    ...     task = await board.submit("Fix the failing test", workspace=Path("."), checks=["python -m unittest"])
    ...     async for event in board.watch(task):
    ...         print(event.event, event.step, event.text)
    ...     outcome = await board.result(task)
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._payloads = Payloads(bus)
        self._content = Content(bus, self._payloads)
        self._feed = Feed(bus)

    @classmethod
    async def connect(
        cls, url: str | None = None, *, name: str = "kokuban client", credentials: Path | None = None
    ) -> Client:
        """Connect to `url`, else KOKUBAN_NATS_URL, else the local default, and make the board if it is not there.
        `credentials` is a file that `kokuban auth` wrote, else that of KOKUBAN_CREDENTIALS, else the client's of the
        store `.kokuban` here if that is whose server is asked; a server without accounts needs none. Raises
        `CannotConnect`."""
        url = url or os.environ.get("KOKUBAN_NATS_URL") or DEFAULT_URL
        if credentials is None:
            named = os.environ.get("KOKUBAN_CREDENTIALS")
            credentials = Path(named) if named else store_credential(url, "client")
        bus = await Bus.connect(url, name=name, credentials=credentials)
        try:
            await ensure_board(bus)
        except BaseException:
            await bus.close()
            raise
        return cls(bus)

    async def close(self) -> None:
        """Close the connection. Safe to call twice."""
        await self._bus.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        return self._bus.url

    # ------------------------------------------------------------------ submit

    async def submit(
        self,
        goal: str,
        *,
        workspace: Path | None = None,
        sources: Sequence[Path] = (),
        checks: Sequence[str] = (),
        key: str | None = None,
        attempts: int = 3,
        check_seconds: int = 60,
        steps: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        seconds: int | None = None,
        budget: Budget | None = None,
        tenant: str = "default",
        priority: int = 0,
        deadline_seconds: int | None = None,
        after: Sequence[str] = (),
        replans: int = 1,
        approve: Sequence[str] = (),
        votes: int = 1,
        approval_seconds: int | None = None,
        parent: str | None = None,
    ) -> str:
        """Put a task on the board and return its id; when it returns, the task is stored.

        `steps`, `tool_calls`, `tokens` and `seconds` bound one attempt at a step (default: the role's contract);
        `check_seconds` bounds one check; `budget` bounds the whole task with all tasks below it, and `deadline_seconds`
        the time until its end. `after` are tasks that must be done first, `parent` the task that this one is a part of.
        The plan is made again up to `replans` times. Artifacts of the kinds in `approve` count once `votes` people have
        approved them; nobody's word within `approval_seconds` (None: it waits) ends that. With `key`, submitting again
        is the same task. Raises `InvalidTask`, `KeyInUse`, `InvalidName`, `WorkspaceError`, `StoreFull` (nothing
        written), `NoAnswer` (unknown: submit again with the same key).
        """
        if any(isinstance(given, str) for given in (checks, sources, after, approve)):
            raise InvalidTask(
                'checks, sources, after, approve: one string was given; give a list, such as ["python3 -m unittest"]'
            )
        tree = await asyncio.to_thread(scan, Path(workspace)) if workspace is not None else {}
        documents = await asyncio.to_thread(read_sources, sources)
        spec = TaskSpec(
            goal=goal,
            workspace=NO_CONTENT,
            checks=tuple(checks),
            check_seconds=check_seconds,
            key=key,
            attempts=attempts,
            steps=steps,
            tool_calls=tool_calls,
            tokens=tokens,
            seconds=seconds,
            budget=budget,
            tenant=tenant,
            priority=priority,
            deadline_seconds=deadline_seconds,
            after=tuple(after),
            replans=replans,
            approve=tuple(approve),
            votes=votes,
            approval_seconds=approval_seconds,
        )
        check_spec(spec)
        await self._check_names(spec, parent)
        await self._check_intake()
        try:
            stored = msgspec.structs.replace(
                spec,
                workspace=await self._payloads.put(await asyncio.to_thread(pack, tree)),
                sources=await self._payloads.put(await asyncio.to_thread(pack, documents)) if documents else None,
            )
        except Refused as error:
            raise full() if error.code == STORE_IS_FULL else error from error
        task = task_id(key)
        await self._store(task, stored, parent)
        return task

    async def _check_names(self, spec: TaskSpec, parent: str | None) -> None:
        """Raise `InvalidTask` for tasks and kinds that are not on the board: an approval of a kind that nobody makes
        would never be asked for."""
        for field, name in [*(("after", name) for name in spec.after), *((("parent", parent),) if parent else ())]:
            if await self._find(subjects.spec(subjects.token(name, field))) is None:
                raise InvalidTask(f"{field}: there is no task {name!r} on this board")
        for kind in spec.approve:
            if kind not in KINDS and await self._find(subjects.kind(kind, 1)) is None:
                raise InvalidTask(
                    f"approve: there is no kind {kind!r}; known are {', '.join(KINDS)} and registered ones"
                )

    async def _check_intake(self) -> None:
        stored = await self._bus.patiently(lambda: self._bus.last(subjects.INTAKE))
        intake = msgspec.json.decode(open_record(stored.data).body, type=Intake) if stored else None
        if intake is not None and not intake.open:
            raise full(intake)

    async def _store(self, task: str, spec: TaskSpec, parent: str | None = None) -> None:
        op = secrets.token_hex(12)
        data = seal(
            spec, id=op, type="task.spec", task=task, parent=parent, trust="principal", time=SYSTEM.stamp(),
            principal=os.environ.get("KOKUBAN_PRINCIPAL", "local"),
        )  # fmt: skip
        subject = subjects.spec(task)
        try:
            stored = await write(self._bus, subject, data, op=op, fence=Fence(subject, 0))
        except Refused as error:
            raise full() if error.code == STORE_IS_FULL else error from error
        if isinstance(stored, Conflict):
            there = await self._select(subject)  # the first is the task: nothing that is written over it counts
            if there and not _same_task(open_record(there[0].data), spec):
                raise KeyInUse(f"key: {spec.key!r} already names task {task}, whose content differs; use another key")

    # ------------------------------------------------------------------ watch

    async def watch(self, task: str | None = None, *, after: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Every event of the board, or of one task, in order, each record once: those after sequence `after`, then,
        with `follow`, new ones as they come. A watch of one task ends with the task; it raises `NoSuchTask` when there
        is none. Of an archived task they come from its archive; without that, only its end does. Outages are ridden
        out; `BusError` when the connection is closed for good."""
        if task is not None and await self._find(subjects.spec(subjects.token(task, "task"))) is None:
            raise NoSuchTask(f"task: there is no {task!r} on this board")
        if task is None and follow:
            async for event in self._feed.follow(after):
                yield event
            return
        async with self._reading(task) as (board, reading):
            while (stored := await reading.next(wait=follow)) is not None:
                applied = fold(board, stored)
                if task is not None and applied.task is not None and applied.task.tombstone is not None:
                    for earlier, did in await self._before(applied.task, after):
                        for event in events_of(did, earlier):
                            yield event
                if stored.seq > after:
                    for event in events_of(applied, stored):
                        yield event
                    after = stored.seq
                if task in board.tasks and board.tasks[task].final is not None:
                    return

    async def status(self, task: str) -> Task:
        """The task as its records say now, or its archive; of one whose archive is gone, what the tombstone says.
        Raises `NoSuchTask`."""
        board = await self._fold(task)
        while task not in board.tasks:  # a reader may have been served by a replica that is behind
            if await self._find(subjects.spec(task)) is None:
                raise NoSuchTask(f"task: there is no {task!r} on this board")
            board = await self._fold(task)
        found = board.tasks[task]
        if found.tombstone is None:
            return found
        try:
            return (await past(self._bus, self._payloads, task, found.tombstone)).task
        except ArchiveMissing:
            return found

    async def _before(self, task: Task, after: int) -> list[tuple[Stored, Applied]]:
        """What an archived task's records after a sequence did; nothing when its archive is gone."""
        assert task.tombstone is not None
        try:
            told = await past(self._bus, self._payloads, task.id, task.tombstone)
        except ArchiveMissing:
            return []
        return [(stored, applied) for stored, applied in told.applied if stored.seq > after]

    async def tasks(self) -> list[Task]:
        """Every task on the board, oldest first."""
        return list((await self._fold(None)).tasks.values())

    async def result(self, task: str, *, timeout: float | None = None) -> Outcome:
        """Wait for the end of a task, at most `timeout` seconds (None: for ever; 0: not at all), and return it.
        Raises `NoSuchTask`, `TimeoutError`, and `ArchiveMissing` (a `LookupError`) when it was archived and its archive
        is gone."""
        async with asyncio.timeout(timeout if timeout != 0 else 10):
            final = await self._final(task)
            if final is None:
                if timeout == 0:
                    raise TimeoutError(f"task {task} has not ended")
                async for _ in self.watch(task):
                    pass
                final = await self._final(task)
        assert final is not None
        try:
            return await self._outcome(task, final, self._content)
        except LookupError:
            stone = await tombstone_of(self._bus, task)
            if stone is None:
                raise
            told = await past(self._bus, self._payloads, task, stone)
            return await self._outcome(task, told.final, told.content)

    async def _outcome(self, task: str, final: Final, content: Content) -> Outcome:
        deliverable = await content.artifact(final.deliverable) if final.deliverable else None
        assert deliverable is None or isinstance(deliverable, Deliverable)
        files = await content.files(deliverable.changes) if deliverable else {}
        return Outcome(
            task, final.state, final.reason, final.checked, final.usage, deliverable, files, final.blocked,
            final.unconfirmed,
        )  # fmt: skip

    async def artifact(self, ref: Ref) -> msgspec.Struct:
        """The content of an artifact on the board. Raises `LookupError` when its record is gone."""
        return await self._content.artifact(ref)

    async def _final(self, task: str) -> Final | None:
        stored = await self._find(subjects.final(subjects.token(task, "task")))
        if stored is not None:
            return msgspec.json.decode(open_record(stored.data).body, type=Final)
        stone = await tombstone_of(self._bus, task)
        return (await past(self._bus, self._payloads, task, stone)).final if stone else None

    async def _fold(self, task: str | None) -> Board:
        async with self._reading(task) as (board, reading):
            while (stored := await reading.next(wait=False)) is not None:
                fold(board, stored)
        return board

    @asynccontextmanager
    async def _reading(self, task: str | None) -> AsyncIterator[tuple[Board, Reading]]:
        subject = subjects.task_records(subjects.token(task, "task")) if task is not None else None
        reading = Reading(self._bus, subject)
        try:
            board = Board(filtered=task is not None)
            if board.filtered:
                await load_kinds(self._bus, board)
            yield board, reading
        finally:
            await reading.stop()

    async def _select(self, subject: str) -> list[Stored]:
        """Every stored record that a filter matches, in order."""
        reading, found = Reading(self._bus, subject), []
        try:
            while (stored := await reading.next(wait=False)) is not None:
                found.append(stored)
        finally:
            await reading.stop()
        return found


def _same_task(record: Record, spec: TaskSpec) -> bool:
    """Whether the task that is there is this one. Of an archived one the digest is left."""
    if record.type == "task.tombstone":
        return msgspec.json.decode(record.body, type=Tombstone).spec_digest in (None, digest(encode(spec)))
    return msgspec.json.decode(record.body, type=TaskSpec) == spec


__all__ = [
    "DEFAULT_URL", "Approval", "BusError", "Client", "Ended", "Event", "InvalidRequest", "InvalidTask", "KeyInUse",
    "Kin", "Lineage", "NoAnswer", "NoSuchArtifact", "NoSuchGate", "NoSuchTask", "NotVoted", "Outcome", "Spending",
    "StoreFull", "Told", "Voted", "check_spec", "person_name", "read_sources",
]  # fmt: skip
