"""The fold of records about the board as a whole."""

from __future__ import annotations

import msgspec

from kokuban.blackboard.core._context import Applied, Ignored, Stored
from kokuban.blackboard.core.state import Board
from kokuban.schemas import BoardLimits, Epoch, Intake, Record, subjects


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
    elif (record.type, message.subject) not in (("ctl.lease", subjects.LEASE), ("ctl.snapshot", subjects.SNAPSHOT)):
        raise Ignored("unknown subject")
    return Applied(None, record)
