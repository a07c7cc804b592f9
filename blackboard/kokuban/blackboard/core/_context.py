"""What every handler of the fold shares: a record in its place, who may write it, and what it costs."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from kokuban.blackboard.core.ledger import unsettled
from kokuban.blackboard.core.state import Artifact, Board, Status, Step, Task
from kokuban.schemas import Opens, Record, Usage, subjects


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


class Ignored(Exception):
    """This record breaks a rule and counts for nothing."""


class Context(NamedTuple):
    """A record about a task that is open, in its place. `before` is the register's last sequence before it."""

    board: Board
    task: Task
    step: Step | None
    before: int
    message: Stored
    record: Record
    address: subjects.Address


def check_epoch(at: Context) -> None:
    """Only the leader decides: its records name the epoch in force."""
    epoch = at.record.fence if at.board.filtered else at.board.epoch_of(at.task.id)
    if not at.record.fence or at.record.fence != epoch:
        raise Ignored(f"epoch {at.record.fence} is not the leader's, {epoch}")


def owned(step: Step | None, record: Record) -> Step:
    """The step, if the record's writer owns it."""
    if step is None or step.status != "claimed" or not record.fence or record.fence != step.fence:
        raise Ignored(f"fence {record.fence} owns nothing here")
    return step


def committed(at: Context) -> Step:
    """The step whose owner ends it: nothing may have been written on the register between the claim and this."""
    owner = owned(at.step, at.record)
    if at.before != owner.fence:
        raise Ignored("the register has moved")
    return owner


def move(at: Context, step: Step, status: Status) -> None:
    """Give the step another status, and keep count of what is under way and of the time it took."""
    was = step.running
    if step.status == "claimed":
        taken = min(ceil(max(0.0, at.message.time - step.claim_time)), step.allotment.seconds)
        book(at.board, at.task, step, Usage(seconds=taken))
    step.status = status
    at.board.running[step.role] += step.running - was
    key = (at.task.id, step.id)
    if step.running:
        at.board.under_way[key] = step
    else:
        at.board.under_way.pop(key, None)


def worst(opened: Opens | None) -> Usage:
    """What a call counts for that nobody will ever settle."""
    return unsettled(opened) if opened is not None else Usage()


def book(board: Board, task: Task, step: Step, usage: Usage) -> None:
    """Add what was spent to the step, its task, every task above it, and the tenant."""
    if usage == Usage():
        return
    step.usage = step.usage + usage
    task.usage = task.usage + usage
    above: Task | None = task
    while above is not None:
        above.tree_usage = above.tree_usage + usage
        above = board.tasks.get(above.parent) if above.parent else None
    board.spent[task.tenant] = board.spent.get(task.tenant, Usage()) + usage
