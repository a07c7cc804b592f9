"""One good history with a little of everything in it, written with Kokuban's own shapes and folded by its fold as
it is written, and lines that a test may change before they are sealed again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core import contents
from kokuban.blackboard.audit import Message, Settings
from kokuban.blackboard.core import Board, Stored, fold
from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Budget,
    Claimed,
    Control,
    Decided,
    Decision,
    Done,
    Ending,
    Epoch,
    Failed,
    Final,
    Gate,
    GateRequest,
    Grant,
    Journal,
    Opens,
    Ref,
    Released,
    Result,
    Revoked,
    Settles,
    Teammate,
    TenantLimits,
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

SETTINGS = Settings(
    roles={"planner": 3, "coder": 2, "verifier": 2, "integrator": 2}, steps_per_task=8,
    effects={"keyed_effect": "keyed", "deploy": "other"},
)  # fmt: skip
TEAM = (Teammate("coder", "writes"),)
ROOT, CHILD, FAILS, AFTER, NEXT, LATE = "t-root", "t-child", "t-fails", "t-after", "t-next", "t-late"
LAST = "t-last"
KEYED, DEPLOY = f"{ROOT}/work/keyed_effect:5f2b:0", f"{ROOT}/work/deploy:91c0:0"
AGAIN, DOUBT = f"{FAILS}/plan/keyed_effect:77aa:0", f"{FAILS}/plan/deploy:0d3e:0"


@dataclass
class Line:
    """A stored message, open to change: `env` is the envelope, its `body` as plain data. `raw`: bytes as they are."""

    seq: int
    subject: str
    time: float
    env: dict[str, Any]
    raw: bytes | None = None

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = self.env["body"]
        return found

    def message(self) -> Message:
        """Sealed again, as a writer would."""
        if self.raw is not None:
            return Message(self.seq, self.subject, self.time, self.raw)
        body = json.dumps(self.env["body"], separators=(",", ":"), ensure_ascii=False)
        env = {**self.env, "sha256": "sha256:" + hashlib.sha256(body.encode()).hexdigest()}
        del env["body"]
        head = json.dumps(env, separators=(",", ":"), ensure_ascii=False)
        return Message(self.seq, self.subject, self.time, f'{head[:-1]},"body":{body}}}'.encode())


@dataclass
class Story:
    """Writes records, one a tenth of a second, and folds them at once. What the fold ignores is the story's fault."""

    board: Board = field(default_factory=Board)
    lines: list[Line] = field(default_factory=list)
    effects: list[dict[str, Any]] = field(default_factory=list)
    leader: str = ""
    workers: dict[tuple[str, str], str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def put(self, subject: str, body: Wire, kind: str, **fields: Any) -> int:
        seq = len(self.lines) + 1
        data = seal(body, id=f"op-{seq}", type=kind, **fields)
        self.lines.append(Line(seq, subject, 1_000 + seq / 10, json.loads(data)))
        applied = fold(self.board, Stored(seq, subject, 1_000 + seq / 10, data))
        if applied.ignored:
            self.ignored.append(f"{kind} at {seq}: {applied.ignored}")
        return seq

    def lead(self, name: str) -> None:
        self.leader = name
        for shard in range(subjects.EPOCH_SHARDS):
            self.put(subjects.epoch(shard), Epoch(name, shard), "ctl.epoch", worker=name)

    def decide(self, task: str, subject: str, body: Wire, kind: str, **fields: Any) -> int:
        fields = {"worker": self.leader, "fence": self.board.epoch_of(task), **fields}
        return self.put(subject, body, kind, task=task, **fields)

    def spec(self, task: str, *, parent: str | None = None, **spec: Any) -> None:
        self.put(subjects.spec(task), contents.spec(**spec), "task.spec", task=task, parent=parent, principal="ann")

    def order(self, task: str, step: str, role: str, **order: Any) -> int:
        known = self.board.tasks[task].steps.get(step)
        reg, attempt = (known.reg, known.attempt + 1) if known else (0, 1)
        produces = {"planner": ("plan",), "coder": ("patch",), "verifier": ("verdict", "critique")}
        fields = {"reg": reg, "spec": self.board.tasks[task].spec_seq, "goal": "do it", **order}
        fields.setdefault("allotment", Allotment(2, 0, 2_000, 90))
        fields.setdefault("produces", produces.get(role, ("deliverable",)))
        if role == "planner":
            fields["team"] = TEAM
        subject = subjects.work(task, role, step)
        return self.decide(task, subject, WorkOrder(**fields), "step.order", step=step, role=role, attempt=attempt)

    def claim(self, task: str, step: str, worker: str, opens: Opens | None = None) -> int:
        at = self.board.tasks[task].steps[step]
        assert at.order is not None
        self.workers[(task, step)] = worker
        return self._own(task, step, Claimed(at.order_seq, at.order.reg, opens), "step.claimed", fence=0)

    def journal(self, task: str, step: str, settles: Settles | None = None, opens: Opens | None = None,
                asks: Allotment | None = None) -> int:  # fmt: skip
        return self._own(task, step, Journal(settles, opens, asks), "step.journal")

    def done(self, task: str, step: str, *outputs: tuple[str, Wire], settles: Settles | None = None) -> tuple[Ref, ...]:
        results, refs = [], []
        for name, artifact in outputs:
            content, kind = encode(artifact), type(artifact).__name__.lower()
            results.append(Result(kind, name, digest(content), msgspec.Raw(content)))
            refs.append((step, kind, name, digest(content)))
        seq = self._own(task, step, Done(tuple(results), settles), "step.done")
        return tuple(Ref(*ref, seq) for ref in refs)

    def failed(self, task: str, step: str, body: Failed, /) -> None:
        self._own(task, step, body, "step.failed")

    def begin(self, task: str, state: str) -> None:
        self.decide(task, subjects.ending(task), Ending(state, "so it will end"), "task.ending")  # type: ignore[arg-type]

    def take_back(self, task: str, step: str, body: Released | Revoked, **fields: Any) -> int:
        role = self.board.tasks[task].steps[step].role
        kind = "step.released" if isinstance(body, Released) else "step.revoked"
        return self.decide(task, subjects.register(task, role, step), body, kind, step=step, role=role, **fields)

    def end(self, task: str, state: str, **final: Any) -> None:
        body = Final(state, "so it ended", usage=self.board.tasks[task].usage, **final)  # type: ignore[arg-type]
        self.decide(task, subjects.final(task), body, "task.final")

    def vote(self, task: str, role: str, gate: Gate, person: str, word: str = "approve") -> None:
        body = Vote(word, digest(encode(gate)))  # type: ignore[arg-type]
        subject = subjects.gate_vote(task, role, gate.id, person)
        self.put(subject, body, "gate.vote", task=task, role=role, principal=person)

    def decision(self, task: str, role: str, gate: Gate, *by: str) -> None:
        body = Decision(gate.id, "approved", digest(encode(gate)), by)
        self.decide(task, subjects.gate_decision(task, role, gate.id), body, "gate.decision", role=role)

    def effect(self, key: str, *, applied: bool, honours: bool) -> None:
        time = 1_000 + (len(self.lines) + 0.5) / 10
        self.effects.append({"key": key, "time": time, "applied": applied, "honours": honours})

    def _own(self, task: str, step: str, body: Wire, kind: str, **fields: Any) -> int:
        at = self.board.tasks[task].steps[step]
        subject = (subjects.journal if kind == "step.journal" else subjects.register)(task, at.role, step)
        worker = self.workers[(task, step)]
        fields = {"fence": at.fence, "attempt": at.attempt, "worker": worker, **fields}
        return self.put(subject, body, kind, task=task, step=step, role=at.role, **fields)


def result(value: object) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def good() -> Story:
    """The whole of it."""
    s = Story()
    s.lead("sup-1")
    tenants = {"default": TenantLimits(10, Budget(tokens=1_000_000))}
    s.put(subjects.LIMITS, BoardLimits(roles={"coder": 1}, tenants=tenants), "ctl.limits")
    budget = Budget(steps=20, tool_calls=20, tokens=20_000, micros=10_000, seconds=1_000)
    s.spec(ROOT, budget=budget, approve=("patch",))
    s.spec(FAILS)
    _planned(s, ROOT)
    s.spec(CHILD, parent=ROOT)
    patch = _worked(s)
    _cancelled(s)
    _delivered(s, patch)
    _others(s)
    assert len(s.ignored) == 2, s.ignored  # a role's that is no leader, and the past leader's
    return s


def _planned(s: Story, task: str) -> None:
    s.order(task, "plan", "planner", allotment=Allotment(3, 0, 4_000, 90, 1_000), budgeted=True)
    s.claim(task, "plan", "w-plan", Opens(1, "model"))
    settles = Settles(1, Usage(100, 20, 1, micros=10), result({"content": "…"}))
    s.done(task, "plan", ("plan", contents.plan(("work", "coder", ()))), settles=settles)


def _worked(s: Story) -> Ref:
    """A coder's step: lost once with an effect under way, taken up, granted more, asks people, hands over."""
    allotted, more = Allotment(5, 5, 5_000, 90, 1_000), Allotment(5, 5, 8_000, 90, 1_000)
    effect = Opens(2, "tool", "keyed_effect", result({"of": "it"}), KEYED, effect="keyed")
    s.order(ROOT, "work", "coder", allotment=allotted, more=more, budgeted=True)
    s.claim(ROOT, "work", "w-1", Opens(1, "model"))
    s.journal(ROOT, "work", Settles(1, Usage(900, 100, 1, micros=50), result({"content": "go"})), effect)
    s.effect(KEYED, applied=True, honours=True)
    s.take_back(ROOT, "work", Released("silent", "nothing heard"))
    s.order(ROOT, "work", "coder", allotment=allotted, more=more, resumes=1, recoveries=1, budgeted=True)
    fence = s.claim(ROOT, "work", "w-2")
    s.journal(ROOT, "work", opens=effect)
    s.effect(KEYED, applied=False, honours=True)
    s.journal(ROOT, "work", Settles(2, Usage(tool_calls=1), result({"ok": True})), asks=more)
    s.decide(ROOT, subjects.grant(ROOT, "coder", "work"), Grant(fence, more), "step.granted", step="work", role="coder")
    asked = Opens(3, "model", arguments=result("a digest"), reserved_tokens=6_000, reserved_micros=300)
    s.journal(ROOT, "work", opens=asked)
    arguments = result({"where": "there"})
    gate = Gate("work-1-4", "call", "May it deploy?", "deploy", arguments, digest(bytes(arguments)), "1", "p1", 4,
                DEPLOY, need=2, expires_seconds=600)  # fmt: skip
    settles = Settles(3, Usage(1_000, 200, 1, micros=100), result({"content": "deploy"}))
    s._own(ROOT, "work", Waiting(gate, settles), "step.waiting")
    s.vote(ROOT, "coder", gate, "ann")
    s.vote(ROOT, "coder", gate, "bob")
    s.decision(ROOT, "coder", gate, "ann", "bob")
    decided = (Decided(gate.id, "approved", digest(encode(gate)), by=("ann", "bob")),)
    s.order(ROOT, "work", "coder", allotment=more, resumes=1, recoveries=1, decided=decided, budgeted=True)
    fence = s.claim(ROOT, "work", "w-2")
    s.journal(ROOT, "work", opens=Opens(4, "tool", "deploy", arguments, DEPLOY, gate=gate.id, effect="other"))
    s.effect(DEPLOY, applied=True, honours=False)
    patch = contents.patch()
    content = encode(patch)
    at = {"task": ROOT, "step": "work", "role": "coder", "attempt": 3, "worker": "w-2", "fence": fence}
    s.put(subjects.artifact(ROOT, "coder", "patch", "patch", fence), patch, "artifact", **at)
    outside = Result("patch", "patch", digest(content))
    settles = Settles(4, Usage(tool_calls=1), result({"ok": True}))
    seq = s._own(ROOT, "work", Done((outside,), settles), "step.done")
    ref = Ref("work", "patch", "patch", digest(content), seq)
    about = Gate(f"approve-{ref.digest[7:23]}", "artifact", "Is this patch fine?", subject=ref)
    subject = subjects.gate_request(ROOT, "coder", about.id)
    s.decide(ROOT, subject, GateRequest(about), "gate.request", role="coder")
    s.vote(ROOT, "coder", about, "ann")
    s.decision(ROOT, "coder", about, "ann")
    return ref


def _cancelled(s: Story) -> None:
    s.order(CHILD, "plan", "planner")
    s.claim(CHILD, "plan", "w-plan", Opens(1, "model"))
    s.put(
        subjects.control(CHILD, "ann", "c1"), Control("cancel", "no more"), "task.control", task=CHILD, principal="ann"
    )
    s.begin(CHILD, "cancelled")
    s.take_back(CHILD, "plan", Revoked("cancelled by ann"))
    s.end(CHILD, "cancelled")


def _delivered(s: Story, patch: Ref) -> None:
    s.order(ROOT, "verify-work", "verifier", inputs=(patch,), judges=(patch.digest,))
    s.claim(ROOT, "verify-work", "w-v")
    s.done(ROOT, "verify-work", ("patch-patch", contents.verdict(patch)))
    s.order(ROOT, "integrate", "integrator", inputs=(patch,))
    s.claim(ROOT, "integrate", "w-i")
    (deliverable,) = s.done(ROOT, "integrate", ("deliverable", contents.deliverable([patch])))
    s.order(ROOT, "verify-integrate", "verifier", inputs=(patch, deliverable), judges=(deliverable.digest,))
    s.claim(ROOT, "verify-integrate", "w-v")
    (verdict,) = s.done(ROOT, "verify-integrate", ("deliverable-deliverable", contents.verdict(deliverable)))
    s.end(ROOT, "done", checked=True, deliverable=deliverable, verdict=verdict)


def _others(s: Story) -> None:
    """Ends of other kinds, a refused commit, a change of leaders and what the past one still writes."""
    s.spec(AFTER, after=(FAILS,))
    _in_doubt(s)
    s.end(AFTER, "dependency_failed")
    s.spec(NEXT, after=(ROOT,))
    s.order(NEXT, "plan", "planner")
    s.claim(NEXT, "plan", "w-plan")
    circle = contents.plan(("a", "coder", ("b",)), ("b", "coder", ("a",)))
    s.done(NEXT, "plan", ("plan", circle))
    s.order(NEXT, "plan", "planner", tries=1)
    s.spec(LATE)
    s.order(LATE, "plan", "planner")
    s.take_back(LATE, "plan", Revoked("a role says so"), worker="w-plan")  # counts for nothing
    old, leader = s.board.epoch_of(LATE), s.leader
    s.lead("sup-2")
    s.take_back(LATE, "plan", Released("silent", "nothing heard"), worker=leader, fence=old)  # counts for nothing
    s.take_back(LATE, "plan", Released("moved", "something was written"))
    s.end(LATE, "failed")
    s.spec(LAST, after=(NEXT,))
    s.begin(NEXT, "failed")
    s.end(LAST, "dependency_failed")  # that much is certain before the end itself
    s.take_back(NEXT, "plan", Revoked("no more attempts"))
    s.end(NEXT, "failed")


def _in_doubt(s: Story) -> None:
    """New work makes the same effect under the same key; then one may have happened, and nobody makes it again."""
    effect = Opens(2, "tool", "keyed_effect", result({"of": "it"}), AGAIN, effect="keyed")
    said = Settles(1, Usage(50, 5, 1), result({"content": "go"}))
    allotted = Allotment(3, 4, 2_000, 90)
    s.order(FAILS, "plan", "planner", allotment=allotted)
    s.claim(FAILS, "plan", "w-plan", Opens(1, "model"))
    s.journal(FAILS, "plan", said, effect)
    s.effect(AGAIN, applied=True, honours=True)
    s.failed(FAILS, "plan", Failed("model", "no answer", settles=Settles(2, Usage(tool_calls=1), result({"ok": True}))))
    s.order(FAILS, "plan", "planner", tries=1, allotment=allotted)
    s.claim(FAILS, "plan", "w-plan", Opens(1, "model"))
    s.journal(FAILS, "plan", said, effect)
    s.effect(AGAIN, applied=False, honours=True)
    s.journal(FAILS, "plan", opens=Opens(3, "tool", "look", effect="read"))  # call 2 was given up
    settles = Settles(3, Usage(tool_calls=1), result({"ok": True}))
    s.journal(FAILS, "plan", settles, Opens(4, "tool", "deploy", result({}), DOUBT, effect="other"))
    s.effect(DOUBT, applied=True, honours=False)
    s.failed(FAILS, "plan", Failed("in_doubt", "call 4 (deploy) may have had its effect", retryable=False))
    s.end(FAILS, "failed")


def find(lines: Sequence[Line], kind: str, task: str = ROOT, step: str | None = None, nth: int = 0) -> Line:
    """The n-th record of a type of a task, or of one of its steps."""
    fit = [
        line
        for line in lines
        if line.env["type"] == kind
        and (kind.startswith("ctl.") or line.env.get("task") == task)
        and step in (None, line.env.get("step"))
    ]
    return fit[nth]
