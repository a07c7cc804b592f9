"""A leader's desk under a test's control: it writes what a supervisor would, when the test says so."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kokuban.agents._output import Output
from kokuban.agents._owner import Assignment, Owner, claim
from kokuban.agents._tape import Tape
from kokuban.agents._work import Work
from kokuban.agents.models import Meter
from kokuban.blackboard._content import Content
from kokuban.blackboard.core import Ledger
from kokuban.blackboard.wire import Bus, Fence, Payloads, Written, ensure_board, ensure_roles, write
from kokuban.blackboard.workspace import File, Tree, pack
from kokuban.schemas import Allotment, Grant, Opens, Record, Released, TaskSpec, WorkOrder, open_record, seal, subjects
from kokuban.schemas.contracts import Contract, builtin_crew
from kokuban.supervisor._lease import Leadership


def tree(files: Mapping[str, str]) -> Tree:
    """Files as a tree."""
    return {path: File(text.encode(), False) for path, text in sorted(files.items())}


def contract(role: str = "coder") -> Contract:
    """A built-in role's contract."""
    return builtin_crew()[role]


class Program:
    """A role's program made of one function."""

    prompt_version = None

    def __init__(self, perform: Callable[[Work], Awaitable[list[Output]]]) -> None:
        self.perform = perform


@dataclass
class Desk:
    """One task on a board, and the right to decide about it."""

    bus: Bus
    task: str
    spec: TaskSpec
    spec_seq: int
    epochs: dict[int, int]

    @classmethod
    async def open(
        cls, bus: Bus, files: Mapping[str, str] | None = None, *, sources: Mapping[str, str] | None = None, **spec: Any
    ) -> Desk:
        """Put a task on the board, with the epochs of a leader."""
        await ensure_board(bus)
        await ensure_roles(bus, builtin_crew())
        leadership = Leadership(bus, "desk")
        await leadership.raise_epochs()
        payloads, task = Payloads(bus), f"t-{secrets.token_hex(4)}"
        body = TaskSpec(
            goal="Fix it", workspace=await payloads.put(pack(tree(files or {}))),
            sources=await payloads.put(pack(tree(sources))) if sources else None, **spec,
        )  # fmt: skip
        desk = cls(bus, task, body, 0, leadership.epochs)
        subject = subjects.spec(task)
        desk.spec_seq = await desk._write(subject, body, "task.spec", Fence(subject, 0))
        return desk

    async def order(
        self, role: str = "coder", step: str = "fix", *, attempt: int = 1, reg: int = 0, **order: Any
    ) -> int:
        """Offer a step; returns the order's sequence."""
        fields = {"goal": "Do the step", "produces": contract(role).produces, **order}
        body = WorkOrder(reg=reg, spec=self.spec_seq, **fields)
        epoch = subjects.shard(self.task)
        return await self._write(
            subjects.work(self.task, role, step), body, "step.order",
            Fence(subjects.epoch(epoch), self.epochs[epoch]), step=step, role=role, attempt=attempt,
            fence=self.epochs[epoch],
        )  # fmt: skip

    async def release(self, reg: int, role: str = "coder", step: str = "fix") -> int:
        """Take the step back; `reg` is where its register stands. Returns where it stands now."""
        subject = subjects.register(self.task, role, step)
        body, epoch = Released("silent", "nothing heard"), self.epochs[subjects.shard(self.task)]
        return await self._write(subject, body, "step.released", Fence(subject, reg), step=step, role=role, fence=epoch)

    async def grant(self, fence: int, allotment: Allotment, role: str = "coder", step: str = "fix") -> int:
        """Answer an owner that asked for more."""
        subject, epoch = subjects.grant(self.task, role, step), subjects.shard(self.task)
        last = await self.bus.last(subject)
        return await self._write(
            subject, Grant(fence, allotment), "step.granted", Fence(subject, last.seq if last else 0), step=step,
            role=role, fence=self.epochs[epoch],
        )  # fmt: skip

    async def stands_at(self, role: str = "coder", step: str = "fix") -> int:
        """The last sequence on a step's register, 0 when there is none."""
        last = await self.bus.last(subjects.register(self.task, role, step))
        return last.seq if last is not None else 0

    async def assignment(self, seq: int, worker: str = "w") -> Assignment:
        """An order as its worker reads it."""
        stored = await self.bus.read(seq)
        assert stored is not None
        record = open_record(stored.data)
        order = msgspec.json.decode(record.body, type=WorkOrder)
        return Assignment(self.task, record.step or "", record.role or "", record.attempt, seq, order, worker)

    async def claimed(self, seq: int, opens: Opens | None = None) -> Owner:
        """Be the owner of an order."""
        owner = await claim(self.bus, await self.assignment(seq), opens)
        assert owner is not None
        return owner

    async def work(self, owner: Owner, home: Path, *, meter: Meter | None = None, **fields: Any) -> Work:
        """What an owner's program gets."""
        tape = Tape(owner, None)
        await tape.load()
        home.mkdir(parents=True, exist_ok=True)
        at = owner.assignment
        crew = builtin_crew()
        fields.setdefault("tools", crew[at.role].tools if at.role in crew else ())
        return Work(
            at, self.spec, Content(self.bus, Payloads(self.bus)), tape, Ledger(at.order.allotment, tape.abandoned),
            home, time.monotonic() + at.order.allotment.seconds, meter, **fields,
        )  # fmt: skip

    async def register(self, role: str = "coder", step: str = "fix") -> list[Record]:
        """What stands on a step's register."""
        return await self._records(subjects.register(self.task, role, step))

    async def journal(self, role: str = "coder", step: str = "fix") -> list[Record]:
        """What stands in a step's journal."""
        return await self._records(subjects.journal(self.task, role, step))

    async def pending(self, role: str = "coder") -> tuple[int, int]:
        """Of a role's consumer: orders delivered and not settled, and the sequence up to which all are settled."""
        info = await self.bus.api(f"CONSUMER.INFO.BOARD.{subjects.consumer(role)}")
        return int(info["num_ack_pending"]), int(info["ack_floor"]["stream_seq"])

    async def _records(self, subject: str) -> list[Record]:
        return [open_record(stored.data) for stored in await self.bus.patiently(lambda: self.bus.history(subject))]

    async def _write(self, subject: str, body: Any, kind: str, when: Fence, **fields: Any) -> int:
        op = secrets.token_hex(8)
        data = seal(body, id=op, type=kind, task=self.task, **fields)
        stored = await write(self.bus, subject, data, op=op, fence=when)
        assert isinstance(stored, Written), f"{kind} was not stored: {stored}"
        return stored.seq


def kinds(records: Sequence[Record]) -> list[str]:
    """Their types, without the first word."""
    return [record.type.partition(".")[2] for record in records]
