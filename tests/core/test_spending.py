"""What was spent and what is reserved, and that no more than the allotment ever is."""

from __future__ import annotations

from core.history import begun
from kokuban.blackboard._spending import spending_of
from kokuban.blackboard.core import Step
from kokuban.blackboard.core.spending import DIMENSIONS, reserved_by, spent_in
from kokuban.schemas import Allotment, Budget, Opens, Settles, Usage, WorkOrder

ALLOTMENT = Allotment(steps=5, tool_calls=4, tokens=1_000, seconds=60, micros=900)
USAGE = Usage(100, 20, 1, 2, False, 30, 7)


def step(status: str, usage: Usage, begun: Usage = Usage(), allotment: Allotment = ALLOTMENT) -> Step:
    order = WorkOrder(0, 1, "go", ("patch",), allotment=allotment)
    return Step("fix", "coder", status=status, order=order, usage=usage, begun=begun)  # type: ignore[arg-type]


def test_usage_in_the_dimensions_of_a_budget() -> None:
    assert spent_in(USAGE) == {"tokens": 120, "micros": 30, "steps": 1, "tool_calls": 2, "seconds": 7}
    assert set(DIMENSIONS) == set(spent_in(USAGE)) == set(Budget.__struct_fields__)


def test_running_work_reserves_what_is_left_of_its_allotment() -> None:
    held = {"tokens": 880, "micros": 870, "steps": 4, "tool_calls": 2, "seconds": 60}
    for status in ("ordered", "claimed"):
        assert reserved_by(step(status, USAGE)) == held
        assert reserved_by(step(status, USAGE + USAGE, begun=USAGE)) == held
    for status in ("waiting", "done", "failed", "refused", "released", "revoked"):
        assert reserved_by(step(status, USAGE)) == dict.fromkeys(DIMENSIONS, 0)
    over = Usage(5_000, 0, 50, 50, micros=5_000)
    assert reserved_by(step("claimed", over)) == dict.fromkeys(DIMENSIONS, 0) | {"seconds": 60}
    assert reserved_by(step("claimed", Usage(), allotment=Allotment(micros=None)))["micros"] == 0


def test_a_granted_allotment_is_what_counts() -> None:
    one = step("claimed", USAGE)
    one.granted = Allotment(steps=9, tool_calls=4, tokens=2_000, seconds=60)
    assert (reserved_by(one)["tokens"], reserved_by(one)["steps"]) == (1_880, 8)


def test_spent_reserved_and_left_go_with_the_records() -> None:
    history = begun(budget=Budget(tokens=40_000, steps=0))
    task = history.board.tasks[history.task]

    def tokens() -> tuple[int, int, int | None]:
        line = next(line for line in spending_of(task).lines if line.dimension == "tokens")
        return line.spent, line.reserved, line.left

    assert tokens() == (0, 0, 40_000)
    history.order("fix", "coder")
    assert tokens() == (0, 32_000, 8_000)
    history.claim("fix", opens=Opens(1, "model", reserved_tokens=500))
    history.journal("fix", settles=Settles(1, Usage(300, 100, 1)))
    assert tokens() == (400, 31_600, 8_000)
    history.failed("fix")
    assert tokens() == (400, 0, 39_600)
    left = {line.dimension: line.left for line in spending_of(task).lines}
    assert (left["steps"], left["micros"]) == (0, None)
    assert not spending_of(task).estimated
