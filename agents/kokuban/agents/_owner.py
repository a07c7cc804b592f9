"""The owner of one step: every write it makes carries its fence, and the server refuses a stale one (invariant 2)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from kokuban.agents._output import Output
from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.redaction import leaks, redacted_values
from kokuban.blackboard.wire import Bus, Conflict, Fence, NoAnswer, Written, crash_point, write
from kokuban.schemas import (
    Allotment,
    Claimed,
    Critique,
    Done,
    Failed,
    Gate,
    Grant,
    Journal,
    Opens,
    Record,
    Result,
    Settles,
    Trust,
    Waiting,
    Wire,
    WorkOrder,
    digest,
    encode,
    open_record,
    seal,
    subjects,
)

INLINE_BYTES = 256 * 1024
"""Results larger than this together are stored as artifact records before the commit cites them."""
GRANT_SECONDS = 10.0
"""How long an owner waits for the answer when it asks for more. No answer is a no."""
GRANT_LOOK_SECONDS = 0.5


class Fenced(Exception):
    """This process no longer owns the step: stop, write nothing, acknowledge nothing."""


class ResultHoldsSecret(Exception):
    """An artifact holds the value of a credential. Nothing of it was written."""


class ResultTooLarge(Exception):
    """An artifact is above what one record can carry. Nothing of it was written."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A work order as it stands on the board."""

    task: str
    step: str
    role: str
    attempt: int
    seq: int
    order: WorkOrder
    worker: str
    principal: str | None = None
    parent: str | None = None
    trace: str | None = None
    clock: Clock = SYSTEM
    policy: str | None = None
    """The versions of what this worker goes by, such as its price table; stands in every record that it writes."""

    @property
    def begun(self) -> int:
        """The attempt in which this same work began. What a model is asked may depend on it, never on `attempt`: work
        that is taken up from a lost worker must ask again, word for word, what was asked before."""
        return self.order.resumes or self.attempt

    @property
    def register(self) -> str:
        return subjects.register(self.task, self.role, self.step)

    @property
    def journal(self) -> str:
        return subjects.journal(self.task, self.role, self.step)

    def seal(self, body: object, kind: str, op: str, **fields: Any) -> bytes:
        """A record of this step by this worker."""
        return seal(
            body, id=op, type=kind, task=self.task, parent=self.parent, step=self.step, role=self.role,
            attempt=self.attempt, worker=self.worker, principal=self.principal, trace=self.trace,
            policy=self.policy, time=self.clock.stamp(), **fields,
        )  # fmt: skip


class Line(NamedTuple):
    """What an earlier owner of the same work wrote about its calls: a line of the journal, or what its claim opened, or
    what it settled when it began to wait for a person. `order` is the order that a claim was for."""

    attempt: int
    settles: Settles | None
    opens: Opens | None
    order: int = 0


async def claim(bus: Bus, assignment: Assignment, opens: Opens | None = None) -> Owner | None:
    """Take the step by compare-and-set on its register. None: somebody else has it, or the order is void. Raises
    `BusError` when it is unknown whether it was taken; the supervisor then takes it back."""
    op = secrets.token_hex(12)
    body = Claimed(assignment.seq, assignment.order.reg, opens)
    data = assignment.seal(body, "step.claimed", op)
    crash_point("claim:before")
    stored = await write(bus, assignment.register, data, op=op, fence=Fence(assignment.register, assignment.order.reg))
    if isinstance(stored, Conflict):
        return None
    crash_point("claim:after")
    return Owner(bus, assignment, stored.seq)


class Owner:
    """The right to write about a step, as long as its register stands at `fence`. `lost` is set when it has moved."""

    def __init__(self, bus: Bus, assignment: Assignment, fence: int) -> None:
        self.assignment = assignment
        self.fence = fence
        self.lost = asyncio.Event()
        self._bus = bus
        self._ending = False

    def moved(self) -> None:
        """Something says that the register moved. While our own end is being written, that write itself will tell."""
        if not self._ending:
            self.lost.set()

    async def journal(self, settles: Settles | None, opens: Opens | None, asks: Allotment | None = None) -> int:
        """Write one line of the journal; returns its sequence. Raises `Fenced`, `BusError`."""
        crash_point("journal:before")
        seq = await self._write(self.assignment.journal, Journal(settles, opens, asks), "step.journal")
        crash_point("journal:after")
        return seq

    async def ask(self, settles: Settles | None, asks: Allotment) -> Allotment | None:
        """Ask the leader for more, with a line of the journal that settles what is open, and wait for the answer, at
        most `GRANT_SECONDS`. Returns what the work may spend now, all in all; None when that is no more than before or
        nobody answered. Raises `Fenced`, `BusError`."""
        at = self.assignment
        subject = subjects.grant(at.task, at.role, at.step)
        answered, loop = asyncio.Event(), asyncio.get_running_loop()

        async def on_hint(message: object) -> None:
            answered.set()

        hints = await self._bus.subscribe(f"{subjects.HINTS}.{subject}", on_hint)
        try:
            asked = await self.journal(settles, None, asks)
            give_up = loop.time() + GRANT_SECONDS
            while loop.time() < give_up:
                answered.clear()
                grant = await self._granted(subject, after=asked)
                if grant is not None:
                    return grant
                await self._either(answered, min(GRANT_LOOK_SECONDS, give_up - loop.time()))
            return None
        finally:
            if not self._bus.closed.is_set():
                await hints.unsubscribe()

    async def _granted(self, subject: str, after: int) -> Allotment | None:
        """The leader's answer, when it is there."""
        if self.lost.is_set():
            self._lose()
        try:
            stored = await self._bus.last(subject, timeout=1.0)
        except NoAnswer:
            return None
        if stored is None or stored.seq <= after:
            return None
        record = open_record(stored.data)
        grant = msgspec.json.decode(record.body, type=Grant)
        return grant.allotment if record.type == "step.granted" and grant.claim == self.fence else None

    async def _either(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for the event, the loss of the step, or the end of the time."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.lost.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def past(self) -> list[Line]:
        """What earlier owners of this same work wrote about its calls, oldest first."""
        resumes = self.assignment.order.resumes
        if not resumes:
            return []
        found: list[tuple[int, Line]] = []
        for subject in (self.assignment.journal, self.assignment.register):
            for stored in await self._bus.patiently(lambda subject=subject: self._bus.history(subject)):  # type: ignore[misc]
                record = open_record(stored.data)
                line = _line(record) if resumes <= record.attempt < self.assignment.attempt else None
                if line is not None:
                    found.append((stored.seq, line))
        return [line for _, line in sorted(found, key=lambda one: one[0])]

    async def records(self, *of: str) -> list[tuple[int, Record]]:
        """All records of some of this step's subjects, which may have wildcards, with their sequences, oldest first.
        Raises `BusError`."""
        found: list[tuple[int, Record]] = []
        for subject in of:
            for stored in await self._bus.patiently(lambda subject=subject: self._bus.history(subject)):  # type: ignore[misc]
                found.append((stored.seq, open_record(stored.data)))
        return sorted(found, key=lambda one: one[0])

    async def criticise(self, critique: Critique, trust: Trust) -> None:
        """Store a critique of an earlier attempt at this step, for the attempts to come. Raises `Fenced`, `BusError`
        (unknown)."""
        output = Output(self.assignment.step, critique)
        await self._store(output, _without_secrets(output), trust)

    async def order_at(self, seq: int) -> WorkOrder | None:
        """The order at this sequence, None when it is gone."""
        stored = await self._bus.patiently(lambda: self._bus.read(seq))
        return None if stored is None else msgspec.json.decode(open_record(stored.data).body, type=WorkOrder)

    async def waiting(self, gate: Gate, settles: Settles | None) -> None:
        """Let the step go until a person has decided: with this record the gate is durable. Raises `Fenced`,
        `BusError` (unknown)."""
        self._ending = True
        crash_point("waiting:before")
        await self._write(self.assignment.register, Waiting(gate, settles), "step.waiting")
        crash_point("waiting:after")

    async def done(self, outputs: Sequence[Output], settles: Settles | None, trust: Trust, prompt: str | None) -> int:
        """Commit: results, the last settlement and the release in one message. Returns its sequence. Raises `Fenced`,
        `ResultTooLarge`, `ResultHoldsSecret`, `BusError` (unknown)."""
        contents = [_without_secrets(output) for output in outputs]
        inline = sum(map(len, contents)) <= INLINE_BYTES
        results = []
        for output, content in zip(outputs, contents, strict=True):
            if not inline:
                await self._store(output, content, trust)
            results.append(
                Result(output.kind, output.name, digest(content), msgspec.Raw(content) if inline else msgspec.UNSET,
                    output.derived_from,
                )
            )  # fmt: skip
        self._ending = True
        crash_point("done:before")
        derived = tuple(dict.fromkeys(d for output in outputs for d in output.derived_from))
        body = Done(tuple(results), settles)
        seq = await self._write(
            self.assignment.register, body, "step.done", trust=trust, prompt=prompt, derived_from=derived
        )
        crash_point("done:after")
        return seq

    async def failed(self, body: Failed) -> None:
        """Give the attempt up, with the reason. Raises `Fenced`, `BusError`."""
        self._ending = True
        crash_point("failed:before")
        await self._write(self.assignment.register, body, "step.failed")
        crash_point("failed:after")

    async def still_owned(self) -> bool:
        """Ask the register. Believes a move only; an answer that cannot be had changes nothing."""
        last = await self._bus.last(self.assignment.register, timeout=1.0)
        return last is None or last.seq <= self.fence

    async def _store(self, output: Output, body: bytes, trust: Trust) -> None:
        at = self.assignment
        if len(body) > self._bus.max_bytes - 4_096:
            raise ResultTooLarge(
                f"{output.kind} {output.name!r} has {len(body)} bytes; a record takes {self._bus.max_bytes - 4_096}"
            )
        subject = subjects.artifact(at.task, at.role, output.kind, output.name, self.fence)
        data = at.seal(output.artifact, "artifact", secrets.token_hex(12), fence=self.fence, trust=trust)
        await self._store_fenced(subject, data)

    async def _store_fenced(self, subject: str, data: bytes) -> None:
        fence = Fence(self.assignment.register, self.fence)
        if isinstance(await write(self._bus, subject, data, op=open_record(data).id, fence=fence), Conflict):
            self._lose()

    async def _write(self, subject: str, body: Wire, kind: str, **fields: Any) -> int:
        if self.lost.is_set():
            raise Fenced(f"step {self.assignment.step}: the register moved past {self.fence}")
        op = secrets.token_hex(12)
        data = self.assignment.seal(body, kind, op, fence=self.fence, **fields)
        if leaks(data):  # what tools and models said was seen to before; this is what a bug or an error says
            plain = redacted_values(msgspec.json.decode(encode(body)))
            body = msgspec.json.decode(msgspec.json.encode(plain), type=type(body))
            data = self.assignment.seal(body, kind, op, fence=self.fence, **fields)
        stored = await write(self._bus, subject, data, op=op, fence=Fence(self.assignment.register, self.fence))
        if isinstance(stored, Written):
            return stored.seq
        return self._lose()

    def _lose(self) -> int:
        self.lost.set()
        raise Fenced(f"step {self.assignment.step}: the register moved past {self.fence}")


def _without_secrets(output: Output) -> bytes:
    content = encode(output.artifact)
    if name := leaks(content):
        raise ResultHoldsSecret(f"{output.kind} {output.name!r} holds the credential {name}; leave it out")
    return content


def _line(record: Record) -> Line | None:
    """What a record of the journal or the register tells about calls."""
    if record.type == "step.journal":
        journal = msgspec.json.decode(record.body, type=Journal)
        return Line(record.attempt, journal.settles, journal.opens)
    if record.type == "step.claimed":
        claimed = msgspec.json.decode(record.body, type=Claimed)
        return Line(record.attempt, None, claimed.opens, claimed.order)
    if record.type == "step.waiting":
        return Line(record.attempt, msgspec.json.decode(record.body, type=Waiting).settles, None)
    return None
