"""Cases of orchestration that no other test holds."""

from __future__ import annotations

import pytest

from core import contents
from core.contents import plan
from core.world import World, ends
from kokuban.schemas import Budget, Failed, Opens, Plan, PlanStep, Usage
from kokuban.supervisor import Revoke

WIDE = plan(("one", "coder", ()), ("two", "coder", ()), ("three", "coder", ()))


# ---------------------------------------------------------------------- E8: one raises, siblings spend


def branches(dag: Plan = WIDE) -> World:
    """Three branches under way: the second is done, the first fails, the third takes long and has a call open."""
    world = World()
    world.limits(roles={"coder": 3})
    world.planned("t-1", dag)
    for name in ("one", "two", "three"):
        world.claim("t-1", name)
    world.work("t-1", "two", ("change", contents.patch("two")), usage=Usage(20))
    world.of["t-1"].journal("three", opens=Opens(1, "model", reserved_tokens=900))
    return world


def test_fail_fast_stops_the_siblings_and_counts_what_they_had_begun() -> None:
    world = branches()
    world.of["t-1"].failed("one", Failed("input", "no such file", retryable=False, usage=Usage(7)))
    found = world.settle()
    assert {c.step for _, c in found if isinstance(c, Revoke)} == {"three"}
    final = world.final("t-1")
    assert final.usage.tokens == 20 + 7 + 900
    assert not world.of["t-1"].done("three", ("change", contents.patch("three"))).admitted


def test_results_of_siblings_are_kept_and_an_absent_one_is_no_pass() -> None:
    """Collect: an optional branch that fails leaves the others' results; what it would have given is not there."""
    dag = Plan((PlanStep("one", "coder", "do one", (), True), *WIDE.steps[1:]))
    world = branches(dag)
    world.of["t-1"].failed("one", Failed("input", "no such file", retryable=False))
    world.work("t-1", "three", ("change", contents.patch("three")))
    final = world.finish("t-1")
    assert final.state == "done"
    order = world.step("t-1", "integrate").order
    assert order is not None
    assert [ref.step for ref in order.inputs] == ["two", "three"]


def test_a_branch_without_verdict_keeps_the_task_from_being_done() -> None:
    world = branches()
    world.work("t-1", "one", ("change", contents.patch("one")))
    world.work("t-1", "three", ("change", contents.patch("three")))
    world.settle()
    world.verify("t-1", "verify-one")
    world.settle()
    assert "integrate" not in world.task("t-1").steps
    assert ends(world) == {"t-1": ""}


# ---------------------------------------------------------------------- E2: siblings of check, then spend


@pytest.mark.parametrize("children", [2, 5, 10])
def test_children_that_are_submitted_at_once_share_what_their_parent_has_left(children: int) -> None:
    """9.90 of 10.00 are spent; each child would take 1.00."""
    world = World()
    world.limits(roles={"planner": 20})
    world.submit("root", budget=Budget(micros=10_000_000))
    world.settle()
    world.claim("root", "plan")
    world.of["root"].failed("plan", Failed("model", "no answer", usage=Usage(1, micros=9_900_000)))
    for n in range(children):
        world.submit(f"child-{n}", parent="root", budget=Budget(micros=1_000_000))
    world.settle()
    given = [step.allotment.micros or 0 for step in world.board.under_way.values()]
    assert sum(given) <= 100_000
    assert all(given)
