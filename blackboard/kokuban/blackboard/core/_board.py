"""The fold of records about the board as a whole."""

from __future__ import annotations

import msgspec

from kokuban.blackboard.core._context import Applied, Ignored, Stored
from kokuban.blackboard.core.registry import problems_of_kind, problems_of_role
from kokuban.blackboard.core.state import Board
from kokuban.schemas import BoardLimits, Epoch, Intake, Record, RegisteredKind, RegisteredRole, subjects


def control(board: Board, message: Stored, record: Record) -> Applied:
    """Leadership, limits, intake, and what users registered."""
    if record.type == "ctl.epoch":
        body = msgspec.json.decode(record.body, type=Epoch)
        if message.subject != subjects.epoch(body.shard):
            raise Ignored("subject and shard disagree")
        board.epochs[body.shard] = message.seq
    elif record.type == "ctl.limits" and message.subject == subjects.LIMITS:
        board.limits = msgspec.json.decode(record.body, type=BoardLimits)
    elif record.type == "ctl.intake" and message.subject == subjects.INTAKE:
        board.intake = msgspec.json.decode(record.body, type=Intake)
    elif record.type == "ctl.kind":
        _kind(board, message, msgspec.json.decode(record.body, type=RegisteredKind))
    elif record.type == "ctl.role":
        _role(board, message, msgspec.json.decode(record.body, type=RegisteredRole))
    elif record.type.startswith("memory.") and message.subject.startswith(subjects.MEMORY):
        pass  # folded by who asks for it, tenant by tenant: `kokuban.blackboard.memory`
    elif (record.type, message.subject) not in (("ctl.lease", subjects.LEASE), ("ctl.snapshot", subjects.SNAPSHOT)):
        raise Ignored("unknown subject")
    return Applied(None, record)


def _kind(board: Board, message: Stored, body: RegisteredKind) -> None:
    if message.subject != subjects.kind(body.kind, body.version):
        raise Ignored("subject and kind disagree")
    if problems := problems_of_kind(board.kinds, body):
        raise Ignored("; ".join(problems))
    board.kinds.setdefault(body.kind, {})[body.version] = bytes(body.schema)


def _role(board: Board, message: Stored, body: RegisteredRole) -> None:
    if message.subject != subjects.contract(body.role):
        raise Ignored("subject and role disagree")
    if problems := problems_of_role(board.roles, board.kinds, body):
        raise Ignored("; ".join(problems))
    board.roles[body.role] = body.contract
