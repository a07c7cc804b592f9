"""A board with a leader that decides nothing: it folds, has the epochs, and does the upkeep when a test says so.
Tasks are written onto the board as their writers would, without any of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from core import contents
from core.history import Output, result_of
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.blackboard.wire import Bus, Fence, Payloads, Reader, Written, ensure_board, write
from kokuban.blackboard.workspace import pack
from kokuban.schemas import Claimed, Done, Failed, Final, Ref, TaskSpec, Usage, WorkOrder, seal, subjects
from kokuban.supervisor._archive import Archiver, Retention
from kokuban.supervisor._lease import Leadership
from support.desk import tree
from support.waiting import cancelled

NOW = Retention(finished=timedelta(0), tombstones=timedelta(days=90), payloads=timedelta(0))
"""Archive at once."""
BURIED = ["task.tombstone", "task.tombstone"]
"""What is left of an archived task: its tombstone, and the copy on the spec's subject that keeps its key."""


class Keeper:
    """See `keeping`. `ahead` is how many seconds the keeper's idea of the server's time is ahead of it."""

    def __init__(self, bus: Bus, board: Board, retention: Retention) -> None:
        self.bus = bus
        self.board = board
        self.ahead = 0.0
        self.applied: list[tuple[Stored, Applied]] = []
        self.leadership = Leadership(bus, f"keeper-{secrets.token_hex(2)}")
        self.archiver = Archiver(
            bus, board, "keeper", now=lambda: self.time + self.ahead,
            epoch_of=lambda task: self.leadership.epochs[subjects.shard(task)], folded=self.folded,
            retention=retention,
        )  # fmt: skip
        self.time = 0.0
        self._moved = asyncio.Condition()

    async def on_record(self, stored: Stored) -> None:
        applied = fold(self.board, stored)
        self.archiver.saw(applied, stored)
        self.applied.append((stored, applied))
        self.time = stored.time
        async with self._moved:
            self._moved.notify_all()

    async def folded(self, seq: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self.board.last_seq >= seq)

    async def up_to_date(self) -> None:
        """Wait until all that is stored is folded."""
        await self.folded(await self.bus.last_seq())

    async def sweep(self) -> int:
        """Archive and sweep until there is nothing left to do."""
        await self.up_to_date()
        done = 0
        while found := await self.archiver.sweep():
            done += found
            await self.up_to_date()
        return done

    # ------------------------------------------------------------------ what others would write

    async def write(self, subject: str, body: Any, kind: str, when: Fence, /, **fields: Any) -> int:
        """Store a record; returns its sequence."""
        op = secrets.token_hex(8)
        stored = await write(self.bus, subject, seal(body, id=op, type=kind, **fields), op=op, fence=when)
        assert isinstance(stored, Written), f"{kind} was not stored: {stored}"
        return stored.seq

    async def submit(self, task: str, spec: TaskSpec | None = None, **fields: Any) -> int:
        subject = subjects.spec(task)
        return await self.write(subject, spec or contents.spec(), "task.spec", Fence(subject, 0), task=task, **fields)

    async def order(self, task: str, spec: int, step: str = "fix", role: str = "coder", **order: Any) -> int:
        shard = subjects.shard(task)
        epoch = self.leadership.epochs[shard]
        body = WorkOrder(**{"reg": 0, "spec": spec, "goal": "do it", "produces": ("patch",), **order})
        fields = {"task": task, "step": step, "role": role, "attempt": 1, "fence": epoch}
        return await self.write(
            subjects.work(task, role, step), body, "step.order", Fence(subjects.epoch(shard), epoch), **fields
        )

    async def claim(self, task: str, order: int, step: str = "fix", role: str = "coder") -> int:
        subject = subjects.register(task, role, step)
        fields = {"task": task, "step": step, "role": role, "attempt": 1, "worker": "w-1"}
        return await self.write(subject, Claimed(order, 0), "step.claimed", Fence(subject, 0), **fields)

    async def done(
        self, task: str, claim: int, outputs: Sequence[Output], step: str = "fix", role: str = "coder",
        usage: Usage = Usage(10, 5, 1),
    ) -> int:  # fmt: skip
        subject = subjects.register(task, role, step)
        fields = {"task": task, "step": step, "role": role, "attempt": 1, "worker": "w-1", "fence": claim}
        body = Done(tuple(result_of(output) for output in outputs), usage=usage)
        return await self.write(subject, body, "step.done", Fence(subject, claim), **fields)

    async def end(self, task: str, body: Final | None = None) -> int:
        shard = subjects.shard(task)
        epoch = self.leadership.epochs[shard]
        body = body or Final("failed", "it cannot be done")
        fence = Fence(subjects.epoch(shard), epoch)
        return await self.write(subjects.final(task), body, "task.final", fence, task=task, fence=epoch)

    async def finished(
        self, task: str, spec: TaskSpec | None = None, text: str = "", final: Final | None = None, **fields: Any
    ) -> int:
        """A task with one step, that has ended; returns the sequence of its end."""
        spec_seq = await self.submit(task, spec, **fields)
        claim = await self.claim(task, await self.order(task, spec_seq))
        made = await self.done(task, claim, [("change", contents.patch(text or f"work of {task}"))])
        assert made
        return await self.end(task, final)

    async def delivered(self, task: str, files: dict[str, str], **spec: Any) -> str:
        """A task that is done, with a deliverable; returns the digest of its workspace."""
        workspace = await Payloads(self.bus).put(pack(tree(files)))
        seq = await self.submit(task, contents.spec(workspace=workspace, **spec))
        claim = await self.claim(task, await self.order(task, seq))
        work = contents.patch(f"work of {task}")
        at = await self.done(task, claim, [("change", work)])
        cite = Ref("fix", "patch", "change", result_of(("change", work)).digest, at)
        last = await self.order(task, seq, "integrate", "integrator", produces=("deliverable",), inputs=(cite,))
        made = contents.deliverable([cite])
        end = await self.done(
            task, await self.claim(task, last, "integrate", "integrator"), [("result", made)], "integrate", "integrator"
        )
        ref = Ref("integrate", "deliverable", "result", result_of(("result", made)).digest, end)
        await self.end(task, Final("done", "every check passed", True, ref, usage=Usage(20, 10, 2)))
        return workspace

    async def failed(self, task: str, claim: int, step: str = "fix", role: str = "coder") -> int:
        subject = subjects.register(task, role, step)
        fields = {"task": task, "step": step, "role": role, "attempt": 1, "worker": "w-1", "fence": claim}
        return await self.write(subject, Failed("model", "no answer"), "step.failed", Fence(subject, claim), **fields)


@asynccontextmanager
async def keeping(
    url: str, *, retention: Retention = NOW, slim: bool = True, max_bytes: int | None = None
) -> AsyncIterator[Keeper]:
    """A keeper over a connection of its own, folding and leading."""
    async with await Bus.connect(url) as bus:
        await (ensure_board(bus) if max_bytes is None else ensure_board(bus, max_bytes=max_bytes))
        keeper = Keeper(bus, Board(slim=slim), retention)
        reader = Reader(bus, keeper.on_record)
        reading = asyncio.create_task(reader.run())
        try:
            await reader.caught_up.wait()
            await keeper.folded(await keeper.leadership.raise_epochs())
            yield keeper
        finally:
            await cancelled(reading)


async def on_board(bus: Bus, task: str) -> list[str]:
    """What stands under a task, by type."""
    from kokuban.schemas import open_record

    found = await bus.history(subjects.task_records(task))
    return [open_record(stored.data).type for stored in found]
