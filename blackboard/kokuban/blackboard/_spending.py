"""What a task and all tasks below it have spent, reserved and left, as people want to see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kokuban.blackboard.core import Step, Task
from kokuban.schemas import Allotment, Usage

DIMENSIONS = ("tokens", "micros", "steps", "tool_calls", "seconds")


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
    others = tuple(below)
    usage = sum((one.usage for one in (task, *others)), Usage())
    running = [step for one in (task, *others) for step in one.steps.values() if step.running]
    budget = task.spec.budget
    lines = tuple(
        Line(
            name, _spent(usage, name), sum(_reserved(step, name) for step in running),
            getattr(budget, name) if budget is not None else None,
        )
        for name in DIMENSIONS
    )  # fmt: skip
    return Spending(lines, len(others), usage.estimated)


def _spent(usage: Usage, dimension: str) -> int:
    value: int = getattr(usage, "model_calls" if dimension == "steps" else dimension)
    return value


def _reserved(step: Step, dimension: str) -> int:
    """What the work under way may still spend. Its time is booked when it ends: until then all of it is reserved."""
    allotment: Allotment = step.allotment
    limit = getattr(allotment, dimension) or 0
    return max(0, limit - _spent(step.usage, dimension) + _spent(step.begun, dimension))
