"""Histories that have come as far as a claim, and what it means that a record changes nothing."""

from __future__ import annotations

import copy

from core import contents
from core.history import History, begun, folded
from kokuban.blackboard.core import Applied, Board

FINDING = ("fact", contents.finding())


def ordered() -> History:
    history = begun()
    history.order("look", "researcher")
    return history


def claimed() -> History:
    history = ordered()
    history.claim("look")
    return history


def changes_nothing(history: History, applied: Applied, why: str) -> None:
    """The last message was ignored for this reason, and all else is as if it had never been stored."""
    assert why in applied.ignored
    assert not applied.admitted
    assert not applied.refused
    without = folded(history.messages[:-1])
    assert history.board.ignored == without.ignored + 1
    assert plain(history.board) == plain(without)


def plain(board: Board) -> Board:
    """The board without positions: sequences of the stream and of registers, and the count of what was ignored."""
    board = copy.deepcopy(board)
    board.last_seq = board.ignored = 0
    for task in board.tasks.values():
        task.last_seq = 0
        task.registers = {}
        for step in task.steps.values():
            step.reg = 0
    return board
