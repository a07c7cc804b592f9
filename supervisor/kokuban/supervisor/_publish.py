"""How a decision becomes a record: its subject, its envelope, and the fence that the server checks."""

from __future__ import annotations

from typing import Any, NamedTuple

from kokuban.blackboard.core import Task
from kokuban.blackboard.wire import Fence
from kokuban.schemas import GateRequest, Grant, Wire, seal, subjects
from kokuban.supervisor._commands import Allow, Ask, Begin, Command, Decide, Order, Release, Revoke


class Draft(NamedTuple):
    """What to publish. `on_register` when the step's register fences it, else the leader's epoch does."""

    subject: str
    data: bytes
    fence: Fence
    kind: str
    on_register: bool


def record_of(task: Task, command: Command, *, op: str, worker: str, time: str, epoch: int) -> Draft:
    """The record of a decision about `task`, fenced on the epoch or, to take a step back, on its register."""
    fields: dict[str, Any] = {"id": op, "task": task.id, "worker": worker, "fence": epoch, "time": time}
    subject, kind, body = _told(task.id, command)
    if isinstance(command, Order | Release | Revoke | Allow):
        fields |= {"step": command.step, "role": command.role}
    elif isinstance(command, Ask | Decide):
        fields["role"] = command.role
    if isinstance(command, Order):
        fields |= {
            "attempt": command.attempt, "principal": task.principal or None, "parent": task.parent,
            "derived_from": tuple(ref.digest for ref in command.order.inputs),
        }  # fmt: skip
    on_register = isinstance(command, Release | Revoke)
    fence = Fence(subject, command.reg) if isinstance(command, Release | Revoke) else _epoch_fence(task.id, epoch)
    return Draft(subject, seal(body, type=kind, **fields), fence, kind, on_register)


def _epoch_fence(task: str, epoch: int) -> Fence:
    return Fence(subjects.epoch(subjects.shard(task)), epoch)


def _told(task: str, command: Command) -> tuple[str, str, Wire]:
    """Subject, record type and body."""
    if isinstance(command, Order):
        return subjects.work(task, command.role, command.step), "step.order", command.order
    if isinstance(command, Release):
        return subjects.register(task, command.role, command.step), "step.released", command.body
    if isinstance(command, Revoke):
        return subjects.register(task, command.role, command.step), "step.revoked", command.body
    if isinstance(command, Allow):
        grant = Grant(command.claim, command.allotment)
        return subjects.grant(task, command.role, command.step), "step.granted", grant
    if isinstance(command, Ask):
        subject = subjects.gate_request(task, command.role, command.gate.id)
        return subject, "gate.request", GateRequest(command.gate)
    if isinstance(command, Decide):
        return subjects.gate_decision(task, command.role, command.body.gate), "gate.decision", command.body
    if isinstance(command, Begin):
        return subjects.ending(task), "task.ending", command.body
    return subjects.final(task), "task.final", command.body


def text_of(command: Command) -> str:
    """What a log says of it."""
    if isinstance(command, Release | Revoke):
        return command.body.reason
    if isinstance(command, Decide):
        return command.body.outcome
    if isinstance(command, Order):
        return f"attempt {command.attempt}"
    if isinstance(command, Ask):
        return command.gate.asks
    return "" if isinstance(command, Allow) else f"{command.body.state}: {command.body.reason}"
