"""The fold of what is left of a task: a stub after its end, a tombstone after it was archived."""

from __future__ import annotations

import itertools

import msgspec
from msgspec.structs import replace

from kokuban.blackboard.core._context import Applied, Ignored, Stored
from kokuban.blackboard.core.state import Board, Task
from kokuban.schemas import Final, Record, TaskSpec, Tombstone, Usage

ARCHIVED = "(archived)"
"""The goal of a task of which only the tombstone is left."""
_NO_CONTENT = "sha256:" + "0" * 64
_GOAL_KEPT = 200


def tombstone(board: Board, task_id: str, message: Stored, record: Record) -> Applied:
    """Put a stub in the task's place. It is made of the tombstone alone, so that it is the same for who has read the
    task and for who comes after its records are gone; one who has read half of them may not even have seen the end."""
    body, known = msgspec.json.decode(record.body, type=Tombstone), board.tasks.get(task_id)
    if record.type != "task.tombstone" or record.task != task_id:
        raise Ignored("subject and envelope disagree")
    if not record.fence or record.fence != (record.fence if board.filtered else board.epoch_of(task_id)):
        raise Ignored(f"epoch {record.fence} is not the leader's")
    if known is not None and known.tombstone is not None and not is_forgotten(known, message.time):
        raise Ignored("it has a tombstone")
    if known is not None and known.tombstone is None and not _fits(known, body):
        raise Ignored("the tombstone is of another end")
    _forget(board, message.time)
    spec = TaskSpec(ARCHIVED, _NO_CONTENT, key=body.key, tenant=body.tenant)
    task = Task(task_id, spec, body.spec, message.time, record.principal or "", last_seq=message.seq)
    task.final, task.final_seq = Final(body.state, body.reason, usage=body.usage), body.final
    task.final_time, task.tombstone, task.dropped = message.time, body, body.dropped
    task.parent = parent_of(board, task_id, record.parent)
    was = Usage()
    if known is not None and known.tombstone is None:
        was, task.tree_usage = known.usage, known.tree_usage
        task.children, task.dependents = known.children, known.dependents
        for step in known.steps.values():
            board.running[step.role] -= step.running
            board.under_way.pop((task_id, step.id), None)
    board.tasks[task_id] = task
    task.usage = body.usage
    _account(board, task, was, body.usage)
    above = board.tasks.get(task.parent or "")
    if above is not None and task_id not in above.children:
        above.children.append(task_id)
    if body.keep_seconds:
        board.tombstones[task_id] = message.time + body.keep_seconds
    return Applied(task, record)


def parent_of(board: Board, task_id: str, named: str | None) -> str | None:
    """The task above this one, unless the two would stand above each other."""
    above = named
    while above is not None:
        if above == task_id:
            return None
        task = board.tasks.get(above)
        above = task.parent if task is not None else None
    return named


def is_forgotten(task: Task, now: float) -> bool:
    """Whether the task's tombstone has had its time: the server takes it away then, and its key is free again."""
    stone = task.tombstone
    return stone is not None and 0 < stone.keep_seconds <= now - task.time


def remove(board: Board, task_id: str) -> None:
    """Take away a task whose tombstone is forgotten: what it has cost counts no longer either."""
    board.tombstones.pop(task_id, None)
    task = board.tasks.pop(task_id)
    board.spent[task.tenant] = _exchanged(board.spent.get(task.tenant, Usage()), task.usage, Usage())
    above = board.tasks.get(task.parent or "")
    if above is not None and task_id in above.children:
        above.children.remove(task_id)


def slim(task: Task) -> None:
    """After the end, keep only what others may ask for: who it was, how it ended, what it cost. A supervisor's memory
    does not grow with the content of finished tasks."""
    assert task.final is not None
    task.steps, task.registers, task.artifacts, task.verdicts, task.gates = {}, {}, {}, {}, {}
    task.plan, task.facts = None, []
    task.spec = replace(task.spec, goal=task.spec.goal[:_GOAL_KEPT], checks=())
    task.final = Final(task.final.state, task.final.reason[:_GOAL_KEPT], task.final.checked, usage=task.final.usage)


def _fits(known: Task, body: Tombstone) -> bool:
    if known.spec_seq != body.spec:
        return False
    return known.final is None or (known.final_seq, known.final.state) == (body.final, body.state)


def _forget(board: Board, now: float) -> None:
    """Drop the oldest tombstones that have had their time, unless somebody still waits for that task."""
    for name in list(itertools.islice(board.tombstones, 8)):
        if board.tombstones[name] > now or any(_is_open(board, other) for other in board.tasks[name].dependents):
            return
        remove(board, name)


def _is_open(board: Board, name: str) -> bool:
    task = board.tasks.get(name)
    return task is not None and task.final is None


def _account(board: Board, task: Task, was: Usage, now: Usage) -> None:
    """Count what the task has cost as `now`, where it was counted as `was`: for itself, the tasks above, its tenant."""
    above: Task | None = task
    while above is not None:
        above.tree_usage = _exchanged(above.tree_usage, was, now)
        above = board.tasks.get(above.parent or "")
    board.spent[task.tenant] = _exchanged(board.spent.get(task.tenant, Usage()), was, now)


def _exchanged(whole: Usage, was: Usage, now: Usage) -> Usage:
    """The whole with one of its parts replaced."""
    if whole == was:
        return now
    return (
        Usage(
            max(0, whole.input_tokens - was.input_tokens),
            max(0, whole.output_tokens - was.output_tokens),
            max(0, whole.model_calls - was.model_calls),
            max(0, whole.tool_calls - was.tool_calls),
            whole.estimated,
            max(0, whole.micros - was.micros),
            max(0, whole.seconds - was.seconds),
        )
        + now
    )
