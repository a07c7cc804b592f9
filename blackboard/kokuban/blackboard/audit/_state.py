"""What the history says so far, as this checker reads it. It shares no code with the fold that it checks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ._record import Rec

RUNNING = ("ordered", "claimed")


@dataclass(frozen=True)
class Violation:
    """A rule that the history breaks: where, and how."""

    rule: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.seq}: {self.text}"


@dataclass(frozen=True)
class Spent:
    """What work cost, in every dimension of a budget."""

    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    micros: int = 0
    seconds: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, d) + getattr(other, d) for d in DIMENSIONS))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, d) - getattr(other, d) for d in DIMENSIONS))

    def at_least_zero(self) -> Spent:
        return Spent(*(max(0, getattr(self, d)) for d in DIMENSIONS))


DIMENSIONS = ("steps", "tool_calls", "tokens", "micros", "seconds")


def usage_of(body: dict[str, Any] | None) -> Spent:
    """A `Usage` as a record holds it."""
    body = body or {}
    tokens = int(body.get("input_tokens", 0)) + int(body.get("output_tokens", 0))
    return Spent(
        int(body.get("model_calls", 0)),
        int(body.get("tool_calls", 0)),
        tokens,
        int(body.get("micros", 0)),
        int(body.get("seconds", 0)),
    )


@dataclass(frozen=True)
class Artifact:
    """A result that a `done` cites. `wrong` says why it cannot have been admitted, '' when nothing is known against
    it; `body` is its exact text, None when its content is nowhere."""

    step: str
    role: str
    kind: str
    name: str
    digest: str
    seq: int
    attempt: int
    body: str | None
    wrong: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        return (self.step, self.kind, self.name, self.digest, self.seq)


@dataclass
class Call:
    """A journalled call. `settled` is the sequence of its settlement, 0 while there is none; `effect` what it does
    to the world: `read`, `keyed` or `other`, '' for a model's. `told` says that it came to a `result`: one that is
    settled without was not made, or in vain."""

    number: int
    kind: str
    tool: str
    key: str
    arguments: str | None
    seq: int
    time: float
    fence: int
    begun: int
    reserved: Spent = Spent()
    settled: int = 0
    told: bool = False
    result: Any = None
    gate: str = ""
    effect: str = ""


@dataclass
class Step:
    """A step's register, order, owner and work. `begun` is the attempt in which the present work began, `before` what
    had been spent when it did. `calls` are those of the present work, `once` those of any work that may be made only
    once (effect `other`)."""

    id: str
    role: str
    reg: int = 0
    status: str = ""
    attempt: int = 0
    order: Rec | None = None
    fence: int = 0
    claim_time: float = 0.0
    worker: str = ""
    begun: int = 0
    usage: Spent = Spent()
    before: Spent = Spent()
    allotment: dict[str, Any] = field(default_factory=dict)
    asks: dict[str, Any] | None = None
    opened: Call | None = None
    calls: list[Call] = field(default_factory=list)
    once: list[Call] = field(default_factory=list)
    results: tuple[Artifact, ...] = ()
    gate: str = ""

    @property
    def running(self) -> bool:
        return self.status in RUNNING

    @property
    def doubts(self) -> list[Call]:
        """Calls that may have had their effect, and of which nobody has said how they ended."""
        return [call for call in self.once if not call.settled]


@dataclass
class Gate:
    """Something that waits for people. `bound` is the digest of what they are asked."""

    id: str
    role: str
    step: str
    about: str
    bound: str
    need: int
    seq: int
    time: float
    expires: float | None
    subject: dict[str, Any] | None
    body: dict[str, Any]
    votes: dict[str, Rec] = field(default_factory=dict)
    decision: Rec | None = None
    used: set[tuple[str, int, int]] = field(default_factory=set)


@dataclass
class Task:
    """A task. `stored` holds content that was written outside a `done`: role, kind, name and fence to its text."""

    id: str
    spec: Rec
    parent: str | None
    tenant: str
    steps: dict[str, Step] = field(default_factory=dict)
    registers: dict[tuple[str, str], int] = field(default_factory=dict)
    stored: dict[tuple[str, str, str, int], str] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    cancel: Rec | None = None
    ending: Rec | None = None
    final: Rec | None = None
    archived: bool = False
    verdicts: dict[str, tuple[Artifact, dict[str, Any]]] = field(default_factory=dict)

    @property
    def usage(self) -> Spent:
        total = Spent()
        for step in self.steps.values():
            total = total + step.usage
        return total

    def current(self) -> dict[tuple[str, str, str, str, int], Artifact]:
        """The results that count now, by identity."""
        found = {}
        for step in self.steps.values():
            if step.status == "done":
                found.update({a.identity: a for a in step.results})
        return found


@dataclass
class Settings:
    """What the stream does not say by itself.

    `roles`: steps of a role at once, where no `ctl.limits` says otherwise; `steps_per_task` likewise. `effects`: what a
    tool does to the world: `read`, `keyed` (its other side honours idempotency keys) or `other`. `judged`: kinds that a
    deliverable may cite only with a passing verdict. `unfinished`: the history was taken while tasks were under way.
    `grace_seconds`: how long after a change of limits or a cancel a decision made before it may still arrive.
    """

    roles: dict[str, int] = field(default_factory=dict)
    steps_per_task: int | None = None
    effects: dict[str, str] = field(default_factory=dict)
    judged: tuple[str, ...] = ("finding", "patch")
    unfinished: bool = False
    grace_seconds: float = 5.0
    whole_board: bool = True

    def but(self, **changes: Any) -> Settings:
        return replace(self, **changes)


class History:
    """Everything read so far, and what is wrong with it. `notes` are things to know that break no rule."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: dict[str, Task] = {}
        self.children: dict[str, list[str]] = {}
        self.under_way: dict[tuple[str, str], tuple[Task, Step]] = {}
        self.epochs: dict[int, Rec] = {}
        self.limits: dict[str, Any] = {}
        self.limits_before: dict[str, Any] = {}
        self.limits_time = float("-inf")
        self.operations: dict[str, int] = {}
        self.effects: list[tuple[Task, Step, Call]] = []
        self.violations: list[Violation] = []
        self.notes: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.last_time = 0.0

    def wrong(self, rule: str, seq: int, text: str) -> None:
        self.violations.append(Violation(rule, seq, text))

    def note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def move(self, task: Task, step: Step, status: str) -> None:
        """Give a step another status, and keep the list of those under way."""
        step.status = status
        if step.running:
            self.under_way[(task.id, step.id)] = (task, step)
        else:
            self.under_way.pop((task.id, step.id), None)

    def tree(self, root: str) -> dict[str, Task]:
        """A task and all below it."""
        found: dict[str, Task] = {}
        frontier = [root]
        while frontier:
            name = frontier.pop()
            if name in self.tasks and name not in found:
                found[name] = self.tasks[name]
                frontier += self.children.get(name, [])
        return found

    def ancestors(self, task: Task) -> list[Task]:
        """The task and every task above it."""
        found = [task]
        while found[-1].parent and found[-1].parent in self.tasks and len(found) < 1_000:
            above = self.tasks[found[-1].parent]
            if above in found:
                break
            found.append(above)
        return found
