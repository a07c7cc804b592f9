"""Tasks as text for people, and as JSON: where they stand, what they spend, what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kokuban.console._live import count, reason_of, ref_json, short, usage_json
from kokuban.console._terminal import Paint, one_line

if TYPE_CHECKING:
    from kokuban.blackboard.client import Spending
    from kokuban.blackboard.core import Step, Task

_LABELS = {
    "tokens": "tokens",
    "micros": "USD",
    "steps": "model turns",
    "tool_calls": "tool calls",
    "seconds": "seconds",
}


def state_of(task: Task) -> str:
    """How it ended: done, failed, cancelled, deadline, out_of_budget, dependency_failed, refused, dead; or `open`."""
    return task.final.state if task.final else "open"


def task_line(task: Task, paint: Paint) -> str:
    """A task in one line: id, state, how many steps are done, tokens, what it waits for, goal."""
    state = state_of(task)
    done = sum(step.status == "done" for step in task.steps.values())
    colour = {"done": "green", "open": "yellow"}.get(state, "red")
    steps = f"{done}/{count(len(task.steps), 'step')}"
    spent = f"{task.usage.tokens:>7} tokens"
    asked = len(waiting_gates(task))
    waits = paint(f"waits for people ({asked})  ", "yellow") if asked else ""
    return f"{task.id}  {paint(f'{state:<9}', colour)}  {steps:<10}  {spent}  {waits}{one_line(task.spec.goal, 80)}"


def waiting_gates(task: Task) -> list[str]:
    """The gates that wait for a person."""
    return [] if task.final else [name for name, gate in task.gates.items() if gate.decision is None]


def never_ordered(task: Task) -> list[tuple[str, str, tuple[str, ...]]]:
    """Planned steps that were never ordered: id, role, needs. Once the task has ended they were blocked by its end."""
    if task.plan is None:
        return []
    return [(step.id, step.role, step.needs) for step in task.plan.steps if step.id not in task.steps]


def task_lines(task: Task, spending: Spending, paint: Paint) -> Iterator[str]:
    """A task with its steps, artifacts, spending, and whom it waits for."""
    yield task_line(task, paint)
    for line in _about(task):
        yield f"  {line}"
    for step in task.steps.values():
        where = f"{step.role}/{step.id}" + (f"#{step.attempt}" if step.attempt > 1 else "")
        worker = f"  {one_line(step.worker)}" if step.status == "claimed" else ""
        gate = f"  for gate {step.gate}" if step.status == "waiting" else ""
        reasons = f"  {one_line('; '.join(step.reasons))}" if step.reasons and step.status != "done" else ""
        yield f"  {where:<28}  {step.status}{worker}{gate}{reasons}"
    for name, role, needs in never_ordered(task):
        after = f", after {', '.join(needs)}" if needs else ""
        yield f"  {f'{role}/{name}':<28}  {'blocked' if task.final else 'not ordered yet'}{after}"
    for artifact in task.artifacts.values():
        ref = artifact.ref
        yield f"  {paint(f'{ref.kind}/{ref.name}', 'cyan')}  {short(ref.digest)}  #{ref.seq}"
    yield from _spending_lines(spending)
    for name in waiting_gates(task):
        asks = one_line(task.gates[name].gate.asks, 300)
        yield paint(f"  waits for people: {asks}  (kokuban approvals show {task.id}/{name})", "yellow")
    if task.final is not None:
        yield f"  {paint(task.final.state, 'bold')}: {reason_of(task.final.state, task.final.reason)}"
        if task.final.unconfirmed:
            yield f"  not heard to have stopped: {one_line(', '.join(task.final.unconfirmed), 1_000)}"
    elif task.cancel is not None:
        yield f"  cancel is asked for: {one_line(task.cancel, 2_000)}"


def _about(task: Task) -> Iterator[str]:
    spec = task.spec
    told = {
        "tenant": "" if spec.tenant == "default" else spec.tenant, "priority": str(spec.priority or ""),
        "part of": task.parent or "", "after": ", ".join(spec.after),
        "archived": "yes" if task.tombstone else "",
    }  # fmt: skip
    line = "; ".join(f"{name}: {text}" for name, text in told.items() if text)
    if line:
        yield one_line(line, 2_000)
    if task.facts:
        yield f"facts: {one_line('; '.join(task.facts), 2_000)}"


def _spending_lines(spending: Spending) -> Iterator[str]:
    below = f" with {count(spending.tasks, 'task')} below" if spending.tasks else ""
    yield f"  spent{below}{' (estimated in part)' if spending.estimated else ''}:"
    for line in spending.lines:
        if line.limit is None and not (line.spent or line.reserved):
            continue
        amounts = f"{_amount(line.dimension, line.spent)} spent, {_amount(line.dimension, line.reserved)} reserved"
        if line.limit is None or line.left is None:
            left = "no limit"
        else:
            left = f"{_amount(line.dimension, line.left)} left of {_amount(line.dimension, line.limit)}"
        yield f"    {_LABELS.get(line.dimension, line.dimension):<12} {amounts}, {left}"


def _amount(dimension: str, value: int) -> str:
    return f"{value // 1_000_000:,}.{value % 1_000_000:06}" if dimension == "micros" else f"{value:,}"


def task_json(task: Task, spending: Spending | None = None) -> dict[str, Any]:
    """A task for programs; with `spending` also its steps, artifacts and gates."""
    spec = task.spec
    found: dict[str, Any] = {
        "task": task.id, "state": state_of(task), "goal": spec.goal, "submitted": task.time, "seq": task.last_seq,
        "checks": spec.checks, "usage": usage_json(task.usage), "tenant": spec.tenant, "priority": spec.priority,
        "parent": task.parent, "after": spec.after, "waiting": waiting_gates(task), "archived": bool(task.tombstone),
    }  # fmt: skip
    if task.final is not None:
        found |= {
            "reason": task.final.reason, "checked": task.final.checked, "ended": task.final_time,
            "blocked": task.final.blocked, "unconfirmed": task.final.unconfirmed,
        }  # fmt: skip
    if spending is not None:
        found["steps"] = [_step_json(step) for step in task.steps.values()]
        found["planned"] = [{"step": n, "role": role, "needs": needs} for n, role, needs in never_ordered(task)]
        found["artifacts"] = [
            ref_json(a.ref) | {"role": a.role, "attempt": a.attempt, "derived_from": a.derived_from}
            for a in task.artifacts.values()
        ]
        found |= {"facts": task.facts, "cancel": task.cancel, "deadline": task.deadline, "children": task.children}
        found["budget"] = {
            line.dimension: {"spent": line.spent, "reserved": line.reserved, "limit": line.limit, "left": line.left}
            for line in spending.lines
        }
    return found


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "step": step.id, "role": step.role, "status": step.status, "attempt": step.attempt, "worker": step.worker,
        "fence": step.fence, "reasons": step.reasons, "gate": step.gate, "usage": usage_json(step.usage),
    }  # fmt: skip
