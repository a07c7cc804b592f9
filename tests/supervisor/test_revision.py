"""The plan made again: because of what people added, or because a step has used up its attempts (bounded)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.history import History
from core.test_dag import chain
from core.world import World, ends
from kokuban.blackboard.core import problems_of_plan
from kokuban.schemas import Failed, Opens, Plan, PlanStep
from kokuban.supervisor import Order, Release
from kokuban.supervisor._wants import effective_plan

TWO = plan(("a", "coder", ()), ("b", "coder", ("a",)))
FOR_GOOD = Failed("input", "no such file", retryable=False)


def at_work(dag: Plan = TWO, **spec: Any) -> tuple[World, History]:
    """Step `a` is done and judged, `b` is claimed."""
    world = World()
    history = world.planned("t-1", dag, **spec)
    world.work("t-1", "a", ("change", contents.patch("a")))
    world.settle()
    world.verify("t-1", "verify-a")
    world.settle()
    for _, step in list(world.board.under_way):
        world.claim("t-1", step)
    return world, history


def order(world: World, step: str) -> Any:
    found = world.step("t-1", step).order
    assert found is not None
    return found


def orders(world: World, step: str) -> int:
    return sum(isinstance(c, Order) and c.step == step for _, c in world.commands)


# ---------------------------------------------------------------------- facts


def test_a_fact_has_the_planner_look_again_and_reaches_every_later_order() -> None:
    world, history = at_work()
    before = world.step("t-1", "plan").results[0].ref
    history.say("inject", "it rained")
    world.settle()
    again = order(world, "plan")
    assert (again.facts, again.revision.number, again.revision.plan) == (("it rained",), 0, before)
    assert again.revision.done == ("a",)
    assert again.revision.reason.startswith("People have added facts")
    assert ("t-1", "b") in world.board.under_way, "what runs goes on meanwhile"
    world.work("t-1", "plan", ("plan", TWO))
    world.settle()
    assert world.settle() == [], "one look is enough"
    world.work("t-1", "b", ("change", contents.patch("b", onto=[])))
    world.settle()
    assert order(world, "verify-b").facts == ("it rained",)
    assert world.finish("t-1").state == "done"
    assert (orders(world, "a"), orders(world, "b")) == (1, 1), "kept as they are, they keep their work"


def test_a_fact_that_comes_while_the_planner_looks_has_it_look_once_more() -> None:
    world, history = at_work()
    history.say("inject", "one")
    world.settle()
    world.claim("t-1", "plan")
    history.say("inject", "two")
    world.work("t-1", "plan", ("plan", TWO))
    world.settle()
    assert order(world, "plan").facts == ("one", "two")
    assert world.step("t-1", "plan").status == "ordered"


def test_a_fact_before_the_first_plan_is_in_the_first_order_or_has_it_made_again() -> None:
    world = World()
    history = world.submit("t-1")
    history.say("inject", "early")
    world.settle()
    assert (order(world, "plan").facts, order(world, "plan").revision) == (("early",), None)


def test_facts_do_not_count_against_the_replans() -> None:
    world, history = at_work(replans=1)
    for n in range(3):
        history.say("inject", f"fact {n}")
        world.settle()
        world.work("t-1", "plan", ("plan", TWO))
        world.settle()
    world.claim("t-1", "b")
    history.failed("b", FOR_GOOD)
    world.settle()
    assert order(world, "plan").revision.number == 1


def test_the_planner_may_lose_its_worker_or_fail_while_it_looks_again() -> None:
    world, history = at_work()
    history.say("inject", "it rained")
    world.settle()
    world.claim("t-1", "plan")
    history.release("plan")
    world.settle()
    assert (order(world, "plan").recoveries, order(world, "plan").revision.number) == (1, 0)
    world.claim("t-1", "plan")
    history.failed("plan", Failed("model", "no answer"))
    world.settle()
    assert (order(world, "plan").tries, order(world, "plan").revision.done) == (1, ("a",))


# ---------------------------------------------------------------------- used up


def test_a_step_that_used_up_its_attempts_has_the_plan_made_again_while_replans_are_left() -> None:
    world, history = at_work(replans=2)
    for number in (1, 2):
        world.claim("t-1", "b")
        history.failed("b", FOR_GOOD)
        world.settle()
        again = order(world, "plan")
        assert (again.revision.number, again.revision.reason) == (number, "step b failed: no such file")
        changed = Plan((TWO.steps[0], PlanStep("b", "coder", f"another way {number}", ("a",))))
        world.work("t-1", "plan", ("plan", changed))
        world.settle()
        assert (order(world, "b").goal, order(world, "b").tries) == (f"another way {number}", 0)
        assert order(world, "b").feedback == ()
    world.claim("t-1", "b")
    history.failed("b", FOR_GOOD)
    world.settle()
    assert world.final("t-1").state == "failed"
    assert (orders(world, "plan"), orders(world, "a")) == (3, 1)


def test_a_plan_that_changes_nothing_helps_nothing_and_is_bounded() -> None:
    world, history = at_work(replans=2)
    history.failed("b", FOR_GOOD)
    for _ in range(10):
        world.settle()
        if world.task("t-1").final is not None:
            break
        world.work("t-1", "plan", ("plan", TWO))
    assert ends(world) == {"t-1": "failed"}
    assert (orders(world, "plan"), orders(world, "b")) == (3, 1)


def test_without_replans_the_first_step_that_is_used_up_ends_the_task() -> None:
    world, history = at_work()
    history.failed("b", FOR_GOOD)
    world.settle()
    assert (ends(world), orders(world, "plan")) == ({"t-1": "failed"}, 1)


def test_the_planner_itself_is_not_planned_again() -> None:
    world = World()
    history = world.submit("t-1", replans=5)
    world.settle()
    world.claim("t-1", "plan")
    history.failed("plan", FOR_GOOD)
    world.settle()
    assert world.final("t-1").reason == "step plan failed: no such file"


def test_what_cannot_be_mended_otherwise_can_be_planned_otherwise() -> None:
    """Verdicts that never pass use a step up, too."""
    world, _history = at_work(plan(("a", "coder", ())), replans=1, attempts=1)
    world.settle()
    integrate = order(world, "integrate")
    world.work("t-1", "integrate", ("result", contents.deliverable(integrate.inputs)))
    world.settle()
    world.verify("t-1", "verify-integrate", passed=False)
    world.settle()
    assert order(world, "plan").revision.number == 1
    assert order(world, "plan").revision.done == ("a",)


# ---------------------------------------------------------------------- what is kept, what is redone


def revised(new: Plan, dag: Plan = TWO) -> tuple[World, History]:
    """At work, then a fact and this plan."""
    world, history = at_work(dag)
    history.say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", new))
    world.settle()
    return world, history


def test_a_running_step_that_the_new_plan_is_without_is_released() -> None:
    world, _ = revised(plan(("a", "coder", ()), ("c", "coder", ("a",))))
    (release,) = [c for _, c in world.commands if isinstance(c, Release)]
    assert (release.step, release.body.why) == ("b", "replaced")
    assert {step for _, step in world.board.under_way} == {"c"}
    assert world.finish("t-1").state == "done"
    assert orders(world, "b") == 1


def test_a_step_that_was_taken_out_and_comes_back_begins_anew() -> None:
    world, history = revised(plan(("a", "coder", ()), ("c", "coder", ("a",))))
    history.say("inject", "it stopped")
    world.settle()
    world.work("t-1", "plan", ("plan", TWO))
    world.settle()
    again = order(world, "b")
    assert (again.tries, again.recoveries, again.resumes) == (0, 0, 0)
    assert world.finish("t-1").state == "done"


def test_other_work_is_not_begun_where_a_lost_worker_may_have_had_an_effect() -> None:
    """Only the same work, taken up again, would find the call in its journal; the plan has made it another."""
    world, history = at_work(replans=1)
    history.journal("b", opens=Opens(1, "tool", "mail", key="k", effect="other"))
    history.say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", Plan((TWO.steps[0], replace(TWO.steps[1], goal="otherwise")))))
    history.release("b", "silent")
    world.settle()
    assert world.final("t-1").state == "failed"
    assert world.final("t-1").reason == "in doubt: call 1 (mail) of step b may have had its effect"
    assert (world.step("t-1", "b").attempt, world.step("t-1", "plan").attempt) == (1, 2)


def test_a_done_step_with_another_goal_is_done_again_and_what_follows_it_too() -> None:
    world, _history = revised(Plan((replace(TWO.steps[0], goal="otherwise"), TWO.steps[1])))
    assert (orders(world, "a"), order(world, "a").goal) == (2, "otherwise")
    world.work("t-1", "a", ("change", contents.patch("otherwise")))
    world.settle()
    world.verify("t-1", "verify-a")
    world.settle()
    world.work("t-1", "b", ("change", contents.patch("b")))  # it was running all the while, on the old patch
    world.settle()
    assert orders(world, "b") == 2
    assert world.finish("t-1").state == "done"


def test_a_done_step_with_other_needs_is_done_again_on_them() -> None:
    dag = plan(("a", "coder", ()), ("b", "coder", ()))
    world = World()
    history = world.planned("t-1", dag)
    for step in "ab":
        world.settle()
        world.work("t-1", step, ("change", contents.patch(step)))
    world.settle()
    history.say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", TWO))
    world.settle()
    world.verify("t-1", "verify-a")
    world.settle()
    assert [ref.step for ref in order(world, "b").inputs] == ["a"]


def test_an_id_that_belonged_to_another_role_is_refused_with_words() -> None:
    world, history = at_work()
    history.say("inject", "it rained")
    world.settle()
    world.claim("t-1", "plan")
    applied = history.done("plan", ("plan", plan(("a", "coder", ()), ("b", "researcher", ("a",)))))
    assert "id: 'b' was a step of 'coder'; a step of another role needs a new id" in " ".join(applied.refused)
    world.settle()
    assert "was a step of 'coder'" in order(world, "plan").feedback[-1].text
    assert order(world, "plan").revision.plan is not None, "the plan in force is still named"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (plan(("a", "coder", ("b",)), ("b", "coder", ("a",))), "circle: a, b"),
        (plan(("a", "coder", ("a",))), "circle: a"),
        (plan(("a", "coder", ()), ("a", "coder", ())), "used more than once: a"),
        (plan(("a", "coder", ("gone",))), "needs gone, which no step is called"),
    ],
)
def test_a_circle_made_by_a_later_edit_goes_back_to_the_planner_and_nothing_is_touched(bad: Plan, words: str) -> None:
    """E10: the plan in force, what is done and what runs stay as they are until a good plan comes; bounded."""
    world, history = at_work()
    before = world.task("t-1").plan
    history.say("inject", "it rained")
    for tries in range(3):
        world.settle()
        assert order(world, "plan").tries == tries
        world.claim("t-1", "plan")
        assert words in " ".join(history.done("plan", ("plan", bad)).refused)
        assert world.task("t-1").plan == before
        assert ("t-1", "b") in world.board.under_way
    world.settle()
    assert world.final("t-1").state == "refused"
    assert words in world.final("t-1").reason


def test_a_plan_of_five_thousand_steps_is_refused_in_words_and_at_once() -> None:
    found = problems_of_plan(chain(5_000), {"coder"})
    assert found == ("steps: 5000 steps are too many; at most 64",)
    world = World()
    history = world.submit("t-1")
    world.settle()
    world.claim("t-1", "plan")
    applied = history.done("plan", ("plan", chain(5_000)))
    assert applied.refused
    world.settle()
    assert len(order(world, "plan").feedback[0].text) < 7_000


# ---------------------------------------------------------------------- needs that later orders added


def conflicted() -> tuple[World, History]:
    """`a` and `b` did not fit together: `b` was made again on top of `a`."""
    world = World()
    history = world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())))
    for step in "ab":
        world.settle()
        world.work("t-1", step, ("change", contents.patch(step)))
    world.settle()
    for step in "ab":
        world.settle()
        world.verify("t-1", f"verify-{step}")
    world.settle()
    world.claim("t-1", "integrate")
    history.failed("integrate", Failed("conflict", "both change a.txt", conflict=("a", "b")))
    world.settle()
    assert order(world, "b").needs == ("a",)
    return world, history


def replanned(world: World, history: History, new: Plan) -> None:
    history.say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", new))
    world.settle()


def test_an_added_need_stays_when_the_new_plan_keeps_both_steps() -> None:
    world, history = conflicted()
    replanned(world, history, plan(("a", "coder", ()), ("b", "coder", ())))
    kept = effective_plan(world.task("t-1"))
    assert kept is not None
    assert [step.needs for step in kept.steps] == [(), ("a",)]
    assert world.finish("t-1").state == "done"


@pytest.mark.parametrize(
    "new",
    [
        plan(("b", "coder", ())),
        plan(("a", "coder", ("b",)), ("b", "coder", ())),
        plan(("a", "coder", ("c",)), ("b", "coder", ()), ("c", "coder", ("b",))),
    ],
    ids=["without", "turned round", "round a corner"],
)
def test_an_added_need_that_the_new_plan_cannot_have_is_dropped(new: Plan) -> None:
    """E10: with it, the plan would have a step that waits for nobody, or a circle; the task would never end."""
    world, history = conflicted()
    replanned(world, history, new)
    assert world.finish("t-1").state == "done"
