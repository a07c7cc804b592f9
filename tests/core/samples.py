"""One valid value for every exported schema, with every field given something other than its default."""

from __future__ import annotations

import msgspec

from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Budget,
    CheckResult,
    Citation,
    Claimed,
    Control,
    Critique,
    Decided,
    Decision,
    Deliverable,
    Done,
    Ending,
    Epoch,
    Failed,
    Feedback,
    FileChange,
    Final,
    Finding,
    Gate,
    GateRequest,
    Grant,
    Intake,
    Journal,
    KindRef,
    Lease,
    Opens,
    Part,
    Patch,
    Plan,
    PlanStep,
    Record,
    Ref,
    RegisteredKind,
    RegisteredRole,
    Released,
    Result,
    Revision,
    Revoked,
    Settles,
    Snapshot,
    TaskSpec,
    Teammate,
    TenantLimits,
    Tombstone,
    Usage,
    Verdict,
    Vote,
    Waiting,
    Wire,
    WorkOrder,
    digest,
)
from kokuban.schemas.memory import Forgotten, Judgement, Proposal
from kokuban.schemas.quota import Endpoint, EndpointLimits, Holder, Moment, Waiter

D1, D2 = digest(b"one"), digest(b"two")
RAW = msgspec.Raw(b'{"a":[1,2.5,"\xc3\xa9"]}')
REF = Ref("write", "patch", "change", D1, 7)
USAGE = Usage(10, 20, 1, 2, True, 700, 9)
OPENS = Opens(
    2, "tool", "read_file", RAW, "key-1", 500, 60, "g-1", "keyed", "allow by reads (policy 1)", "coder@0123456789ab",
    "undone",
)  # fmt: skip
SETTLES = Settles(1, USAGE, RAW)
BUDGET = Budget(10, 20, 30_000, 40_000, 500)
ALLOTMENT = Allotment(1, 2, 3, 4, 5)
GATE = Gate(
    "g-1", "call", "May it?", "write_file", RAW, D1, "2", "p-1", 3, "key-1", REF, 2, 3_600,
)  # fmt: skip
CHANGE = FileChange("a/b.py", "modify", D1, D2, True, "text", "dGV4dA==")

SAMPLES: dict[str, Wire] = {
    "record": Record(
        id="op-1", type="step.done", version=2, task="t-1", parent="t-0", step="write", role="coder", attempt=2,
        fence=9, worker="w-1", principal="ann", policy="p-1", prompt="q-1", trust="model",
        time="2026-01-01T00:00:00.000+00:00", trace="00-1", derived_from=(D1, D2), sha256=digest(RAW), body=RAW,
    ),
    "task": TaskSpec(
        "mend it", D1, D2, ("true", "false"), 30, "key", 2, 5, 6, 7_000, 60, BUDGET, "acme", 7, 3_600, ("t-0",), 2,
        ("patch",), 3, 600,
    ),
    "plan": Plan((PlanStep("a", "coder", "go"), PlanStep("b", "researcher", "look", ("a",), True))),
    "finding": Finding("it is so", (Citation("notes.md", 1, 3, "so it is", D1),)),
    "patch": Patch(D1, D2, (CHANGE,), "+text", (D1,), "a summary"),
    "verdict": Verdict(REF, True, "part", True, D2, (CheckResult("true", 1, True, 0, "out", "group"),), ("because",)),
    "critique": Critique(REF, "look again"),
    "deliverable": Deliverable(D1, D2, (CHANGE,), "+", "# Report", (Part("a/b.py", (REF,)),), (REF,), True),
    "step.order": WorkOrder(
        5, 3, "go", ("patch",), ("a",), (REF,), (D1,), (Feedback(1, "verdict", "no", D2),),
        ALLOTMENT, (Teammate("coder", "writes", ("task",), ("patch",)),), "part", 1, 2, 3, ("it rained",),
        (Decided("g-1", "denied", D1, "no", ("ann",)),), Revision(1, "facts", REF, ("a",)), (KindRef("note", 2),),
        Allotment(6, 7, 8, 9, 10), True,
    ),
    "step.claimed": Claimed(4, 3, OPENS),
    "step.done": Done((Result("patch", "change", D1, RAW, (D2,)),), SETTLES, USAGE),
    "step.failed": Failed("conflict", "clash", False, SETTLES, USAGE, ("a", "b"), ("a/b.py",)),
    "step.released": Released("silent", "not heard of"),
    "step.revoked": Revoked("it is over"),
    "task.ending": Ending("cancelled", "it is over", "look"),
    "step.journal": Journal(SETTLES, OPENS, ALLOTMENT),
    "task.final": Final("done", "all passed", True, REF, REF, USAGE, ("b",), ("a",)),
    "step.waiting": Waiting(GATE, SETTLES, USAGE),
    "step.granted": Grant(4, ALLOTMENT),
    "gate.request": GateRequest(GATE),
    "gate.vote": Vote("approve", D1, "it is fine"),
    "gate.decision": Decision("g-1", "approved", D1, ("ann", "bob"), "it is fine"),
    "task.control": Control("inject", "it rained"),
    "task.tombstone": Tombstone("dead", "lost", 3, 9, "acme", "key", D1, D2, USAGE, 60, True),
    "ctl.lease": Lease("s-1"),
    "ctl.epoch": Epoch("s-1", 3),
    "ctl.limits": BoardLimits({"coder": 2}, {"acme": TenantLimits(3, BUDGET)}, 4, {"priority": 2.5}),
    "ctl.intake": Intake(True, 100, 1_000),
    "ctl.kind": RegisteredKind("note", 1, RAW),
    "ctl.role": RegisteredRole("writer", 'role = "writer"'),
    "ctl.snapshot": Snapshot(D1, 5, "op-5", "1"),
    "quota.endpoint": Endpoint(
        (Holder("h-1", "w-1", 100.5, 7),), (Moment(99.0, 2, 30),), (Waiter("h-2", "w-2", 104.0),), 101.0
    ),
    "quota.limits": EndpointLimits(2, 60, 1_000),
    "memory.proposed": Proposal("acme", "fact", "key", "text", "t-1", "fix", (D1,), "ann", 60),
    "memory.judged": Judgement("approved", D1, "seen"),
    "memory.forgotten": Forgotten("person-ann"),
}  # fmt: skip
