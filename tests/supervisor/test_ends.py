"""Every end reaches everyone: the dependents and the tasks below, in the same transition (invariant 8)."""

from __future__ import annotations

from typing import Any

import pytest

from core import contents
from core.contents import plan
from core.history import History
from core.world import ONE, World, ends
from kokuban.schemas import Budget, Failed, Final, Plan, PlanStep, Usage
from kokuban.supervisor import End, Order, Release, Revoke
from kokuban.supervisor.decide import IDLE_SECONDS, next_instant

CHAIN = plan(("a", "coder", ()), ("b", "coder", ("a",)), ("c", "coder", ("b",)), ("apart", "coder", ()))
FOR_GOOD = Failed("input", "no such file", retryable=False)


def at_work(dag: Plan = CHAIN, **spec: Any) -> tuple[World, History]:
    """A task whose first steps are claimed."""
    world = World()
    history = world.planned("t-1", dag, **spec)
    for _, step in list(world.board.under_way):
        world.claim("t-1", step)
    return world, history


def fails(world: World, history: History) -> None:
    history.failed("a", FOR_GOOD)


def is_cancelled(world: World, history: History) -> None:
    history.say("cancel", "enough")


def is_too_late(world: World, history: History) -> None:
    world.pass_time(3_600)


def spends_all(world: World, history: History) -> None:
    world.work("t-1", "a", ("change", contents.patch("a")), usage=Usage(60_000))
    if "apart" in history.registers:
        history.failed("apart", Failed("model", "no answer"))


def is_refused(world: World, history: History) -> None:
    world.crew = {role: contract for role, contract in world.crew.items() if role != "coder"}


def loses_workers(world: World, history: History) -> None:
    for _ in range(6):
        world.claim("t-1", "a")
        history.release("a")
        if world.step("t-1", "a").order.recoveries < 5:  # type: ignore[union-attr]
            world.settle()


WAYS = {
    "failed": fails,
    "cancelled": is_cancelled,
    "deadline": is_too_late,
    "out_of_budget": spends_all,
    "refused": is_refused,
    "dead": loses_workers,
}
SPEC: dict[str, Any] = {"deadline_seconds": 3_000, "budget": Budget(tokens=60_000)}


@pytest.mark.parametrize("state", list(WAYS))
def test_each_end_seals_what_runs_and_names_what_could_not_be_done(state: str) -> None:
    world, history = at_work(**SPEC)
    WAYS[state](world, history)
    found = world.settle()
    assert ends(world) == {"t-1": state}
    assert not world.board.under_way
    final = world.final("t-1")
    assert {"b", "c"} - set(final.blocked) <= ({"b"} if state == "out_of_budget" else set())
    assert final.usage == world.task("t-1").usage
    sealed = [command for _, command in found if isinstance(command, Revoke)]
    ending = world.task("t-1").ending
    assert (ending is not None and ending.state == state) or not sealed
    assert all(command.body.reason == final.reason for command in sealed)
    assert isinstance(found[-1][1], End)
    assert world.settle() == [], "once"


@pytest.mark.parametrize("state", list(WAYS))
def test_each_end_reaches_dependents_and_children_in_the_same_transition(state: str) -> None:
    world, history = at_work(**SPEC)
    world.submit("after", after=("t-1",))
    world.submit("after-that", after=("after",))
    world.submit("below", parent="t-1", tenant="x")
    world.submit("below-that", parent="below", tenant="x")
    world.settle()
    WAYS[state](world, history)
    world.settle()
    below = "cancelled" if state == "cancelled" else "dependency_failed"
    if state in ("refused", "out_of_budget"):  # they meet the same crew, or the same budget, themselves
        assert ends(world)["below"] in (below, state)
        assert ends(world)["below-that"] in (below, state)
    else:
        assert (ends(world)["below"], ends(world)["below-that"]) == (below, below)
    assert (ends(world)["after"], ends(world)["after-that"]) == ("dependency_failed", "dependency_failed")
    assert "t-1" in world.final("after").reason
    assert not world.board.under_way


@pytest.mark.parametrize("state", list(WAYS))
@pytest.mark.parametrize("sealed", [1, 2])
def test_the_next_leader_carries_an_end_through(state: str, sealed: int) -> None:
    """The first leader dies after sealing some; what it was about is in the seal. Then the reason goes away."""
    world, history = at_work(plan(*((f"{n}", "coder", ()) for n in ("a", "b", "c", "apart"))), **SPEC)
    WAYS[state](world, history)
    crew = world.crew
    revokes = [command for command in world.decide("t-1") if isinstance(command, Revoke)]
    if not revokes:
        pytest.skip("nothing was running")
    for command in revokes[:sealed]:
        world.carry_out("t-1", command)
    world.lead("s-2")
    world.crew = World().crew if state == "refused" else crew
    world.stream.skipped = 0.0
    world.settle()
    final = world.final("t-1")
    assert (final.state, final.reason) == (state, revokes[0].body.reason)


def test_done_reaches_who_waits_for_it() -> None:
    world = World()
    world.submit("t-1")
    world.submit("after", after=("t-1",))
    world.settle()
    assert not world.task("after").steps, "nothing of it begins before"
    assert world.finish("t-1").state == "done"
    world.settle()
    assert ("after", "plan") in world.board.under_way
    assert world.finish("after").state == "done"


def test_tasks_below_a_task_that_is_done_go_on() -> None:
    world = World()
    world.limits(roles={"planner": 2})
    world.submit("t-1")
    world.submit("below", parent="t-1")
    assert world.finish("t-1").state == "done"
    assert world.finish("below").state == "done"


# ---------------------------------------------------------------------- after


def test_who_names_itself_or_nobody_is_refused() -> None:
    world = World()
    world.submit("t-1", after=("t-1",))
    world.submit("t-2", after=("nobody",))
    world.settle()
    assert ends(world) == {"t-1": "refused", "t-2": "refused"}
    assert world.final("t-2").reason == "after: there was no task 'nobody' to wait for"


@pytest.mark.parametrize(("state", "wanted"), [("failed", "dependency_failed"), ("refused", "dependency_failed")])
def test_added_after_its_dependency_ended_otherwise(state: Any, wanted: str) -> None:
    world = World()
    world.submit("t-1").final(Final(state, "it could not"))
    world.submit("t-2", after=("t-1",))
    world.settle()
    assert ends(world)["t-2"] == wanted


def test_added_after_its_dependency_completed_it_begins_at_once() -> None:
    """E1: readiness is worked out when the task is made, too."""
    world = World()
    world.submit("t-1")
    world.finish("t-1")
    world.submit("t-2", after=("t-1",))
    world.settle()
    assert ("t-2", "plan") in world.board.under_way


def test_one_of_several_that_ends_otherwise_is_enough() -> None:
    world = World()
    world.limits(roles={"planner": 3})
    for name in ("t-1", "t-2"):
        world.submit(name)
    world.submit("t-3", after=("t-1", "t-2"))
    world.settle()
    world.of["t-2"].say("cancel")
    world.settle()
    assert ends(world) == {"t-1": "", "t-2": "cancelled", "t-3": "dependency_failed"}
    world.finish("t-1")
    assert ends(world)["t-3"] == "dependency_failed"


def test_tasks_that_wait_for_each_other_are_refused_and_not_left_to_wait() -> None:
    """E10, among tasks: a circle can only be made by naming a task that is not there yet. Nobody led meanwhile."""
    world = World()
    world.submit("t-1", after=("t-2",))
    world.submit("t-2", after=("t-1",))
    world.submit("t-3", after=("t-2",))
    world.settle()
    assert ends(world) == {"t-1": "refused", "t-2": "dependency_failed", "t-3": "dependency_failed"}


# ---------------------------------------------------------------------- parents


def test_a_parent_must_be_there_first() -> None:
    world = World()
    world.submit("t-1", parent="nobody")
    world.submit("t-2", parent="late")
    world.submit("late")
    world.settle()
    assert (ends(world)["t-1"], ends(world)["t-2"]) == ("refused", "refused")
    assert world.final("t-1").reason == "its parent, task nobody, was not on the board before it"
    assert ends(world)["late"] == ""


def test_tasks_that_are_each_others_parents_hang_nobody() -> None:
    """The fold adds up usage along the parents: a circle of them must not go round for ever."""
    world = World()
    world.limits(roles={"planner": 3})
    first = world.submit("t-1", parent="t-2")
    world.submit("t-2", parent="t-1", budget=Budget(tokens=50_000))
    world.submit("t-3", parent="t-3")
    first.order("plan", "planner")
    first.claim("plan")
    first.failed("plan", Failed("model", "no", usage=Usage(7)))
    assert world.task("t-1").tree_usage.tokens == 7
    world.settle()
    assert ends(world)["t-1"] == "refused"
    world.of["t-2"].say("cancel")
    world.settle()
    assert (ends(world)["t-2"], ends(world)["t-3"]) == ("cancelled", "")


def test_a_child_of_a_task_that_is_over_is_refused() -> None:
    world = World()
    world.submit("t-1").final()
    world.submit("t-2", parent="t-1")
    world.settle()
    assert ends(world)["t-2"] == "refused"
    assert "had ended before" in world.final("t-2").reason


def test_a_child_that_was_submitted_while_its_parent_was_being_cancelled_is_cancelled() -> None:
    """E6 (a): the cancel comes before the child's first record."""
    world, history = at_work()
    history.say("cancel", "enough")
    world.submit("below", parent="t-1")
    world.settle()
    assert ends(world) == {"t-1": "cancelled", "below": "cancelled"}
    assert world.final("below").reason == "cancelled with task t-1 above it: enough"
    assert not world.task("below").steps


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_reaches_what_is_ordered_and_what_is_claimed_below(claimed: bool) -> None:
    """E6 (c, d): a queued child, and one at work."""
    world = World()
    world.limits(roles={"planner": 3})
    root = world.submit("root")
    for name, parent in (("mid", "root"), ("new", "mid")):
        world.submit(name, parent=parent)
    world.settle()
    if claimed:
        for name in ("root", "mid", "new"):
            world.claim(name, "plan")
    root.say("cancel", "enough")
    root.say("cancel", "again")
    world.settle()
    assert set(ends(world).values()) == {"cancelled"}
    assert world.final("root").reason == "cancelled: enough"
    for name in ends(world):
        ending = world.task(name).ending
        assert ending is not None
        assert (ending.state, ending.reason) == ("cancelled", world.final(name).reason)


# ---------------------------------------------------------------------- other ends from outside


def test_intake_that_was_closed_when_it_came_refuses_a_task_and_only_then() -> None:
    world = World()
    world.submit("before")
    world.intake(open=False)
    world.submit("meanwhile")
    world.intake(open=True)
    world.submit("later")
    world.settle()
    assert (ends(world)["before"], ends(world)["meanwhile"], ends(world)["later"]) == ("", "refused", "")
    assert "high-water mark" in world.final("meanwhile").reason


def test_a_task_where_nothing_happens_is_dead_in_the_end() -> None:
    """E7: an age bound on every state that is no end: here, that no worker of the role ever comes."""
    world = World()
    history = world.submit("t-1")
    world.settle()
    world.pass_time(IDLE_SECONDS - 5)
    assert world.settle() == []
    history.put("kb.task.t-1.journal.planner.plan", b"junk")  # no sign of life
    world.pass_time(10)
    world.settle()
    assert (world.final("t-1").state, world.final("t-1").reason) == ("dead", "nothing has happened for 30 days")


def test_a_deadline_counts_from_when_the_task_was_stored_also_while_it_waits_for_others() -> None:
    world = World()
    world.submit("t-1")
    world.submit("t-2", after=("t-1",), deadline_seconds=60)
    assert next_instant(world.task("t-1")) is None
    instant = next_instant(world.task("t-2"))
    assert instant == world.task("t-2").time + 60
    world.settle()
    world.pass_time(instant - world.stream.now - 1)
    world.settle()
    assert ends(world)["t-2"] == ""
    world.pass_time(1)
    world.settle()
    assert world.final("t-2").state == "deadline"
    assert ends(world)["t-1"] == ""


def test_a_drop_is_the_only_word_after_the_end() -> None:
    world, history = at_work()
    loses_workers(world, history)
    world.settle()
    assert world.final("t-1").state == "dead"
    assert history.say("cancel").ignored == "after the end"
    assert history.say("inject", "it rained").ignored == "after the end"
    assert not world.task("t-1").dropped
    assert not history.say("drop").ignored
    assert world.task("t-1").dropped


# ---------------------------------------------------------------------- optional steps


def optional(second_needs: tuple[str, ...] = ("try",)) -> Plan:
    return Plan((PlanStep("try", "coder", "try", (), True), PlanStep("write", "coder", "go", second_needs)))


@pytest.mark.parametrize("how", ["failed", "for good", "deadline", "lost", "judged"])
def test_an_optional_step_may_fail_in_any_way_and_the_others_go_on(how: str) -> None:
    world = World()
    history = world.planned("t-1", optional(), attempts=2)
    for _ in range(20):
        world.settle()
        if ("t-1", "try") not in world.board.under_way:
            break
        world.claim("t-1", "try")
        if how == "judged":
            world.work("t-1", "try", ("change", contents.patch(f"{history.last}")))
            world.settle()
            world.verify("t-1", "verify-try", passed=False)
        elif how in ("failed", "for good"):
            history.failed("try", Failed("model", "no answer", retryable=how == "failed"))
        elif how == "deadline":
            world.pass_time(world.step("t-1", "try").allotment.seconds + 31)
        else:
            history.release("try")
    assert world.task("t-1").final is None
    order = world.step("t-1", "write").order
    assert order is not None
    assert order.inputs == ()
    final = world.finish("t-1")
    assert final.state == "done"
    assert final.deliverable is not None


def test_an_optional_step_that_works_is_part_of_the_result() -> None:
    world = World()
    world.planned("t-1", optional(()))
    final = world.finish("t-1")
    assert final.state == "done"
    assert {a.ref.step for a in world.task("t-1").artifacts.values() if a.ref.kind == "patch"} == {"try", "write"}


def test_a_step_that_is_not_optional_ends_the_task_and_what_follows_it_never_starts() -> None:
    world, history = at_work()
    history.failed("a", FOR_GOOD)
    found = world.settle()
    assert {c.step for _, c in found if isinstance(c, Order | Release)} == set()
    assert world.final("t-1").reason == "step a failed: no such file"


def test_a_plan_of_one_step_and_nothing_else_is_done() -> None:
    world = World()
    world.planned("t-1", ONE)
    assert world.finish("t-1").state == "done"
