"""The fold: what each stored record does to the state (DESIGN: the state of a task is the fold of its messages).

Invariants: it uses nothing but its arguments; a record that breaks a rule is counted and changes nothing, except that a
write on a register moves the register's last sequence, as it did on the server.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kokuban.blackboard.core import _board, _ends, _people, _steps, _tasks
from kokuban.blackboard.core._context import Applied, Context, Ignored, Stored
from kokuban.blackboard.core.state import Board, Step, Task
from kokuban.schemas import BadRecord, Record, open_record, subjects

__all__ = ["Applied", "Stored", "fold"]


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
            return _board.control(board, message, record)
        if address.kind == "spec":
            return _tasks.spec(board, address.task, message, record)
        if address.kind == "buried":
            return _ends.tombstone(board, address.task, message, record)
        if task is None:
            raise Ignored("no such task")
        at = Context(board, task, step, before, message, record, address)
        if task.final is not None:
            if address.kind == record.type.removeprefix("task.") == "control" and _agree(address, record):
                return _people.dropped(at)
            raise Ignored("after the end")
        task.last_seq = message.seq
        handle = _HANDLERS.get((address.kind, record.type))
        if handle is None or not _agree(address, record):
            raise Ignored("subject and envelope disagree")
        if step is not None and step.role != address.role:
            raise Ignored("the step belongs to another role")
        applied = handle(at)
        task.last_time = message.time
        return applied
    except BadRecord as error:
        why = str(error)
    except Ignored as error:
        why = str(error)
    except msgspec.DecodeError as error:
        why = f"unreadable: {error}"
    board.ignored += 1
    return Applied(task, record, why)


def _move_register(task: Task, address: subjects.Address, step: Step | None, seq: int) -> int:
    """The server's register moves with every message on it, valid or not. Returns its last sequence before this one."""
    if address.kind != "step" or task.tombstone is not None:
        return 0
    key = (address.role, address.step)
    before, task.registers[key] = task.registers.get(key, 0), seq
    if step is not None and step.role == address.role:
        step.reg = seq
    return before


def _agree(address: subjects.Address, record: Record) -> bool:
    """Whether the envelope says what the subject says. The server checks who may write to a subject, so whose word a
    vote or a control is, is what its subject says."""
    if record.task != address.task or (record.role or "") != address.role:
        return False
    if address.kind in ("gate", "control"):
        return len(address.rest) < 3 or address.rest[1] == "vote"
    return address.kind == "artifact" or (record.step or "") == address.step


_HANDLERS: dict[tuple[str, str], Callable[[Context], Applied]] = {
    ("work", "step.order"): _steps.order,
    ("step", "step.claimed"): _steps.claimed,
    ("journal", "step.journal"): _steps.journal,
    ("grant", "step.granted"): _steps.granted,
    ("artifact", "artifact"): _steps.artifact,
    ("step", "step.done"): _steps.done,
    ("step", "step.failed"): _steps.failed,
    ("step", "step.waiting"): _steps.waiting,
    ("step", "step.released"): _steps.released,
    ("step", "step.revoked"): _steps.revoked,
    ("gate", "gate.request"): _people.request,
    ("gate", "gate.vote"): _people.vote,
    ("gate", "gate.decision"): _people.decision,
    ("control", "task.control"): _people.control,
    ("ending", "task.ending"): _tasks.ending,
    ("final", "task.final"): _tasks.final,
}
