"""Histories as data: a stream's messages, written as the real writers do, with nothing but `kokuban.schemas`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from core import contents
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.schemas import (
    Allotment,
    Claimed,
    Control,
    Done,
    Ending,
    Epoch,
    Failed,
    Final,
    Gate,
    Journal,
    Lease,
    Opens,
    Ref,
    Released,
    Result,
    Revoked,
    Settles,
    TaskSpec,
    Teammate,
    Usage,
    Vote,
    Waiting,
    Wire,
    WorkOrder,
    digest,
    encode,
    seal,
    subjects,
)
from kokuban.supervisor import Allow, Ask, Begin, Decide
from kokuban.supervisor._publish import record_of

Output = tuple[str, Wire]
"""Name and artifact."""


def kind_of(artifact: Wire) -> str:
    return type(artifact).__name__.lower()


def result_of(output: Output, *, outside: bool = False, derived_from: tuple[str, ...] = ()) -> Result:
    """What `done` says of an artifact; `outside`: without its content."""
    name, artifact = output
    content = encode(artifact)
    body = msgspec.UNSET if outside else msgspec.Raw(content)
    return Result(kind_of(artifact), name, digest(content), body, derived_from)


def refs_of(step: str, outputs: Sequence[Output], seq: int) -> tuple[Ref, ...]:
    return tuple(Ref(step, kind_of(a), name, digest(encode(a)), seq) for name, a in outputs)


@dataclass
class Register:
    """Where a step stands, as its writers know."""

    role: str
    reg: int = 0
    attempt: int = 0
    order: int = 0
    order_reg: int = 0
    fence: int = 0


@dataclass
class Stream:
    """What several histories write to. `skipped` are seconds that went by besides one for each message; `watch` is told
    of each message with the board before it, and what the fold made of it."""

    board: Board
    messages: list[Stored] = field(default_factory=list)
    last: int = 0
    skipped: float = 0.0
    watch: Callable[[Board, Applied], None] | None = None

    @property
    def now(self) -> float:
        """The time of the last message, or later."""
        return 1_000.0 + self.last + self.skipped

    def put(self, subject: str, data: bytes) -> Applied:
        before = copy.deepcopy(self.board) if self.watch else self.board
        self.last += 1
        message = Stored(self.last, subject, self.now, data)
        self.messages.append(message)
        applied = fold(self.board, message)
        if self.watch:
            self.watch(before, applied)
        return applied


class History:
    """What is said about one task, folded at once. Every method writes one message and returns what the fold made of
    it; `last` is the last sequence. Keyword fields override what an honest writer would put into the envelope. Several
    tasks share a `stream`."""

    def __init__(self, task: str = "t-1", *, board: Board | None = None, stream: Stream | None = None) -> None:
        self.task = task
        self.stream = stream or Stream(board if board is not None else Board())
        self.board = self.stream.board
        self.messages = self.stream.messages
        self.registers: dict[str, Register] = {}
        self.spec_seq = 0
        self.fence = self.board.epoch_of(task)

    @property
    def last(self) -> int:
        return self.stream.last

    @last.setter
    def last(self, value: int) -> None:
        self.stream.last = value

    # ------------------------------------------------------------------ anybody

    def put(self, subject: str, data: bytes) -> Applied:
        """Store bytes under a subject."""
        if ".step." in subject:
            for name, at in self.registers.items():
                if subject == subjects.register(self.task, at.role, name):
                    at.reg = self.last + 1
        return self.stream.put(subject, data)

    def write(self, subject: str, body: Wire, kind: str, **fields: object) -> Applied:
        """Store a sealed record about the task."""
        fields = {"id": f"op-{self.last + 1}", "task": self.task, "time": "2026-01-01T00:00:00.000+00:00", **fields}
        return self.put(subject, seal(body, type=kind, **fields))

    def spec(self, spec: TaskSpec | None = None, **fields: object) -> Applied:
        fields = {"principal": "ann", "trust": "principal", **fields}
        self.spec_seq = self.spec_seq or self.last + 1
        return self.write(subjects.spec(self.task), spec or contents.spec(), "task.spec", **fields)

    # ------------------------------------------------------------------ the leader

    def lead(self, supervisor: str = "s-1") -> None:
        """A lease and the epoch of the task's shard."""
        self.write(subjects.LEASE, Lease(supervisor), "ctl.lease", task=None, worker=supervisor)
        shard = subjects.shard(self.task)
        self.write(subjects.epoch(shard), Epoch(supervisor, shard), "ctl.epoch", task=None, worker=supervisor)
        self.fence = self.last

    def order(
        self, step: str, role: str, /, *, order: WorkOrder | None = None, produces: Sequence[str] = (),
        inputs: Sequence[Ref] = (), judges: Sequence[str] = (), team: Sequence[str] = ("coder", "researcher"),
        **fields: object,
    ) -> Applied:  # fmt: skip
        """Order the step's next attempt, from the register as it stands."""
        at = self.registers.setdefault(step, Register(role))
        mates = tuple(Teammate(name, f"does {name}") for name in team)
        kinds = tuple(produces) or PRODUCES[role]
        body = order or WorkOrder(
            at.reg, self.spec_seq, f"do {step}", kinds, inputs=tuple(inputs), judges=tuple(judges), team=mates
        )
        fields = {"step": step, "role": role, "attempt": at.attempt + 1, "fence": self.fence, "worker": "s-1", **fields}
        applied = self.write(subjects.work(self.task, role, step), body, "step.order", **fields)
        if not applied.ignored:
            at.attempt, at.order, at.order_reg = at.attempt + 1, self.last, body.reg
        return applied

    def release(self, step: str, why: str = "silent", **fields: object) -> Applied:
        return self._register(step, Released(why, "not heard of"), "step.released", fence=self.fence, **fields)  # type: ignore[arg-type]

    def begin(self, state: str = "failed", reason: str = "it cannot be done", **fields: object) -> Applied:
        """The leader says that the task is about to end."""
        body = Ending(state, reason)  # type: ignore[arg-type]
        return self.write(subjects.ending(self.task), body, "task.ending", **{"fence": self.fence, **fields})

    def revoke(self, step: str, reason: str = "the task has failed", **fields: object) -> Applied:
        """Seal a step; the task's end is begun first when nobody has said it yet."""
        task = self.board.tasks.get(self.task)
        if task is not None and task.ending is None and task.final is None:
            self.begin(reason=reason)
        return self._register(step, Revoked(reason), "step.revoked", fence=self.fence, **fields)

    def decided(self, command: Allow | Ask | Begin | Decide) -> Applied:
        """The leader's word on a gate, or its answer to an owner that asked for more."""
        draft = record_of(
            self.board.tasks[self.task], command, op=f"op-{self.last + 1}", worker="s-1",
            time="2026-01-01T00:00:00.000+00:00", epoch=self.fence,
        )  # fmt: skip
        return self.put(draft.subject, draft.data)

    def say(self, op: str, text: str = "", *, person: str = "ann", **fields: object) -> Applied:
        """A person's word to the task: cancel, inject or drop."""
        body = Control(op, text)  # type: ignore[arg-type]
        return self.write(subjects.control(self.task, person, f"c-{self.last}"), body, "task.control", **fields)

    def vote(
        self, gate: str, vote: str = "approve", text: str = "", *, person: str = "ann", **fields: object
    ) -> Applied:
        at = self.board.tasks[self.task].gates[gate]
        body = Vote(vote, fields.pop("bound", at.bound), text)  # type: ignore[arg-type]
        subject = subjects.gate_vote(self.task, at.role, gate, person)
        return self.write(subject, body, "gate.vote", **{"role": at.role, "principal": person, **fields})

    def wait(self, step: str, gate: Gate, *, settles: Settles | None = None, **fields: object) -> Applied:
        """The owner lets the step go until people have decided."""
        fields = {"fence": self.registers[step].fence, **fields}
        return self._register(step, Waiting(gate, settles), "step.waiting", **fields)

    def final(self, body: Final | None = None, **fields: object) -> Applied:
        body = body or Final("failed", "it cannot be done")
        return self.write(subjects.final(self.task), body, "task.final", **{"fence": self.fence, **fields})

    # ------------------------------------------------------------------ an owner

    def claim(
        self, step: str, /, *, body: Claimed | None = None, opens: Opens | None = None, **fields: object
    ) -> Applied:
        at = self.registers[step]
        applied = self._register(step, body or Claimed(at.order, at.order_reg, opens), "step.claimed", **fields)
        if not applied.ignored:
            at.fence = self.last
        return applied

    def journal(
        self, step: str, /, *, settles: Settles | None = None, opens: Opens | None = None,
        asks: Allotment | None = None, **fields: object,
    ) -> Applied:  # fmt: skip
        at = self.registers[step]
        fields = {"step": step, "role": at.role, "attempt": at.attempt, "fence": at.fence, "worker": "w-1", **fields}
        subject = subjects.journal(self.task, at.role, step)
        return self.write(subject, Journal(settles, opens, asks), "step.journal", **fields)

    def store(self, step: str, output: Output, /, *, subject_fence: int | None = None, **fields: object) -> Applied:
        """Write an artifact outside the commit."""
        at = self.registers[step]
        name, artifact = output
        fence = at.fence if subject_fence is None else subject_fence
        subject = subjects.artifact(self.task, at.role, kind_of(artifact), name, fence)
        fields = {"step": step, "role": at.role, "attempt": at.attempt, "fence": at.fence, "worker": "w-1", **fields}
        return self.write(subject, artifact, "artifact", **{"trust": "model", **fields})

    def done(
        self, step: str, /, *outputs: Output, results: Sequence[Result] | None = None, settles: Settles | None = None,
        usage: Usage = Usage(), **fields: object,
    ) -> Applied:  # fmt: skip
        """Commit these artifacts, inline; or `results` as given."""
        body = Done(tuple(result_of(o) for o in outputs) if results is None else tuple(results), settles, usage)
        return self._register(step, body, "step.done", **{"fence": self.registers[step].fence, **fields})

    def failed(self, step: str, body: Failed | None = None, **fields: object) -> Applied:
        body = body or Failed("model", "no answer")
        return self._register(step, body, "step.failed", **{"fence": self.registers[step].fence, **fields})

    def perform(self, step: str, role: str, *outputs: Output, **order: object) -> tuple[Ref, ...]:
        """Order, claim and commit; returns the refs of what was admitted."""
        self.order(step, role, **order)  # type: ignore[arg-type]
        self.claim(step)
        applied = self.done(step, *outputs)
        assert applied.admitted, applied
        return tuple(artifact.ref for artifact in applied.admitted)

    def _register(self, step: str, body: Wire, kind: str, /, **fields: object) -> Applied:
        at = self.registers[step]
        fields = {"step": step, "role": at.role, "attempt": at.attempt, "worker": "w-1", **fields}
        return self.write(subjects.register(self.task, at.role, step), body, kind, **fields)


PRODUCES = {
    "planner": ("plan",),
    "researcher": ("finding",),
    "coder": ("patch",),
    "verifier": ("verdict", "critique"),
    "integrator": ("deliverable",),
}


def begun(**spec: object) -> History:
    """A history with a leader and a task."""
    history = History()
    history.lead()
    history.spec(contents.spec(**spec))  # type: ignore[arg-type]
    return history


def folded(messages: Sequence[Stored], *, filtered: bool = False) -> Board:
    """The fold of messages from zero."""
    board = Board(filtered=filtered)
    for message in messages:
        fold(board, message)
    return board
