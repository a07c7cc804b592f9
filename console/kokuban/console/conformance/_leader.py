"""A scripted leader: it puts a task on a board of its own, offers steps to the role, and reads what became of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from kokuban.blackboard.core import Board, Step, Stored, fold
from kokuban.blackboard.core.registry import versions_of
from kokuban.blackboard.registered import load, register_kind, register_role
from kokuban.blackboard.wire import Bus, Fence, Payloads, Reader, Written, ensure_board, ensure_roles, write
from kokuban.blackboard.workspace import pack
from kokuban.console.conformance._folder import RoleFolder
from kokuban.schemas import (
    KINDS,
    Claimed,
    Done,
    Record,
    Ref,
    Released,
    Result,
    TaskSpec,
    Teammate,
    WorkOrder,
    digest,
    open_record,
    seal,
    subjects,
)
from kokuban.supervisor._lease import Leadership

T = TypeVar("T")
TASK = "t-conformance"
GIVEN, GIVER = "given", "conformance"


class Failed(Exception):
    """The program broke the rule; the message says what was seen."""


async def eventually(
    look: Callable[[], Awaitable[T | None]], what: str, *, seconds: float, gone: Callable[[], bool] = lambda: False
) -> T:
    """The first thing that `look` finds. Raises `Failed`, saying what was waited for, at the end of the time or once
    whoever should bring it about is `gone`."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    while True:
        late = gone()  # asked first: what it did before its end is there to be seen
        found = await look()
        if found:
            return found
        if late:
            raise Failed(what)
        if loop.time() > give_up:
            raise Failed(f"{what} within {seconds:g} s")
        await asyncio.sleep(0.02)


class Leader:
    """The right to decide about the one task of this board. `patience_seconds` is how long an answer of the program's
    is waited for; its work may take what the contract says besides. Once the program is `gone`, nothing is."""

    def __init__(self, bus: Bus, folder: RoleFolder, patience_seconds: float) -> None:
        self.bus = bus
        self.patience_seconds = patience_seconds
        self.role = folder.contract.role
        self.gone: Callable[[], bool] = lambda: False
        self._folder = folder
        self._epoch = 0
        self._spec = 0
        self._given: tuple[Ref, ...] = ()
        self._kinds: dict[str, dict[int, bytes]] = {}

    async def open(self) -> None:
        """Register what the folder holds, and make the task with what the role consumes."""
        folder = self._folder
        await ensure_board(self.bus)
        for kind, schema in folder.kinds.items():
            await register_kind(self.bus, kind, schema)
        if folder.text:
            await register_role(self.bus, folder.text)
        await ensure_roles(self.bus, [self.role])
        self._kinds = (await load(self.bus)).kinds
        leadership = Leadership(self.bus, "conformance")
        await leadership.raise_epochs()
        self._epoch = leadership.epochs[subjects.shard(TASK)]
        payloads = Payloads(self.bus)
        spec = TaskSpec(
            goal="Show that this role keeps the rules.",
            workspace=await payloads.put(pack(folder.workspace)),
            sources=await payloads.put(pack(folder.sources)) if folder.sources else None,
        )
        subject = subjects.spec(TASK)
        self._spec = await self._write(subject, spec, "task.spec", Fence(subject, 0), trust="principal")
        if folder.samples:
            self._given = await self._give()

    async def _give(self) -> tuple[Ref, ...]:
        """The samples, as the admitted artifacts of a step that is done."""
        samples = self._folder.samples
        body = WorkOrder(0, self._spec, "Give the samples.", tuple(samples), kinds=versions_of(samples, self._kinds))
        seq = await self._decide(subjects.work(TASK, GIVER, GIVEN), body, "step.order", GIVEN, 1, role=GIVER)
        register = subjects.register(TASK, GIVER, GIVEN)
        owner = {"step": GIVEN, "role": GIVER, "attempt": 1, "worker": "conformance"}
        fence = await self._write(register, Claimed(seq, 0), "step.claimed", Fence(register, 0), **owner)
        results = tuple(Result(k, "sample", digest(data), msgspec.Raw(data)) for k, data in samples.items())
        done = await self._write(
            register, Done(results), "step.done", Fence(register, fence), fence=fence, **owner
        )  # fmt: skip
        return tuple(Ref(GIVEN, r.kind, r.name, r.digest, done) for r in results)

    # ------------------------------------------------------------------ deciding

    async def order(
        self, step: str, *, attempt: int = 1, reg: int = 0, version: int | None = None, **changes: Any
    ) -> int:
        """Offer a step to the role; returns the order's sequence. `version` is the record's schema version."""
        contract = self._folder.contract
        fields: dict[str, Any] = {
            "goal": "Do what your contract says with the inputs.",
            "produces": contract.produces,
            "inputs": self._given,
            "allotment": contract.limits.allotment(),
            "kinds": versions_of(contract.produces, self._kinds),
        }
        if "verdict" in contract.produces:
            fields["judges"] = tuple(ref.digest for ref in self._given if ref.kind in contract.triggers)
        if "plan" in contract.produces:
            fields["team"] = (Teammate("coder", "Changes files.", ("task",), ("patch",)),)
        body = WorkOrder(reg=reg, spec=self._spec, **{**fields, **changes})
        extra = {} if version is None else {"version": version}
        return await self._decide(
            subjects.work(TASK, self.role, step), body, "step.order", step, attempt, role=self.role, **extra
        )

    async def release(self, step: str, reg: int) -> int:
        """Take the step back from its owner; returns where the register stands then."""
        subject = subjects.register(TASK, self.role, step)
        body = Released("silent", "nothing was heard of its worker")
        fields = {"step": step, "role": self.role, "fence": self._epoch}
        return await self._write(subject, body, "step.released", Fence(subject, reg), **fields)

    async def _decide(self, subject: str, body: Any, kind: str, step: str, attempt: int, **fields: Any) -> int:
        fence = Fence(subjects.epoch(subjects.shard(TASK)), self._epoch)
        return await self._write(subject, body, kind, fence, step=step, attempt=attempt, fence=self._epoch, **fields)

    async def _write(self, subject: str, body: Any, kind: str, when: Fence, **fields: Any) -> int:
        op = secrets.token_hex(8)
        data = seal(body, **{"id": op, "type": kind, "task": TASK, **fields})
        stored = await write(self.bus, subject, data, op=op, fence=when)
        assert isinstance(stored, Written), f"{kind} was not stored: {stored}"
        return stored.seq

    # ------------------------------------------------------------------ reading

    async def eventually(self, look: Callable[[], Awaitable[T | None]], what: str, *, work: bool = False) -> T:
        """The first thing that `look` finds. `work`: it takes the program's work. Raises `Failed`."""
        more = self._folder.contract.limits.seconds if work else 0
        return await eventually(look, what, seconds=self.patience_seconds + more, gone=self.gone)

    async def register(self, step: str) -> list[tuple[int, Record]]:
        """Every record on a step's register, with its sequence. Raises `Failed` for one that cannot be read."""
        stored = await self.bus.patiently(
            lambda: self.bus.history(subjects.register(TASK, self.role, step)), seconds=20
        )
        try:
            return [(one.seq, open_record(one.data)) for one in stored]
        except ValueError as error:
            raise Failed(f"a record on the register of step {step} cannot be read: {error}") from error

    async def types(self, step: str) -> list[str]:
        return [record.type.removeprefix("step.") for _, record in await self.register(step)]

    async def claim(self, step: str, after: int = 0) -> tuple[int, Record]:
        """The claim of a step that was stored after sequence `after`, once it is there."""

        async def look() -> tuple[int, Record] | None:
            found = await self.register(step)
            return next(((s, r) for s, r in found if s > after and r.type == "step.claimed"), None)

        return await self.eventually(look, f"step {step} was not claimed")

    async def end(self, step: str, after: int = 0) -> tuple[int, Record]:
        """The commit or failure of a step that was stored after sequence `after`, once it is there."""

        async def look() -> tuple[int, Record] | None:
            found = await self.register(step)
            return next(((s, r) for s, r in found if s > after and r.type in ("step.done", "step.failed")), None)

        return await self.eventually(look, f"step {step} did not end", work=True)

    async def folded(self, step: str) -> Step:
        """The step as all records on the board say."""
        board = Board()

        async def on_record(stored: Stored) -> None:
            fold(board, stored)

        reader = Reader(self.bus, on_record)
        reading = asyncio.create_task(reader.run())
        try:
            await asyncio.wait_for(reader.caught_up.wait(), 20)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return board.tasks[TASK].steps[step]

    async def done(self, step: str, after: int = 0) -> str:
        """Wait until the step has ended after `after`, and check that the result counts; what was given, in words."""
        _, record = await self.end(step, after)
        if record.type == "step.failed":
            raise Failed(f"step {step} failed: {bytes(record.body)[:500].decode('utf-8', 'replace')}")
        found = await self.folded(step)
        if found.status != "done":
            raise Failed(f"the commit of step {step} does not count: {found.status}: {'; '.join(found.reasons)[:800]}")
        return ", ".join(f"{a.ref.kind} {a.ref.name!r}" for a in found.results)

    async def pending(self) -> int:
        """Orders that the role's consumer has delivered and that are not settled."""
        name = subjects.consumer(self.role)
        info = await self.bus.patiently(lambda: self.bus.api(f"CONSUMER.INFO.{subjects.BOARD}.{name}"), seconds=20)
        return int(info["num_ack_pending"])

    def foreign_kind(self) -> str:
        """A kind that the contract does not allow."""
        return next(kind for kind in KINDS if kind not in self._folder.contract.produces)
