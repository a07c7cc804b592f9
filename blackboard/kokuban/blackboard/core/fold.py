"""The fold: what each stored record does to the state (DESIGN: the state of a task is the fold of its messages).

Invariants: it uses nothing but its arguments; a record that breaks a rule is counted and changes nothing, except that a
write on a register moves the register's last sequence, as it did on the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from kokuban.blackboard.core.admission import Candidate, reasons_against
from kokuban.blackboard.core.state import Artifact, Board, Status, Step, Task
from kokuban.schemas import (
    BadRecord,
    Claimed,
    Done,
    Epoch,
    Failed,
    Final,
    Journal,
    Plan,
    Record,
    Ref,
    Released,
    Result,
    Revoked,
    TaskSpec,
    Usage,
    Verdict,
    WorkOrder,
    open_record,
    subjects,
)
from kokuban.schemas.kinds import decode_artifact


class Stored(NamedTuple):
    """A message of the stream: `time` is the server's, in seconds since 1970."""

    seq: int
    subject: str
    time: float
    data: bytes


class Applied(NamedTuple):
    """What a record did. `ignored` says why it did nothing, '' when it counted."""

    task: Task | None
    record: Record | None
    ignored: str = ""
    admitted: tuple[Artifact, ...] = ()
    refused: tuple[str, ...] = ()


class _Ignored(Exception):
    """This record breaks a rule and counts for nothing."""


def fold(board: Board, message: Stored) -> Applied:
    """Apply one stored message to `board`, in place. Messages must come in sequence order; one at or below
    `board.last_seq` is ignored, so replaying an overlap is harmless. Never raises on what is stored."""
    if message.seq <= board.last_seq:
        return Applied(None, None, "seen before")
    board.last_seq = message.seq
    address = subjects.parse(message.subject)
    task = board.tasks.get(address.task) if address else None
    step = task.steps.get(address.step) if task and address else None
    before = _move_register(task, address, step, message.seq) if task and address else 0
    record: Record | None = None
    try:
        record = open_record(message.data)
        if address is None:
            return _control(board, message, record)
        if address.kind == "spec":
            return _spec(board, address.task, message, record)
        if task is None:
            raise _Ignored("no such task")
        if task.final is not None:
            raise _Ignored("after the end")
        task.last_seq = message.seq
        handle = _HANDLERS.get((address.kind, record.type))
        if handle is None or not _agree(address, record):
            raise _Ignored("subject and envelope disagree")
        if step is not None and step.role != address.role:
            raise _Ignored("the step belongs to another role")
        return handle(_Context(board, task, step, before, message, record))
    except BadRecord as error:
        why = str(error)
    except _Ignored as error:
        why = str(error)
    except msgspec.DecodeError as error:
        why = f"unreadable: {error}"
    board.ignored += 1
    return Applied(task, record, why)


def _move_register(task: Task, address: subjects.Address, step: Step | None, seq: int) -> int:
    """The server's register moves with every message on it, valid or not. Returns its last sequence before this one."""
    if address.kind != "step":
        return 0
    key = (address.role, address.step)
    before, task.registers[key] = task.registers.get(key, 0), seq
    if step is not None and step.role == address.role:
        step.reg = seq
    return before


class _Context(NamedTuple):
    """A record about a task that is open, in its place. `before` is the register's last sequence before it."""

    board: Board
    task: Task
    step: Step | None
    before: int
    message: Stored
    record: Record


def _agree(address: subjects.Address, record: Record) -> bool:
    if record.task != address.task or (record.role or "") != address.role:
        return False
    return address.kind == "artifact" or (record.step or "") == address.step


def _control(board: Board, message: Stored, record: Record) -> Applied:
    if record.type == "ctl.epoch":
        body = msgspec.json.decode(record.body, type=Epoch)
        if message.subject != subjects.epoch(body.shard):
            raise _Ignored("subject and shard disagree")
        board.epochs[body.shard] = message.seq
        return Applied(None, record)
    if record.type == "ctl.lease" and message.subject == subjects.LEASE:
        return Applied(None, record)
    raise _Ignored("unknown subject")


def _spec(board: Board, task_id: str, message: Stored, record: Record) -> Applied:
    if record.type != "task.spec" or record.task != task_id:
        raise _Ignored("no task spec")
    if task_id in board.tasks:
        raise _Ignored("the task exists")
    spec = decode_artifact("task", record.body)
    assert isinstance(spec, TaskSpec)
    task = Task(task_id, spec, message.seq, message.time, record.principal or "", last_seq=message.seq)
    board.tasks[task_id] = task
    return Applied(task, record)


def _order(at: _Context) -> Applied:
    _check_epoch(at)
    order = msgspec.json.decode(at.record.body, type=WorkOrder)
    role, name = at.record.role or "", at.record.step or ""
    step = at.step or Step(name, role, reg=at.task.registers.get((role, name), 0))
    if order.reg != step.reg:
        raise _Ignored(f"the register is at {step.reg}, the order says {order.reg}")
    # Who reads one task alone cannot tell that a revocation was a past leader's; that an order follows it says so.
    if step.running or (step.status == "revoked" and not at.board.filtered):
        raise _Ignored(f"the step is {step.status}")
    if at.record.attempt != step.attempt + 1:
        raise _Ignored(f"attempt {at.record.attempt} does not follow {step.attempt}")
    at.task.steps[step.id] = step
    _to(at.board, step, "ordered")
    step.attempt, step.order = at.record.attempt, order
    step.order_seq = at.message.seq
    step.fence, step.worker, step.reasons, step.why, step.failure, step.opened = 0, "", (), "", None, None
    return Applied(at.task, at.record)


def _claimed(at: _Context) -> Applied:
    step, body = at.step, msgspec.json.decode(at.record.body, type=Claimed)
    if step is None or step.status != "ordered" or step.order is None:
        raise _Ignored("nothing to claim")
    if body.order != step.order_seq or not (body.reg == step.order.reg == at.before):
        raise _Ignored("the claim is for another order")
    if at.record.attempt != step.attempt:
        raise _Ignored("the claim is for another attempt")
    _to(at.board, step, "claimed")
    step.fence, step.claim_time, step.worker = at.message.seq, at.message.time, at.record.worker or ""
    step.opened = body.opens
    return Applied(at.task, at.record)


def _journal(at: _Context) -> Applied:
    owner = _owned(at.step, at.record)
    if owner.moved:
        raise _Ignored("the register has moved")
    body = msgspec.json.decode(at.record.body, type=Journal)
    owner.usage = owner.usage + _settled(owner, body)
    owner.opened = body.opens
    return Applied(at.task, at.record)


def _artifact(at: _Context) -> Applied:
    address = subjects.parse(at.message.subject)
    assert address is not None
    kind, name, fence = address.rest
    owner = _owned(at.task.steps.get(at.record.step or ""), at.record)
    if str(owner.fence) != fence or owner.moved or owner.role != address.role:
        raise _Ignored("the fence is not the claim's")
    owner.stored[(kind, name, at.record.sha256)] = bytes(at.record.body)
    return Applied(at.task, at.record)


def _done(at: _Context) -> Applied:
    owner = _committed(at)
    body = msgspec.json.decode(at.record.body, type=Done)
    owner.usage = owner.usage + body.usage + _settled(owner, body)
    owner.opened = None
    candidates = [_candidate(result, owner) for result in body.results]
    owner.stored = {}
    assert owner.order is not None
    reasons = reasons_against(candidates, owner.order, owner.role, at.task.artifacts)
    if reasons:
        _to(at.board, owner, "refused")
        owner.reasons = reasons
        return Applied(at.task, at.record, refused=reasons)
    _to(at.board, owner, "done")
    who = (owner.role, owner.worker, owner.attempt, owner.fence)
    owner.results = tuple(
        Artifact(Ref(owner.id, c.kind, c.name, c.digest, at.message.seq), *who, result.derived_from, c.body or b"")
        for c, result in zip(candidates, body.results, strict=True)
    )
    for artifact in owner.results:
        _admit(at.task, artifact)
    return Applied(at.task, at.record, admitted=owner.results)


def _candidate(result: Result, owner: Step) -> Candidate:
    """A result with its content, from the commit itself or from the record that was stored before it."""
    if not isinstance(result.body, msgspec.UnsetType):
        content: bytes | None = bytes(result.body)
    else:
        content = owner.stored.get((result.kind, result.name, result.digest))
    return Candidate(result.kind, result.name, result.digest, content)


def _admit(task: Task, artifact: Artifact) -> None:
    task.artifacts[artifact.ref.digest] = artifact
    if artifact.ref.kind not in ("plan", "verdict"):
        return
    content = decode_artifact(artifact.ref.kind, artifact.body)
    if isinstance(content, Plan):
        task.plan = content
    else:
        assert isinstance(content, Verdict)
        task.verdicts[content.subject.digest] = (artifact, content)


def _failed(at: _Context) -> Applied:
    owner = _committed(at)
    body = msgspec.json.decode(at.record.body, type=Failed)
    owner.usage = owner.usage + body.usage + _settled(owner, body)
    owner.failure, owner.opened, owner.stored = body, None, {}
    owner.why, owner.reasons = body.why, (body.reason,)
    _to(at.board, owner, "failed")
    return Applied(at.task, at.record)


def _released(at: _Context) -> Applied:
    body = msgspec.json.decode(at.record.body, type=Released)
    return _taken_back(at, "released", body.why, body.reason)


def _revoked(at: _Context) -> Applied:
    return _taken_back(at, "revoked", "revoked", msgspec.json.decode(at.record.body, type=Revoked).reason)


def _taken_back(at: _Context, status: Status, why: str, reason: str) -> Applied:
    """The server checks the register of these, not the epoch. A past leader's has moved the register, and that is all:
    the one who leads takes the step back as moved."""
    _check_epoch(at)
    if at.step is None or not at.step.running:
        raise _Ignored("nothing to take back")
    _to(at.board, at.step, status)
    at.step.why, at.step.reasons, at.step.stored = why, (reason,), {}
    return Applied(at.task, at.record)


def _final(at: _Context) -> Applied:
    _check_epoch(at)
    task = at.task
    task.final, task.final_seq = msgspec.json.decode(at.record.body, type=Final), at.message.seq
    for step in task.steps.values():
        if step.running:
            _to(at.board, step, "revoked")
        step.results = tuple(replace(artifact, body=b"") for artifact in step.results)
    task.artifacts = {digest: replace(artifact, body=b"") for digest, artifact in task.artifacts.items()}
    return Applied(task, at.record)


def _settled(owner: Step, body: Journal | Done | Failed) -> Usage:
    """What the call that is open cost. A settlement of any other call was counted before, or tells of nothing."""
    settles, opened = body.settles, owner.opened
    return settles.usage if settles and opened and settles.call == opened.call else Usage()


def _check_epoch(at: _Context) -> None:
    epoch = at.record.fence if at.board.filtered else at.board.epoch_of(at.task.id)
    if not at.record.fence or at.record.fence != epoch:
        raise _Ignored(f"epoch {at.record.fence} is not the leader's, {epoch}")


def _owned(step: Step | None, record: Record) -> Step:
    if step is None or step.status != "claimed" or not record.fence or record.fence != step.fence:
        raise _Ignored(f"fence {record.fence} owns nothing here")
    return step


def _committed(at: _Context) -> Step:
    """The step whose owner ends it: nothing may have been written on the register between the claim and this."""
    owner = _owned(at.step, at.record)
    if at.before != owner.fence:
        raise _Ignored("the register has moved")
    return owner


def _to(board: Board, step: Step, status: Status) -> None:
    board.running[step.role] += (status in ("ordered", "claimed")) - step.running
    step.status = status


_HANDLERS: dict[tuple[str, str], Callable[[_Context], Applied]] = {
    ("work", "step.order"): _order,
    ("step", "step.claimed"): _claimed,
    ("journal", "step.journal"): _journal,
    ("artifact", "artifact"): _artifact,
    ("step", "step.done"): _done,
    ("step", "step.failed"): _failed,
    ("step", "step.released"): _released,
    ("step", "step.revoked"): _revoked,
    ("final", "task.final"): _final,
}
