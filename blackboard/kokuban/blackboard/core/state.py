"""What the board says so far. Only `fold` changes these; everybody else reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from kokuban.schemas import Failed, Final, Opens, Plan, Ref, TaskSpec, Usage, Verdict, WorkOrder, subjects

Status = Literal["ordered", "claimed", "done", "refused", "failed", "released", "revoked"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An admitted artifact. `body` is its JSON, byte for byte; empty once its task has ended (read it by `ref.seq`)."""

    ref: Ref
    role: str
    worker: str
    attempt: int
    fence: int
    derived_from: tuple[str, ...]
    body: bytes


@dataclass(slots=True)
class Step:
    """A step, as its register and orders say.

    `reg` is the register's last sequence whoever wrote it: the next order and every compare-and-set cite it. `fence` is
    the valid claim's sequence, 0 without one. `why` is the class of a release or failure, `reasons` are for people.
    `stored` holds artifacts written outside the commit, by kind, name and digest, until the attempt ends.
    """

    id: str
    role: str
    reg: int = 0
    status: Status = "released"
    attempt: int = 0
    order: WorkOrder | None = None
    order_seq: int = 0
    fence: int = 0
    claim_time: float = 0.0
    worker: str = ""
    results: tuple[Artifact, ...] = ()
    reasons: tuple[str, ...] = ()
    why: str = ""
    failure: Failed | None = None
    opened: Opens | None = None
    usage: Usage = Usage()
    stored: dict[tuple[str, str, str], bytes] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Ordered or claimed: it holds a slot."""
        return self.status in ("ordered", "claimed")

    @property
    def moved(self) -> bool:
        """Ordered or claimed, but the register has been written since: the server refuses the claim of the order, or
        the owner's every write."""
        expected = self.fence or (self.order.reg if self.order else 0)
        return self.running and self.reg != expected


@dataclass(slots=True)
class Task:
    """A task. `artifacts` holds the admitted ones by digest; `verdicts` the judgements by the digest they name;
    `registers` the last sequence on each step register, by role and step, whoever wrote it."""

    id: str
    spec: TaskSpec
    spec_seq: int
    time: float
    principal: str = ""
    steps: dict[str, Step] = field(default_factory=dict)
    registers: dict[tuple[str, str], int] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    verdicts: dict[str, tuple[Artifact, Verdict]] = field(default_factory=dict)
    plan: Plan | None = None
    final: Final | None = None
    final_seq: int = 0
    last_seq: int = 0

    @property
    def usage(self) -> Usage:
        return sum((step.usage for step in self.steps.values()), Usage())


@dataclass(slots=True)
class Board:
    """All tasks, and what decisions are fenced on. `running` counts ordered and claimed steps by role.

    `filtered` says that this is a reading of one task's subjects: the epochs are not in it, and what the server checked
    when it stored a decision stands.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    running: Counter[str] = field(default_factory=Counter)
    last_seq: int = 0
    ignored: int = 0
    filtered: bool = False

    def epoch_of(self, task: str) -> int:
        """The sequence that a decision about this task must cite, 0 before any leader."""
        return self.epochs.get(subjects.shard(task), 0)
