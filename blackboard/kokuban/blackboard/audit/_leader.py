"""Whether a decision may count: the leader's epoch, and the end."""

from __future__ import annotations

from ._record import Rec, shard
from ._state import History, Task


def in_force(h: History, rec: Rec) -> str:
    """What is wrong with the epoch that a decision cites; '' when it is the one in force, and its writer's own."""
    now = h.epochs.get(shard(rec.task))
    if now is None or rec.fence != now.seq:
        return f"it cites epoch {rec.fence}; in force is {now.seq if now else 'none'}"
    if rec.worker != str(now.body.get("supervisor", "")):
        return f"it was written by {rec.worker or 'nobody'}, the epoch is {now.body.get('supervisor')}'s"
    return ""


def decided(h: History, task: Task, rec: Rec) -> bool:
    """Whether a decision may count. One from a past epoch, or after the end, is a violation."""
    stale = in_force(h, rec)
    if stale:
        h.wrong("epoch", rec.seq, f"{rec.type} of task {task.id}: {stale}")
    if task.final is not None:
        h.wrong("end-once", rec.seq, f"{rec.type} of task {task.id} after its end at {task.final.seq}")
        return False
    return not stale
