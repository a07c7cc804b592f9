"""A board on which work waits for people, and ends, without a supervisor: a desk says what one would."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from kokuban.agents._output import Output
from kokuban.blackboard.wire import Bus, Fence, Written, write
from kokuban.schemas import (
    Decision,
    Final,
    Gate,
    GateRequest,
    Intake,
    TaskSpec,
    Tombstone,
    Waiting,
    Wire,
    digest,
    encode,
    open_record,
    seal,
    subjects,
)
from support.desk import Desk

CALL = Gate(
    "fix-1-3", "call", "Post the news?", "publish", msgspec.Raw(b'{"url":"https://example.org/a","text":"x"}'),
    hash=digest(b"arguments"), tool_version="1", policy="p-1", call=3, key="k-3",
)  # fmt: skip
QUESTION = Gate("fix-1-3", "question", "Which fee: of 2023 or of 2024?", call=3)


class Office:
    """A desk with the few more things that people see."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.task = desk.task

    async def waits(self, gate: Gate = CALL, role: str = "coder", step: str = "fix") -> str:
        """A worker's step waits for this gate; returns what a vote must be bound to."""
        owner = await self.desk.claimed(await self.desk.order(role, step))
        data = self._sealed(
            Waiting(gate), "step.waiting", step=step, role=role, attempt=1, worker="w", fence=owner.fence
        )
        register = subjects.register(self.task, role, step)
        await self._stored(register, data, Fence(register, owner.fence))
        return digest(encode(gate))

    async def makes(
        self, step: str, artifact: Wire, *derived_from: str, role: str = "coder", **order: Any
    ) -> str:  # fmt: skip
        """A worker commits this artifact, its step's only one; returns its digest."""
        earlier = await self.desk.register(role, step)
        last = await self.desk.bus.last(subjects.register(self.task, role, step))
        order = await self.desk.order(
            role, step, attempt=1 + sum(r.type == "step.claimed" for r in earlier), reg=last.seq if last else 0,
            **order,
        )  # fmt: skip
        owner = await self.desk.claimed(order)
        await owner.done([Output("change", artifact, derived_from)], None, "model", None)
        return digest(encode(artifact))

    async def requests(self, gate: Gate, role: str = "coder") -> str:
        """The leader asks for a word on an artifact; returns what a vote must be bound to."""
        subject = subjects.gate_request(self.task, role, gate.id)
        await self._decides(subject, GateRequest(gate), "gate.request", role=role)
        return digest(encode(gate))

    async def decides(
        self, outcome: Literal["approved", "denied", "answered", "expired"], *by: str, gate: Gate = CALL,
        role: str = "coder", text: str = "",
    ) -> int:  # fmt: skip
        """The leader has counted."""
        body = Decision(gate.id, outcome, digest(encode(gate)), by, text)
        subject = subjects.gate_decision(self.task, role, gate.id)
        return await self._decides(subject, body, "gate.decision", role=role)

    async def ends(self, final: Final | None = None) -> int:
        """The task's end."""
        body = final or Final("dead", "step fix was lost with its worker 6 times")
        return await self._decides(subjects.final(self.task), body, "task.final")

    async def buries(self, final: Final | None = None) -> None:
        """The task's end, and what is left of it once it is archived."""
        end = final or Final("dead", "step fix was lost with its worker 6 times")
        seq, subject, spec = await self.ends(end), subjects.spec(self.task), self.desk.spec
        body = Tombstone(
            end.state, end.reason, self.desk.spec_seq, seq, spec.tenant, spec.key, digest(encode(spec)), usage=end.usage
        )
        await self._decides(subjects.buried(self.task), body, "task.tombstone")
        data = self._sealed(body, "task.tombstone")
        await self._stored(subject, data, Fence(subject, self.desk.spec_seq))

    async def adopts(self, task: str) -> None:
        """Decide about this task from now on."""
        stored = await self.desk.bus.last(subjects.spec(task))
        assert stored is not None
        self.task = self.desk.task = task
        self.desk.spec = msgspec.json.decode(open_record(stored.data).body, type=TaskSpec)
        self.desk.spec_seq = stored.seq

    async def intake(self, body: Intake) -> None:
        """Whether new tasks are taken."""
        op = secrets.token_hex(8)
        last = await self.desk.bus.last(subjects.INTAKE)
        data = seal(body, id=op, type="ctl.intake")
        written = await write(
            self.desk.bus, subjects.INTAKE, data, op=op, fence=Fence(subjects.INTAKE, last.seq if last else 0)
        )
        assert isinstance(written, Written)

    def _sealed(self, body: Any, kind: str, **fields: Any) -> bytes:
        self._op = secrets.token_hex(8)
        return seal(body, id=self._op, type=kind, task=self.task, **fields)

    async def _decides(self, subject: str, body: Any, kind: str, **fields: Any) -> int:
        shard = subjects.shard(self.task)
        epoch = self.desk.epochs[shard]
        data = self._sealed(body, kind, fence=epoch, **fields)
        return await self._stored(subject, data, Fence(subjects.epoch(shard), epoch))

    async def _stored(self, subject: str, data: bytes, when: Fence) -> int:
        written = await write(self.desk.bus, subject, data, op=self._op, fence=when)
        assert isinstance(written, Written), f"{subject}: {written}"
        return written.seq


@asynccontextmanager
async def office(url: str, **spec: Any) -> AsyncIterator[Office]:
    """A task on the board, and a desk that decides about it."""
    async with await Bus.connect(url) as bus:
        yield Office(await Desk.open(bus, **spec))
