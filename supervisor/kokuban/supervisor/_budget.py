"""Budgets: what is left for a task at every level above it, and what a work order gets of it (invariant 6).

An allotment is carved from what is left of the task's own budget, of every task's above it, and of its tenant's: the
budget less what was spent less what running work may still spend. One leader carves, so no two can carve the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from kokuban.blackboard.core import Board, Step, Task
from kokuban.blackboard.core.spending import DIMENSIONS, reserved_by, spent_in
from kokuban.schemas import Allotment, Budget, Usage, WorkOrder
from kokuban.schemas._base import MAX_COUNT

Promised = Mapping[tuple[str, str], Allotment]
"""Task and step to the allotment of an order, or of an answer to who asked for more, that is being written."""

_WORDS = {"steps": "model turns", "tool_calls": "tool calls", "micros": "money"}
MONEY_SHARE = 4
"""A contract says nothing of money: an order gets this part of what is left, and its owner may ask for more."""


@dataclass(frozen=True, slots=True)
class Short:
    """Nothing is left in `dimension` for a step. `final` when nothing under way can give any back."""

    dimension: str
    scope: str
    final: bool

    def __str__(self) -> str:
        return f"no {_WORDS.get(self.dimension, self.dimension)} left in the budget of {self.scope}"


def budgets_over(board: Board, task: Task) -> list[tuple[str, Budget, Usage]]:
    """Each budget that applies to the task, with whose it is and what was spent of it."""
    found = [(f"task {one.id}", one.spec.budget, one.tree_usage) for one in lineage(board, task) if one.spec.budget]
    tenant = board.limits.tenants.get(task.tenant)
    if tenant is not None and tenant.budget is not None:
        found.append((f"tenant {task.tenant}", tenant.budget, board.spent.get(task.tenant, Usage())))
    return found


def lineage(board: Board, task: Task | None) -> Iterator[Task]:
    """The task and every task above it."""
    while task is not None:
        yield task
        task = board.tasks.get(task.parent) if task.parent else None


@dataclass(slots=True)
class _Left:
    """What is left in one scope, by dimension (None: no limit), and whether anything under way may give some back."""

    scope: str
    amounts: dict[str, int | None]
    pending: bool


def left_for(board: Board, task: Task, promised: Promised) -> list[_Left]:
    """What is left in each scope over the task: never below 0."""
    found = []
    for scope, budget, usage in budgets_over(board, task):
        spent, reserved, pending = spent_in(usage), dict.fromkeys(DIMENSIONS, 0), False
        for key, held in _held(board, promised).items():
            if _in_scope(board, board.tasks.get(key[0]), scope):
                pending = True
                for d in DIMENSIONS:
                    reserved[d] += held[d]
        limits = {d: getattr(budget, d) for d in DIMENSIONS}
        amounts = {d: None if limits[d] is None else max(0, limits[d] - spent[d] - reserved[d]) for d in DIMENSIONS}
        found.append(_Left(scope, amounts, pending))
    return found


def _held(board: Board, promised: Promised) -> dict[tuple[str, str], dict[str, int]]:
    held = {key: reserved_by(step) for key, step in board.under_way.items()}
    for key, allotment in promised.items():
        # A promise to a step that is under way raises its allotment: what it has spent of that is not held any more.
        so_far = _since(board.under_way[key]) if key in board.under_way else dict.fromkeys(DIMENSIONS, 0)
        held[key] = {d: max(0, _of(allotment, d) - (0 if d == "seconds" else so_far[d])) for d in DIMENSIONS}
    return held


def _in_scope(board: Board, task: Task | None, scope: str) -> bool:
    if task is not None and scope == f"tenant {task.tenant}":
        return True
    return any(scope == f"task {one.id}" for one in lineage(board, task))


def carve(
    board: Board, task: Task, order: WorkOrder, step: Step | None, promised: Promised, *, asks_model: bool
) -> WorkOrder | Short:
    """The order with an allotment that fits every budget; `Short` when there is none for it now."""
    scopes = left_for(board, task, promised)
    if not scopes:
        return order
    base = _since(step) if step is not None and order.resumes else dict.fromkeys(DIMENSIONS, 0)
    needed = ("steps", "tokens", "micros", "seconds") if asks_model else ("seconds",)
    totals: dict[str, int | None] = {}
    wanted: dict[str, int | None] = {}
    for d in DIMENSIONS:
        start, left = (0 if d == "seconds" else base[d]), _least(scopes, d)
        if d == "micros":
            wanted[d] = None if left is None else start + left
            totals[d] = None if left is None else start + -(-left // MONEY_SHARE)
        else:
            wanted[d] = max(start, _of(order.allotment, d))
            totals[d] = wanted[d] if left is None else start + min(_of(order.allotment, d) - start, left)
        if left == 0 and d in needed:
            empty = [scope for scope in scopes if scope.amounts[d] == 0]
            return Short(d, empty[0].scope, not all(scope.pending for scope in empty))
    allotment, more = Allotment(**totals), Allotment(**wanted)  # type: ignore[arg-type]
    return replace(order, allotment=allotment, more=more if more != allotment else None, budgeted=True)


def grant(board: Board, task: Task, step: Step, promised: Promised) -> Allotment:
    """The answer to an owner that asked for more: as much of it as is left; what it has when nothing is."""
    assert step.order is not None
    assert step.asks is not None
    has, ceiling = step.allotment, step.order.more or step.allotment
    scopes = left_for(board, task, promised)
    totals: dict[str, int | None] = {}
    for d in DIMENSIONS:
        now, asked, top = (getattr(one, d) for one in (has, step.asks, ceiling))
        if now is None or d == "seconds":
            totals[d] = now
            continue
        extra = max(0, min(asked or 0, MAX_COUNT if top is None else top) - now)
        left = _least(scopes, d)
        totals[d] = now + (extra if left is None else min(extra, left))
    return Allotment(**totals)  # type: ignore[arg-type]


def _since(step: Step) -> dict[str, int]:
    """What the present work has spent."""
    now, begun = spent_in(step.usage), spent_in(step.begun)
    return {d: max(0, now[d] - begun[d]) for d in DIMENSIONS}


def _least(scopes: list[_Left], dimension: str) -> int | None:
    amounts = [amount for scope in scopes if (amount := scope.amounts[dimension]) is not None]
    return min(amounts) if amounts else None


def _of(allotment: Allotment, dimension: str) -> int:
    return getattr(allotment, dimension) or 0
