"""What a task and all tasks below it have spent, reserved and left, as people want to see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kokuban.blackboard.core import Task
from kokuban.blackboard.core.spending import DIMENSIONS, reserved_by, spent_in
from kokuban.schemas import Usage


@dataclass(frozen=True, slots=True)
class Line:
    """One dimension of a budget: model turns (`steps`), `tool_calls`, `tokens`, `micros` (millionths of a US dollar) or
    `seconds`. `reserved` is what running work may still spend; `limit` None: there is none."""

    dimension: str
    spent: int
    reserved: int
    limit: int | None

    @property
    def left(self) -> int | None:
        """What nobody has spent or reserved; never below 0; None without a limit."""
        return None if self.limit is None else max(0, self.limit - self.spent - self.reserved)


@dataclass(frozen=True, slots=True)
class Spending:
    """A line for each of `DIMENSIONS`. `tasks` counts the tasks below that are in it; `estimated` is true when a part
    of it is our own estimate."""

    lines: tuple[Line, ...]
    tasks: int = 0
    estimated: bool = False


def spending_of(task: Task, below: Iterable[Task] = ()) -> Spending:
    """The spending of a task, with that of the tasks below it, against its budget."""
    tasks = (task, *below)
    usage = sum((one.usage for one in tasks), Usage())
    spent, held = spent_in(usage), [reserved_by(step) for one in tasks for step in one.steps.values()]
    budget = task.spec.budget
    lines = tuple(
        Line(name, spent[name], sum(part[name] for part in held), getattr(budget, name) if budget else None)
        for name in DIMENSIONS
    )
    return Spending(lines, len(tasks) - 1, usage.estimated)
