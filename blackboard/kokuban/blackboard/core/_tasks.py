"""The fold of a task's beginning and end."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from kokuban.blackboard.core import _ends
from kokuban.blackboard.core._context import Applied, Context, Ignored, Stored, book, check_epoch, move, worst
from kokuban.blackboard.core.state import Board, Task
from kokuban.schemas import Ending, Final, Record, TaskSpec
from kokuban.schemas.kinds import decode_artifact


def spec(board: Board, task_id: str, message: Stored, record: Record) -> Applied:
    if record.type == "task.tombstone":
        raise Ignored("keeps the key of an archived task")  # clients may write here: it proves no end
    if record.type != "task.spec" or record.task != task_id:
        raise Ignored("no task spec")
    if task_id in board.tasks:
        if not _ends.is_forgotten(board.tasks[task_id], message.time):
            raise Ignored("the task exists")
        _ends.remove(board, task_id)
    body = decode_artifact("task", record.body)
    assert isinstance(body, TaskSpec)
    task = Task(task_id, body, message.seq, message.time, record.principal or "", last_seq=message.seq)
    task.last_time = message.time
    task.parent = _ends.parent_of(board, task_id, record.parent)
    task.admissible = board.intake is None or board.intake.open
    if body.deadline_seconds is not None:
        task.deadline = message.time + body.deadline_seconds
    board.tasks[task_id] = task
    if task.parent in board.tasks:
        board.tasks[task.parent].children.append(task_id)
    for earlier in body.after:
        if earlier in board.tasks:
            board.tasks[earlier].dependents.append(task_id)
    return Applied(task, record)


def ending(at: Context) -> Applied:
    """The leader says how the task is about to end: nothing more is ordered, what is under way is sealed."""
    check_epoch(at)
    if at.task.ending is not None:
        raise Ignored("an end was begun before")
    at.task.ending = msgspec.json.decode(at.record.body, type=Ending)
    return Applied(at.task, at.record)


def final(at: Context) -> Applied:
    check_epoch(at)
    task = at.task
    task.final, task.final_seq = msgspec.json.decode(at.record.body, type=Final), at.message.seq
    task.final_time = at.message.time
    for step in task.steps.values():
        if step.running:
            book(at.board, task, step, worst(step.opened))
            move(at, step, "revoked")
        step.results = tuple(replace(artifact, body=b"") for artifact in step.results)
    task.artifacts = {digest: replace(artifact, body=b"") for digest, artifact in task.artifacts.items()}
    if at.board.slim:
        _ends.slim(task)
    return Applied(task, at.record)
