"""The fold, step by step: orders, claims, the owner's writes, and what the leader does to a register."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from kokuban.blackboard.core._context import (
    Applied,
    Context,
    Ignored,
    book,
    check_epoch,
    committed,
    move,
    owned,
    worst,
)
from kokuban.blackboard.core.admission import Candidate, reasons_against
from kokuban.blackboard.core.state import Artifact, GateState, Status, Step, Task
from kokuban.schemas import (
    Claimed,
    Done,
    Failed,
    Grant,
    Journal,
    Opens,
    Plan,
    Ref,
    Released,
    Result,
    Revoked,
    Verdict,
    Waiting,
    WorkOrder,
    digest,
    encode,
)
from kokuban.schemas.kinds import decode_artifact

ENDINGS = 2
"""From this version on a leader says that a task ends before it seals a step."""


def order(at: Context) -> Applied:
    check_epoch(at)
    body = msgspec.json.decode(at.record.body, type=WorkOrder)
    role, name = at.record.role or "", at.record.step or ""
    step = at.step or Step(name, role, reg=at.task.registers.get((role, name), 0))
    if body.reg != step.reg:
        raise Ignored(f"the register is at {step.reg}, the order says {body.reg}")
    # Who reads one task alone cannot tell that a revocation was a past leader's; that an order follows it says so.
    if step.running or (step.status == "revoked" and not at.board.filtered):
        raise Ignored(f"the step is {step.status}")
    if at.record.attempt != step.attempt + 1:
        raise Ignored(f"attempt {at.record.attempt} does not follow {step.attempt}")
    if at.task.ending is not None:
        raise Ignored("the task is about to end")
    at.task.steps[step.id] = step
    step.attempt, step.order = at.record.attempt, replace(body, inputs=_known(at.task, body.inputs))
    step.order_seq = at.message.seq
    step.fence, step.worker, step.reasons, step.why, step.failure, step.opened = 0, "", (), "", None, None
    step.granted, step.asks, step.gate, step.version = None, None, "", at.record.version
    if not body.resumes:
        step.begun = step.usage
    move(at, step, "ordered")
    return Applied(at.task, at.record)


def _known(task: Task, refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """The same references, as the very objects that the artifacts have: compared again and again, and kept once."""
    artifacts = task.artifacts
    return tuple(a.ref if (a := artifacts.get(ref.digest)) is not None and a.ref == ref else ref for ref in refs)


def claimed(at: Context) -> Applied:
    step, body = at.step, msgspec.json.decode(at.record.body, type=Claimed)
    if step is None or step.status != "ordered" or step.order is None:
        raise Ignored("nothing to claim")
    if body.order != step.order_seq or not (body.reg == step.order.reg == at.before):
        raise Ignored("the claim is for another order")
    if at.record.attempt != step.attempt:
        raise Ignored("the claim is for another attempt")
    step.fence, step.claim_time, step.worker = at.message.seq, at.message.time, at.record.worker or ""
    step.opened = body.opens
    move(at, step, "claimed")
    return Applied(at.task, at.record)


def journal(at: Context) -> Applied:
    owner = owned(at.step, at.record)
    if owner.moved:
        raise Ignored("the register has moved")
    body = msgspec.json.decode(at.record.body, type=Journal)
    if body.opens is not None and body.opens.gate is not None:
        _use(at.task, owner, body.opens)
    opens, doubt = body.opens, owner.doubt
    if opens and opens.reconciled and doubt and (opens.tool, opens.key) == (doubt.tool, doubt.key):
        owner.doubt = None  # somebody has looked: what is opened here may be in doubt again
    again = body.settles is None and body.opens is not None and owner.opened is not None
    if not (again and body.opens and owner.opened and body.opens.call == owner.opened.call):
        _close(at, owner, body)  # else the same call, opened again with more reserved for it
        if body.opens is not None or body.settles is not None:
            _leave_open(owner)
    owner.opened, owner.asks = body.opens, body.asks
    return Applied(at.task, at.record)


def _use(task: Task, owner: Step, opens: Opens) -> None:
    """An approval is used up by one call; whoever takes the work up again opens the same call."""
    gate = task.gates.get(opens.gate or "")
    if gate is None or gate.step != owner.id or gate.decision is None or gate.decision.outcome != "approved":
        raise Ignored(f"gate {opens.gate}: nobody approved this call")
    asked, opened = (gate.gate.call, gate.gate.tool, gate.gate.key), (opens.call, opens.tool, opens.key)
    if asked != opened or gate.used not in (0, opens.call):
        raise Ignored(f"gate {opens.gate}: the approval is for another call")
    gate.used = opens.call


def granted(at: Context) -> Applied:
    check_epoch(at)
    step, body = at.step, msgspec.json.decode(at.record.body, type=Grant)
    if step is None or step.status != "claimed" or step.fence != body.claim or step.asks is None:
        raise Ignored("nobody asked")
    step.granted, step.asks = body.allotment, None
    return Applied(at.task, at.record)


def artifact(at: Context) -> Applied:
    kind, name, fence = at.address.rest
    owner = owned(at.task.steps.get(at.record.step or ""), at.record)
    if str(owner.fence) != fence or owner.moved or owner.role != at.address.role:
        raise Ignored("the fence is not the claim's")
    owner.stored[(kind, name, at.record.sha256)] = bytes(at.record.body)
    return Applied(at.task, at.record)


def done(at: Context) -> Applied:
    owner = committed(at)
    body = msgspec.json.decode(at.record.body, type=Done)
    _ended(at, owner, body)
    candidates = [_candidate(result, owner) for result in body.results]
    owner.stored = {}
    assert owner.order is not None
    reasons = reasons_against(candidates, owner.order, owner.role, at.task.artifacts, at.board.kinds)
    if reasons:
        move(at, owner, "refused")
        owner.reasons = reasons
        return Applied(at.task, at.record, refused=reasons)
    move(at, owner, "done")
    who = (owner.role, owner.worker, owner.attempt, owner.fence)
    owner.results = tuple(
        Artifact(Ref(owner.id, c.kind, c.name, c.digest, at.message.seq), *who, result.derived_from, c.body or b"")
        for c, result in zip(candidates, body.results, strict=True)
    )
    for one in owner.results:
        _admit(at.task, one)
    return Applied(at.task, at.record, admitted=owner.results)


def _candidate(result: Result, owner: Step) -> Candidate:
    """A result with its content, from the commit itself or from the record that was stored before it."""
    if not isinstance(result.body, msgspec.UnsetType):
        content: bytes | None = bytes(result.body)
    else:
        content = owner.stored.get((result.kind, result.name, result.digest))
    return Candidate(result.kind, result.name, result.digest, content)


def _admit(task: Task, one: Artifact) -> None:
    task.artifacts[one.ref.digest] = one
    if one.ref.kind not in ("plan", "verdict"):
        return
    content = decode_artifact(one.ref.kind, one.body)
    if isinstance(content, Plan):
        task.plan = content
    else:
        assert isinstance(content, Verdict)
        task.verdicts[content.subject.digest] = (one, content)


def failed(at: Context) -> Applied:
    owner = committed(at)
    body = msgspec.json.decode(at.record.body, type=Failed)
    _ended(at, owner, body)
    owner.failure, owner.stored = body, {}
    owner.why, owner.reasons = body.why, (body.reason,)
    move(at, owner, "failed")
    return Applied(at.task, at.record)


def waiting(at: Context) -> Applied:
    """The owner let the step go until people have decided. To ask for what was decided already is a fault of its
    program, which would ask for ever."""
    owner = committed(at)
    body = msgspec.json.decode(at.record.body, type=Waiting)
    _ended(at, owner, body)
    owner.stored = {}
    gate, bound = body.gate, digest(encode(body.gate))
    known = at.task.gates.get(gate.id)
    if known is None or (known.decision is None and known.step == owner.id):
        begun = owner.order.resumes or owner.attempt if owner.order else 0
        at.task.gates[gate.id] = GateState(gate, bound, owner.role, owner.id, at.message.seq, at.message.time, begun)
    else:
        what = "decided already" if known.bound == bound else "about something else before"
        owner.failure = Failed("bug", f"gate {gate.id} was {what}")
        owner.why, owner.reasons = "bug", (owner.failure.reason,)
        move(at, owner, "failed")
        return Applied(at.task, at.record)
    owner.gate, owner.fence = gate.id, 0  # nobody's any more
    move(at, owner, "waiting")
    return Applied(at.task, at.record)


def _ended(at: Context, owner: Step, body: Done | Failed | Waiting) -> None:
    _close(at, owner, body)
    book(at.board, at.task, owner, body.usage)
    _leave_open(owner)
    owner.asks = None


def _close(at: Context, owner: Step, body: Journal | Done | Failed | Waiting) -> None:
    """Count what this record settles. A call that it leaves open counts for what was reserved for it."""
    opened, settles = owner.opened, body.settles
    if opened is None:
        return
    if settles is not None and settles.call == opened.call:
        book(at.board, at.task, owner, settles.usage)
        owner.opened = None
    elif opened.kind == "tool" or opened.reserved_tokens or opened.reserved_micros:
        book(at.board, at.task, owner, worst(opened))


def _leave_open(step: Step) -> None:
    """The attempt is over: a call that it leaves open may have had its effect."""
    if step.opened is not None and step.opened.effect == "other":
        step.doubt = step.opened
    step.opened = None


def released(at: Context) -> Applied:
    body = msgspec.json.decode(at.record.body, type=Released)
    return _taken_back(at, "released", body.why, body.reason)


def revoked(at: Context) -> Applied:
    """Only the leader can say that a task ends, on a subject that is its alone; so a role that writes this on its own
    register has moved the register, and nothing else."""
    if at.task.ending is None and (at.step is None or at.step.version >= ENDINGS):
        raise Ignored("nobody has said that the task ends")
    return _taken_back(at, "revoked", "revoked", msgspec.json.decode(at.record.body, type=Revoked).reason)


def _taken_back(at: Context, status: Status, why: str, reason: str) -> Applied:
    """The server checks the register of these, not the epoch. A past leader's has moved the register, and that is all:
    the one who leads takes the step back as moved. A call that was under way counts at its worst."""
    check_epoch(at)
    step = at.step
    if step is None or not (step.running or (step.status == "waiting" and status == "revoked")):
        raise Ignored("nothing to take back")
    book(at.board, at.task, step, worst(step.opened))
    _leave_open(step)
    step.asks = None
    move(at, step, status)
    step.why, step.reasons, step.stored = why, (reason,), {}
    return Applied(at.task, at.record)
