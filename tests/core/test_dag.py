"""A plan is a DAG of known roles; what is wrong with it is named by ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contents import plan
from kokuban.blackboard.core import order_of, problems_of_plan
from kokuban.schemas import MAX_STEPS, Plan, PlanStep

ROLES = {"coder", "researcher"}


def chain(length: int, *, closed: bool = False) -> Plan:
    last = f"s{length - 1}"
    first = PlanStep("s0", "coder", "go", (last,) if closed else ())
    return Plan((first, *(PlanStep(f"s{n}", "coder", "go", (f"s{n - 1}",)) for n in range(1, length))))


@pytest.mark.parametrize(
    "good",
    [
        plan(("a", "coder", ())),
        plan(("b", "coder", ("a",)), ("a", "researcher", ())),
        plan(("a", "coder", ()), ("b", "coder", ()), ("c", "coder", ("a", "b")), ("d", "coder", ("a", "c"))),
        plan(("a", "coder", ()), ("b", "coder", ("a", "a"))),
        plan(("x" * 57, "coder", ())),
        plan(("planning", "coder", ()), ("integrate-2", "coder", ()), ("verify", "coder", ())),
        chain(MAX_STEPS),
    ],
)
def test_a_dag_of_known_roles_can_run(good: Plan) -> None:
    assert problems_of_plan(good, ROLES) == ()
    assert sorted(order_of(good)) == sorted(step.id for step in good.steps)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (plan(("a", "coder", ("a",))), ["needs: ", "circle: a"]),
        (
            plan(("a", "coder", ("c",)), ("b", "coder", ("a",)), ("c", "coder", ("b",)), ("d", "coder", ())),
            ["circle: a, b, c"],
        ),
        (
            plan(("in", "coder", ()), ("a", "coder", ("in", "b")), ("b", "coder", ("a",)), ("out", "coder", ("b",))),
            ["circle: a, b"],
        ),
        (plan(("a", "coder", ()), ("a", "researcher", ())), ["id: used more than once: a"]),
        (plan(("a", "coder", ("z", "y"))), ["needs: step 'a' needs z, y"]),
        (plan(("a", "cook", ())), ["role: step 'a' names 'cook'; use one of coder, researcher"]),
        (plan(("plan", "coder", ())), ["id: 'plan' cannot be used"]),
        (plan(("integrate", "coder", ())), ["id: 'integrate' cannot be used"]),
        (plan(("verify-a", "coder", ())), ["id: 'verify-a' cannot be used"]),
        (plan(("x" * 58, "coder", ())), ["cannot be used", "at most 57 characters"]),
        (plan(("a", "cook", ("b",)), ("a", "coder", ())), ["more than once: a", "'cook'", "needs b"]),
    ],
)
def test_what_cannot_run_is_named(bad: Plan, named: list[str]) -> None:
    text = "; ".join(problems_of_plan(bad, ROLES))
    assert [part for part in named if part not in text] == []
    assert all(part not in text for part in ("circle: d", "circle: in", ", out"))


@pytest.mark.parametrize("size", [MAX_STEPS + 1, 5_000])
def test_a_plan_of_thousands_is_too_large_and_needs_no_recursion(size: int) -> None:
    for closed in (False, True):
        found = problems_of_plan(chain(size, closed=closed), ROLES)
        assert found[0] == f"steps: {size} steps are too many; at most {MAX_STEPS}"
        assert sum(map(len, found)) < 5_000


def test_a_long_circle_is_found() -> None:
    (reason,) = problems_of_plan(chain(MAX_STEPS, closed=True), ROLES)
    assert "s0, s1" in reason


def test_order_of_leaves_out_what_can_never_start() -> None:
    assert order_of(plan(("a", "coder", ()), ("b", "coder", ("b",)), ("c", "coder", ("a",)))) == ("a", "c")


ids = st.sampled_from("abcdefg")
steps = st.builds(lambda i, n: PlanStep(i, "coder", "go", tuple(n)), ids, st.lists(ids, max_size=3))


@given(st.lists(steps, min_size=1, max_size=7).map(lambda s: Plan(tuple(s))))
def test_a_plan_without_problems_is_one_whose_every_step_can_come_after_its_needs(any_plan: Plan) -> None:
    found = problems_of_plan(any_plan, ROLES)
    names = [step.id for step in any_plan.steps]
    order = order_of(any_plan)
    runs = len(set(names)) == len(names) and set(order) == set(names)
    assert (found == ()) is runs
    for step in any_plan.steps:
        if step.id in order and len(set(names)) == len(names):
            assert {order.index(need) < order.index(step.id) for need in step.needs} <= {True}
