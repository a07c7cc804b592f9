"""Who owns what: the register's chain, orders and attempts, the leader's epochs, ends."""

from __future__ import annotations

from . import _calls, _gates, _money, _results
from ._leader import decided, in_force
from ._record import Rec
from ._state import History, Step, Task, usage_of

ENDINGS = 2
"""Orders of this version and later are sealed only after the leader has said that their task ends."""


def spec(h: History, rec: Rec) -> None:
    """A task is accepted. A tombstone here only keeps the key of one that is archived: clients may write here."""
    known = h.tasks.get(rec.task)
    if rec.type == "task.tombstone":
        if known is not None and not known.archived:
            h.note("a tombstone stands on the spec's subject of a task that is not archived; it counts for nothing")
        return
    if known is not None and not known.archived:  # a tombstone has its time, and then its key is free again
        h.wrong("accepted-once", rec.seq, f"task {rec.task} was accepted before, at {known.spec.seq}")
        return
    h.count("tasks accepted")
    parent = rec.envelope.get("parent")
    task = Task(rec.task, rec, parent if isinstance(parent, str) else None, str(rec.body.get("tenant", "default")))
    h.tasks[rec.task] = task
    if task.parent:
        h.children.setdefault(task.parent, []).append(task.id)


def buried(h: History, rec: Rec) -> None:
    """A task is archived: its tombstone tells of its own end, under the epoch in force."""
    known, stale = h.tasks.get(rec.task), in_force(h, rec)
    if stale:
        h.wrong("epoch", rec.seq, f"{rec.type} of task {rec.task}: {stale}")
        return
    if known is None:  # its records are gone
        known = h.tasks[rec.task] = Task(rec.task, rec, None, str(rec.body.get("tenant", "default")))
    elif known.archived:
        h.note("a second tombstone of a task; it counts for nothing")
    elif known.final is None:
        h.wrong("end-once", rec.seq, f"task {rec.task} has a tombstone and never ended")
        return
    elif [rec.body.get(name) for name in ("spec", "final", "state")] != [
        known.spec.seq, known.final.seq, known.final.body.get("state"),
    ]:  # fmt: skip
        h.wrong("end-once", rec.seq, f"the tombstone of task {rec.task} tells of another end than its own")
        return
    known.archived = True


def epoch(h: History, rec: Rec, number: int) -> None:
    """A leader fences off all before it."""
    if rec.body.get("shard") != number:
        h.wrong("epoch", rec.seq, f"the epoch of shard {rec.body.get('shard')} stands on the subject of shard {number}")
        return
    h.epochs[number] = rec


def order(h: History, task: Task, rec: Rec) -> None:
    """A step is offered."""
    h.count("steps ordered")
    if not decided(h, task, rec):
        return
    step = task.steps.get(rec.step)
    if step is None:
        step = Step(rec.step, rec.role, reg=task.registers.get((rec.role, rec.step), 0))
        task.steps[rec.step] = step
    where = f"step {task.id}/{step.id}"
    if step.role != rec.role:
        h.wrong("order", rec.seq, f"{where} belongs to role {step.role}, it is ordered from {rec.role}")
        return
    if step.running:
        h.wrong("order", rec.seq, f"{where} is {step.status} already (attempt {step.attempt}): ordered twice")
        return
    if step.status == "revoked":
        h.wrong("sealed", rec.seq, f"{where} was sealed, and is ordered again")
    if task.ending is not None:
        h.wrong("ending", rec.seq, f"{where} was ordered after the task's end was begun at {task.ending.seq}")
        return
    if rec.body.get("reg") != step.reg:
        h.wrong("register", rec.seq, f"{where}: the order names register {rec.body.get('reg')}, it stood at {step.reg}")
    if rec.attempt != step.attempt + 1:
        h.wrong("attempt", rec.seq, f"{where}: attempt {rec.attempt} does not follow {step.attempt}")
    if rec.body.get("spec") != task.spec.seq and not task.archived:
        h.wrong(
            "order", rec.seq, f"{where}: the order names spec {rec.body.get('spec')}, the task's is {task.spec.seq}"
        )
    resumes = int(rec.body.get("resumes", 0))
    if resumes and resumes != step.begun:
        h.wrong(
            "attempt", rec.seq, f"{where}: it takes up the work of attempt {resumes}; the last began in {step.begun}"
        )
    if _is_cancelled(h, task, rec):
        h.wrong("cancel", rec.seq, f"{where} was ordered although task {task.id} was cancelled before")
    _results.inputs(h, task, rec)
    _gates.decisions_in_order(h, task, step, rec)
    _dependencies(h, task, rec)
    step.attempt, step.order, step.fence, step.worker, step.gate = rec.attempt, rec, 0, "", ""
    step.opened, step.asks = None, None
    if not resumes:
        step.begun, step.before, step.calls = rec.attempt, step.usage, []
    step.allotment = rec.body.get("allotment") or {}
    step.results = ()
    h.move(task, step, "ordered")
    _money.ordered(h, task, step, rec)


def _is_cancelled(h: History, task: Task, rec: Rec) -> bool:
    found = [t.cancel.time for t in h.ancestors(task) if t.cancel is not None]
    return bool(found) and rec.time > min(found) + h.settings.grace_seconds


def _dependencies(h: History, task: Task, rec: Rec) -> None:
    for name in task.spec.items("after"):
        other = h.tasks.get(name)
        if other is None and not h.settings.whole_board:
            continue
        if other is not None and other.archived:
            continue
        if other is None or other.final is None or other.final.body.get("state") != "done":
            h.wrong("dependency", rec.seq, f"step {task.id}/{rec.step} was ordered before task {name} was done")


def register(h: History, task: Task, rec: Rec) -> None:
    """Something on a step register. It moves with every record, as it did on the server."""
    key = (rec.role, rec.step)
    before = task.registers.get(key, 0)
    task.registers[key] = rec.seq
    step = task.steps.get(rec.step)
    if step is None or step.role != rec.role:
        h.wrong("register", rec.seq, f"{rec.type} for step {task.id}/{rec.step} of {rec.role}, which nobody ordered")
        return
    step.reg = rec.seq
    if rec.type in ("step.released", "step.revoked"):
        _taken_back(h, task, step, rec)
    elif task.final is not None:
        h.note("an owner wrote after its task's end; it counts for nothing")
    elif rec.type == "step.claimed":
        _claimed(h, task, step, rec, before)
    else:
        _committed(h, task, step, rec, before)


def _claimed(h: History, task: Task, step: Step, rec: Rec, before: int) -> None:
    where = f"step {task.id}/{step.id}"
    if step.status != "ordered" or step.order is None:
        h.wrong("owner", rec.seq, f"{where} was claimed while {step.status or 'never ordered'}: two owners")
        return
    if rec.body.get("order") != step.order.seq:
        h.wrong("owner", rec.seq, f"{where}: the claim is for order {rec.body.get('order')}, not {step.order.seq}")
        return
    if not before == rec.body.get("reg") == step.order.body.get("reg"):
        said = f"the claim says register {rec.body.get('reg')}, the order {step.order.body.get('reg')}"
        h.wrong("register", rec.seq, f"{where}: {said}; it stood at {before}")
        return
    if rec.attempt != step.attempt:
        h.wrong("attempt", rec.seq, f"{where}: a claim of attempt {rec.attempt} on the order of {step.attempt}")
    if not rec.worker:
        h.wrong("owner", rec.seq, f"{where}: nobody says who claimed it")
    h.count("claims")
    step.fence, step.claim_time, step.worker = rec.seq, rec.time, rec.worker
    h.move(task, step, "claimed")
    if isinstance(rec.body.get("opens"), dict):
        _calls.opened(h, task, step, rec)


def owns(h: History, task: Task, step: Step | None, rec: Rec) -> bool:
    """Whether the record carries the fence of the step's owner."""
    where = f"step {task.id}/{rec.step}"
    if step is None or step.status != "claimed" or rec.fence != step.fence:
        now = "nobody's" if step is None or step.status != "claimed" else f"held under {step.fence}"
        h.wrong("owner", rec.seq, f"{rec.type} for {where} under fence {rec.fence}: it is {now}")
        return False
    if rec.worker != step.worker:
        h.wrong("owner", rec.seq, f"{rec.type} for {where} by {rec.worker or 'nobody'}: its owner is {step.worker}")
        return False
    if rec.attempt != step.attempt:
        h.wrong("attempt", rec.seq, f"{rec.type} for {where} says attempt {rec.attempt}; it is {step.attempt}")
    return True


def _committed(h: History, task: Task, step: Step, rec: Rec, before: int) -> None:
    """The owner lets go: done, failed, or waiting for people."""
    if not owns(h, task, step, rec):
        return
    if before != step.fence:
        text = f"the register stood at {before}, the claim at {step.fence}"
        h.wrong("register", rec.seq, f"{rec.type} for step {task.id}/{step.id}: {text}")
        return
    _calls.settled(h, task, step, rec)
    _money.spend(step, usage_of(rec.body.get("usage")))
    _money.let_go(h, task, step, rec)
    step.opened = None
    h.move(task, step, rec.type.removeprefix("step."))
    h.count(f"steps {step.status}")
    if rec.type == "step.done":
        _results.done(h, task, step, rec)
    elif rec.type == "step.waiting":
        _gates.waiting(h, task, step, rec)


def _taken_back(h: History, task: Task, step: Step, rec: Rec) -> None:
    version = step.order.version if step.order is not None else ENDINGS
    if rec.type == "step.revoked" and task.ending is None and version >= ENDINGS:
        h.note("somebody sealed a step of a task of which no end was begun: the register moved, and that is all")
        return
    if in_force(h, rec):
        h.note("a past leader took a step back: the register moved, and that is all")
        return
    if task.final is not None:
        h.wrong("end-once", rec.seq, f"{rec.type} of task {task.id} after its end at {task.final.seq}")
        return
    if not step.running and not (step.status == "waiting" and rec.type == "step.revoked"):
        h.wrong("order", rec.seq, f"step {task.id}/{step.id} was taken back while {step.status}")
        return
    _money.lost(h, task, step, rec)
    step.opened = None
    h.move(task, step, rec.type.removeprefix("step."))
    h.count(f"steps {step.status}")


def _failed(h: History, name: str) -> bool:
    other = h.tasks.get(name)
    if other is None or other.archived:
        return other is not None
    end = other.final or other.ending  # who hangs on it need not wait for the end itself
    return end is not None and end.body["state"] != "done"


def ending(h: History, task: Task, rec: Rec) -> None:
    """The leader says how the task is about to end, before it seals anything."""
    if not decided(h, task, rec):
        return
    if task.ending is not None:
        h.wrong("ending", rec.seq, f"the end of task {task.id} was begun before, at {task.ending.seq}")
        return
    h.count("ends begun")
    task.ending = rec


def final(h: History, task: Task, rec: Rec) -> None:
    """The end of a task."""
    if not decided(h, task, rec):
        return
    h.count(f"ends: {rec.body.get('state')}")
    state = rec.body.get("state")
    for step in task.steps.values():
        if step.running or (step.status == "waiting" and state != "done"):
            h.wrong("sealed", rec.seq, f"task {task.id} ended {state} while step {step.id} was {step.status}")
            h.move(task, step, "revoked")
        for call in step.doubts if state == "done" else ():
            text = f"of {call.tool}, begun at {call.seq} by step {step.id}, nobody knows the outcome"
            h.wrong("in-doubt", rec.seq, f"task {task.id} ended done, and {text}")
    if task.ending is not None and task.ending.body.get("state") != state:
        text = f"its end was begun at {task.ending.seq} as {task.ending.body.get('state')}"
        h.wrong("ending", rec.seq, f"task {task.id} ended {state}; {text}")
    if state == "done":
        _results.proven(h, task, rec)
    if state == "done" and _is_cancelled(h, task, rec):
        h.wrong("cancel", rec.seq, f"task {task.id} was cancelled long before, and ended done")
    if state == "cancelled" and not any(t.cancel for t in h.ancestors(task)) and h.settings.whole_board:
        h.wrong("cancel", rec.seq, f"task {task.id} ended cancelled, and nobody had asked for it")
    if state == "dependency_failed" and h.settings.whole_board:
        others = [*task.spec.items("after"), *(above.id for above in h.ancestors(task)[1:])]
        if not any(_failed(h, name) for name in others):
            h.wrong(
                "dependency", rec.seq, f"task {task.id} ended dependency_failed; nothing that it hangs on had failed"
            )
    _money.ended(h, task, rec)
    task.final = rec
