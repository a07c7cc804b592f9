"""Limits and budgets, at every sequence number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ._leader import decided
from ._record import Rec
from ._state import DIMENSIONS, Call, History, Spent, Step, Task, usage_of


def limits(h: History, rec: Rec) -> None:
    """New limits: they bind from the next decision on."""
    h.limits_before, h.limits, h.limits_time = h.limits, rec.body, rec.time


def spend(step: Step, cost: Spent) -> None:
    step.usage = step.usage + cost


def opened(h: History, task: Task, step: Step, call: Call) -> None:
    """A call is reserved before it is made: what is spent and what it may cost stay within the allotment."""
    allotment = step.allotment
    used = step.usage - step.before
    for name, more in (("tokens", call.reserved.tokens), ("micros", call.reserved.micros)):
        limit = allotment.get(name)
        if limit is not None and more and getattr(used, name) + more > int(limit):
            text = f"{getattr(used, name)} {name} spent and {more} reserved are above the {limit} allotted"
            h.wrong("allotment", call.seq, f"step {task.id}/{step.id}: {text}")


def within(h: History, task: Task, step: Step, seq: int) -> None:
    """What the present work has spent is within its allotment, at this sequence number."""
    used = step.usage - step.before
    for name in ("steps", "tool_calls", "tokens", "micros"):
        limit = step.allotment.get(name, _DEFAULTS.get(name))
        if limit is not None and getattr(used, name) > int(limit):
            text = f"{getattr(used, name)} {name} spent, {limit} allotted"
            h.wrong("allotment", seq, f"step {task.id}/{step.id}: {text}")


_DEFAULTS = {"steps": 12, "tool_calls": 20, "tokens": 32_000, "seconds": 90}
"""What an allotment says when it leaves a number out."""


def let_go(h: History, task: Task, step: Step, rec: Rec) -> None:
    """The owner ends its claim: its time counts, and a call that it leaves open."""
    _time(step, rec)
    left_open(step)
    within(h, task, step, rec.seq)


def left_open(step: Step) -> None:
    """The owner leaves a call open: it counts for what it had reserved, a tool call for one."""
    call = step.opened
    if call is not None and (call.kind == "tool" or call.reserved.tokens or call.reserved.micros):
        spend(step, _worst(call))


def lost(h: History, task: Task, step: Step, rec: Rec) -> None:
    """The leader takes a step back: what the call under way had reserved counts as spent."""
    if step.status == "claimed":
        _time(step, rec)
        if step.opened is not None:
            spend(step, _worst(step.opened))


def _worst(call: Call) -> Spent:
    """What a call counts for that nobody will ever settle."""
    asked = call.kind == "model"
    return call.reserved + Spent(steps=int(asked), tool_calls=int(not asked))


def _time(step: Step, rec: Rec) -> None:
    """Full seconds of the server's clock, at most what was allotted: a step is taken back soon after that."""
    most = int(step.allotment.get("seconds", _DEFAULTS["seconds"]))
    spend(step, Spent(seconds=min(most, math.ceil(max(0.0, rec.time - step.claim_time)))))


# ---------------------------------------------------------------------- limits


def ordered(h: History, task: Task, step: Step, rec: Rec) -> None:
    """With this step, what is under way is within every limit and budget."""
    under_way = list(h.under_way.values())
    now, before = h.limits, h.limits_before
    late = rec.time - h.limits_time <= h.settings.grace_seconds
    for kind, name, count in (
        ("role", step.role, sum(s.role == step.role for _, s in under_way)),
        ("tenant", task.tenant, sum(t.tenant == task.tenant for t, _ in under_way)),
        ("task", task.id, sum(t is task for t, _ in under_way)),
    ):
        limit = _limit(h, now, kind, name)
        if late and limit is not None:
            earlier = _limit(h, before, kind, name)
            limit = max(limit, earlier) if earlier is not None else None
        if limit is not None and count > limit:
            h.wrong("limit", rec.seq, f"{count} steps of {kind} {name} are under way; the limit is {limit}")
    budgets(h, task, rec.seq, "the order of step " + step.id)


def _limit(h: History, limits: dict[str, Any], kind: str, name: str) -> int | None:
    if kind == "role":
        found = (limits.get("roles") or {}).get(name, h.settings.roles.get(name))
    elif kind == "tenant":
        found = ((limits.get("tenants") or {}).get(name) or {}).get("concurrency")
    else:
        found = limits.get("steps_per_task")
        found = h.settings.steps_per_task if found is None else found
    return int(found) if found is not None else None


# ---------------------------------------------------------------------- budgets


def promised(step: Step) -> Spent:
    """What a step under way may still spend."""
    allotment = {**_DEFAULTS, **step.allotment}
    total = Spent(*(int(allotment.get(d) or 0) for d in DIMENSIONS))
    so_far = step.usage - step.before
    return (total - replace(so_far, seconds=0)).at_least_zero()  # each owner of the work has the whole time


def budgets(h: History, task: Task, seq: int, what: str) -> None:
    """What is spent and promised below every budget that the task is under stays within it."""
    for above in h.ancestors(task):
        budget = above.spec.body.get("budget")
        if isinstance(budget, dict) and not above.archived:
            _fits(h, list(h.tree(above.id).values()), budget, seq, f"task {above.id}", what)
    tenant = ((h.limits.get("tenants") or {}).get(task.tenant) or {}).get("budget")
    fresh = h.last_time - h.limits_time <= h.settings.grace_seconds
    if isinstance(tenant, dict) and h.settings.whole_board and not fresh:
        mine = [t for t in h.tasks.values() if t.tenant == task.tenant]
        if not any(t.archived for t in mine):
            _fits(h, mine, tenant, seq, f"tenant {task.tenant}", what)


def _fits(h: History, tasks: list[Task], budget: dict[str, Any], seq: int, whose: str, what: str) -> None:
    total = Spent()
    for task in tasks:
        total = total + task.usage
        for step in task.steps.values():
            if step.running:
                total = total + promised(step)
    for name in DIMENSIONS:
        limit = budget.get(name)
        if limit is not None and getattr(total, name) > int(limit):
            text = f"{getattr(total, name)} {name} are spent or promised with {what}"
            h.wrong("budget", seq, f"{whose}: {text}; its budget is {limit}")


def granted(h: History, task: Task, rec: Rec) -> None:
    """The leader answers an owner that asked for more: never less than before, and never above the budget."""

    if not decided(h, task, rec):
        return
    step = task.steps.get(rec.step)
    if step is None or step.status != "claimed" or rec.body.get("claim") != step.fence:
        h.note("a grant for an owner that had let go by then; it counts for nothing")
        return
    if step.asks is None:
        h.note("a grant that nobody had asked for by then; it counts for nothing")
        return
    new = rec.body.get("allotment") or {}
    for name in ("steps", "tool_calls", "tokens", "seconds", "micros"):
        old = step.allotment.get(name, _DEFAULTS.get(name))
        value = new.get(name, _DEFAULTS.get(name))
        if old is not None and value is not None and int(value) < int(old):
            h.wrong("allotment", rec.seq, f"step {task.id}/{step.id}: {name} go down from {old} to {value}")
    step.allotment, step.asks = new, None
    budgets(h, task, rec.seq, "a grant to step " + step.id)


def ended(h: History, task: Task, rec: Rec) -> None:
    """The end tells what was spent."""
    said, mine = usage_of(rec.body.get("usage")), task.usage
    for name in ("steps", "tool_calls", "tokens", "micros"):
        if getattr(said, name) != getattr(mine, name):
            text = f"{getattr(said, name)} {name}; its records add up to {getattr(mine, name)}"
            h.wrong("usage", rec.seq, f"the end of task {task.id} tells of {text}")
