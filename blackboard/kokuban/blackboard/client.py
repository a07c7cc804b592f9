"""The typed async client: submit, watch, status, result. The rest of Kokuban reads the board through it too."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from kokuban.blackboard._content import Content
from kokuban.blackboard._events import Event, events_of
from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Board, Stored, Task, fold
from kokuban.blackboard.wire import Bus, BusError, Conflict, Fence, NoAnswer, Payloads, Reader, ensure_board, write
from kokuban.blackboard.workspace import File, Tree, pack, scan
from kokuban.schemas import Deliverable, Final, Ref, TaskSpec, Usage, encode, open_record, seal, subjects
from kokuban.schemas.kinds import problems

DEFAULT_URL = "nats://127.0.0.1:4222"
MAX_GOAL = 65_536


class InvalidTask(ValueError):
    """A task that cannot be submitted; the message names the field and the way out. Nothing was written."""


class KeyInUse(InvalidTask):
    """The key already names a task with other content. Nothing was written."""


class NoSuchTask(LookupError):
    """No task of that id is on the board."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended. `deliverable` and `files` (the changed files as they are now; a deleted one is missing) are
    there when `state` is `done`; `checked` is false when nobody gave a check."""

    task: str
    state: Literal["done", "failed"]
    reason: str
    checked: bool
    usage: Usage
    deliverable: Deliverable | None
    files: Tree

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


class Client:
    """A connection to a board.

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

    @classmethod
    async def connect(cls, url: str | None = None, *, name: str = "kokuban client") -> Client:
        """Connect to `url`, else KOKUBAN_NATS_URL, else the local default, and make the board if it is not there.
        Raises `CannotConnect`."""
        bus = await Bus.connect(url or os.environ.get("KOKUBAN_NATS_URL") or DEFAULT_URL, name=name)
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
    ) -> str:
        """Put a task on the board and return its id; when it returns, the task is stored.

        `steps`, `tool_calls`, `tokens` and `seconds` bound one attempt at a step (default: the role's contract);
        `check_seconds` bounds one check. With `key`, submitting again is the same task. Raises `InvalidTask`,
        `KeyInUse`, `WorkspaceError` (nothing written), `NoAnswer` (unknown: submit again with the same key).
        """
        if isinstance(checks, str) or isinstance(sources, str):
            raise InvalidTask('checks, sources: one string was given; give a list, such as ["python3 -m unittest"]')
        tree = await asyncio.to_thread(scan, Path(workspace)) if workspace is not None else {}
        documents = await asyncio.to_thread(read_sources, sources)
        spec = TaskSpec(
            goal=goal,
            workspace="sha256:" + "0" * 64,
            checks=tuple(checks),
            check_seconds=check_seconds,
            key=key,
            attempts=attempts,
            steps=steps,
            tool_calls=tool_calls,
            tokens=tokens,
            seconds=seconds,
        )
        _check(spec)
        stored = msgspec.structs.replace(
            spec,
            workspace=await self._payloads.put(await asyncio.to_thread(pack, tree)),
            sources=await self._payloads.put(await asyncio.to_thread(pack, documents)) if documents else None,
        )
        task = f"t-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else f"t-{secrets.token_hex(6)}"
        await self._store(task, stored)
        return task

    async def _store(self, task: str, spec: TaskSpec) -> None:
        op = secrets.token_hex(12)
        data = seal(
            spec, id=op, type="task.spec", task=task, principal=os.environ.get("KOKUBAN_PRINCIPAL", "local"),
            trust="principal", time=SYSTEM.stamp(),
        )  # fmt: skip
        subject = subjects.spec(task)
        if isinstance(await write(self._bus, subject, data, op=op, fence=Fence(subject, 0)), Conflict):
            there = await self._bus.last(subject)
            if there is not None and msgspec.json.decode(open_record(there.data).body, type=TaskSpec) != spec:
                raise KeyInUse(f"key: {spec.key!r} already names task {task}, whose content differs; use another key")

    # ------------------------------------------------------------------ watch

    async def watch(self, task: str | None = None, *, after: int = 0, follow: bool = True) -> AsyncIterator[Event]:
        """Every event of the board, or of one task, in order, each record once: those after sequence `after`, then,
        with `follow`, new ones as they come. A watch of one task ends with the task; it raises `NoSuchTask` when there
        is none. Outages are ridden out; `BusError` when the connection is closed for good."""
        if task is not None and await self._bus.last(subjects.spec(subjects.token(task, "task"))) is None:
            raise NoSuchTask(f"task: there is no {task!r} on this board")
        async with self._reading(task) as (board, reading):
            while (stored := await reading.next(wait=follow)) is not None:
                applied = fold(board, stored)
                if stored.seq > after:
                    for event in events_of(applied, stored):
                        yield event
                if task is not None and board.tasks[task].final is not None:
                    return

    async def status(self, task: str) -> Task:
        """The task as its records say now. Raises `NoSuchTask`."""
        board = await self._fold(task)
        if task not in board.tasks:
            raise NoSuchTask(f"task: there is no {task!r} on this board")
        return board.tasks[task]

    async def tasks(self) -> list[Task]:
        """Every task on the board, oldest first."""
        return list((await self._fold(None)).tasks.values())

    async def result(self, task: str, *, timeout: float | None = None) -> Outcome:
        """Wait for the end of a task, at most `timeout` seconds (None: for ever; 0: not at all), and return it.
        Raises `NoSuchTask`, `TimeoutError`."""
        async with asyncio.timeout(timeout if timeout != 0 else 10):
            final = await self._final(task)
            if final is None:
                if timeout == 0:
                    raise TimeoutError(f"task {task} has not ended")
                async for _ in self.watch(task):
                    pass
                final = await self._final(task)
        assert final is not None
        deliverable = await self.artifact(final.deliverable) if final.deliverable else None
        assert deliverable is None or isinstance(deliverable, Deliverable)
        files = await self._content.files(deliverable.changes) if deliverable else {}
        return Outcome(task, final.state, final.reason, final.checked, final.usage, deliverable, files)

    async def artifact(self, ref: Ref) -> msgspec.Struct:
        """The content of an artifact on the board. Raises `LookupError` when its record is gone."""
        return await self._content.artifact(ref)

    async def _final(self, task: str) -> Final | None:
        stored = await self._bus.last(subjects.final(subjects.token(task, "task")))
        return msgspec.json.decode(open_record(stored.data).body, type=Final) if stored else None

    async def _fold(self, task: str | None) -> Board:
        async with self._reading(task) as (board, reading):
            while (stored := await reading.next(wait=False)) is not None:
                fold(board, stored)
        return board

    @asynccontextmanager
    async def _reading(self, task: str | None) -> AsyncIterator[tuple[Board, _Reading]]:
        subject = subjects.task_records(subjects.token(task, "task")) if task is not None else None
        reading = _Reading(self._bus, subject)
        try:
            yield Board(filtered=task is not None), reading
        finally:
            await reading.stop()


class _Reading:
    """A reader whose records are taken one by one."""

    def __init__(self, bus: Bus, subject: str | None) -> None:
        self._queue: asyncio.Queue[Stored] = asyncio.Queue(2_048)
        self._reader = Reader(bus, self._queue.put, subject=subject)
        self._running = asyncio.create_task(self._reader.run())

    async def next(self, *, wait: bool) -> Stored | None:
        """The next record. Without `wait`, None once all that is stored has been read. Raises what ended the reader."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        got = asyncio.create_task(self._queue.get())
        caught_up = asyncio.create_task(self._reader.caught_up.wait())
        others: set[asyncio.Task[Any]] = {self._running} if wait else {self._running, caught_up}
        try:
            await asyncio.wait({got, *others}, return_when=asyncio.FIRST_COMPLETED)
            if got.done():
                return got.result()
            if self._running.done():
                self._running.result()
            return None
        finally:
            got.cancel()
            caught_up.cancel()

    async def stop(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


def _check(spec: TaskSpec) -> None:
    if not spec.goal.strip():
        raise InvalidTask("goal: it is empty; say what is to be done")
    if len(spec.goal) > MAX_GOAL:
        raise InvalidTask(
            f"goal: {len(spec.goal):,} characters; at most {MAX_GOAL:,}: put the rest into a --source file"
        )
    if any("\0" in check for check in spec.checks):
        raise InvalidTask("check: it holds a NUL character; give a command line")
    if any(not check.strip() for check in spec.checks):
        raise InvalidTask("check: it is empty; give a command such as 'python -m unittest'")
    found = problems("task", encode(spec))
    if found:
        raise InvalidTask("; ".join(reason.removeprefix("task.") for reason in found))


def read_sources(paths: Sequence[Path]) -> Tree:
    """Documents as one tree: a folder's files under their relative paths, a single file under its name. Raises
    `InvalidTask` for a missing path or a name that comes twice, `WorkspaceError` for what cannot be read."""
    found: dict[str, File] = {}
    for path in map(Path, paths):
        if path.is_dir():
            tree: Tree = scan(path)
        elif path.is_file():
            tree = {path.name: File(path.read_bytes(), False)}
        else:
            raise InvalidTask(f"source: {path} is neither a file nor a folder; name an existing one")
        twice = sorted(found.keys() & tree.keys())
        if twice:
            raise InvalidTask(f"source: {twice[0]} comes from two of the given paths; rename one")
        found.update(tree)
    return dict(sorted(found.items()))


__all__ = [
    "DEFAULT_URL", "BusError", "Client", "Event", "InvalidTask", "KeyInUse", "NoAnswer", "NoSuchTask", "Outcome",
    "read_sources",
]  # fmt: skip
