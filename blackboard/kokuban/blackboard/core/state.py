"""What the board says so far. Only `fold` changes these; everybody else reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Decision,
    Ending,
    Failed,
    Final,
    Gate,
    Intake,
    Opens,
    Plan,
    Ref,
    TaskSpec,
    Tombstone,
    Usage,
    Verdict,
    Vote,
    WorkOrder,
    subjects,
)

Status = Literal["ordered", "claimed", "done", "refused", "failed", "released", "revoked", "waiting"]


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

    `usage` is that of all attempts, `begun` what it was when the present work began (an attempt and those that take it
    up). `granted` is what the leader raised its allotment to, `asks` what the owner asked for and has no answer to yet.
    `gate` is what a waiting step waits for. `doubt` is a call whose effect may have happened and may not be made again:
    nobody said how it ended. `version` is that of the order's record.
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
    begun: Usage = Usage()
    granted: Allotment | None = None
    asks: Allotment | None = None
    gate: str = ""
    doubt: Opens | None = None
    version: int = 0
    stored: dict[tuple[str, str, str], bytes] = field(default_factory=dict)

    @property
    def allotment(self) -> Allotment:
        """What the present work may spend in all."""
        assert self.order is not None
        return self.granted or self.order.allotment

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
class GateState:
    """A gate, by whom it was asked for (`step`, '' for one on an artifact), and what people said so far.

    `bound` is the digest of the gate: votes and the decision name it. `used` is the number of the call that used the
    approval up, 0 while none has. `begun` is the attempt in which the work that asks began.
    """

    gate: Gate
    bound: str
    role: str
    step: str
    seq: int
    time: float
    begun: int = 0
    votes: dict[str, Vote] = field(default_factory=dict)
    decision: Decision | None = None
    used: int = 0


@dataclass(slots=True)
class Task:
    """A task. `artifacts` holds the admitted ones by digest; `verdicts` the judgements by the digest they name;
    `registers` the last sequence on each step register, by role and step, whoever wrote it.

    `children` are the tasks that name it as their parent, `dependents` those that wait for its end. `tree_usage` is
    what it and all tasks below it have spent. `cancel` is the reason a person gave, `facts` what people added.
    `ending` is the end that it is about to have. `admissible` is false for one that was stored while intake was closed.
    `deadline` is a time of the server's clock.
    """

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
    ending: Ending | None = None
    final_time: float = 0.0
    last_seq: int = 0
    last_time: float = 0.0
    parent: str | None = None
    children: list[str] = field(default_factory=list)
    dependents: list[str] = field(default_factory=list)
    usage: Usage = Usage()
    tree_usage: Usage = Usage()
    cancel: str | None = None
    facts: list[str] = field(default_factory=list)
    gates: dict[str, GateState] = field(default_factory=dict)
    deadline: float | None = None
    admissible: bool = True
    dropped: bool = False
    tombstone: Tombstone | None = None

    @property
    def tenant(self) -> str:
        return self.spec.tenant


@dataclass(slots=True)
class Board:
    """All tasks, and what decisions are fenced on. `running` counts ordered and claimed steps by role, `under_way`
    names them by task and step; `spent` is what each tenant's tasks have spent. `kinds` (kind, version: schema) and
    `roles` (role: contract) are what users registered.

    `filtered` says that this is a reading of one task's subjects: the epochs are not in it, and what the server checked
    when it stored a decision stands. `slim` boards keep only a stub of a task that has ended. `tombstones` says until
    when (server time) the tombstones last that do not last for ever.
    """

    tasks: dict[str, Task] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    running: Counter[str] = field(default_factory=Counter)
    under_way: dict[tuple[str, str], Step] = field(default_factory=dict)
    spent: dict[str, Usage] = field(default_factory=dict)
    limits: BoardLimits = field(default_factory=BoardLimits)
    intake: Intake | None = None
    kinds: dict[str, dict[int, bytes]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    last_seq: int = 0
    ignored: int = 0
    filtered: bool = False
    slim: bool = False
    tombstones: dict[str, float] = field(default_factory=dict)

    def epoch_of(self, task: str) -> int:
        """The sequence that a decision about this task must cite, 0 before any leader."""
        return self.epochs.get(subjects.shard(task), 0)
