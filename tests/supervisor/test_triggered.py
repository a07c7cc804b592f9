"""Roles that an artifact sets off and that give no verdict: their steps have names of their own, and are waited for."""

from __future__ import annotations

import pytest

from core import contents, history
from core.contents import plan
from core.world import World, ends
from kokuban.blackboard.core import problems_of_plan
from kokuban.schemas import Plan
from kokuban.schemas.contracts import builtin_crew, check_crew, parse_contract
from kokuban.supervisor import Release
from kokuban.supervisor._wants import triggered

EXPLAINER = parse_contract(
    'role = "explainer"\nsummary = "Explains it."\nwhen = "triggered"\ntriggers = ["patch"]\nproduces = ["finding"]\n',
    "explainer",
)
CREW = check_crew([*builtin_crew().values(), EXPLAINER])
LONG = "a-step-with-a-name-that-is-just-as-long-as-a-name-may-be"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the histories of these tests take an order of this role to be for."""
    monkeypatch.setitem(history.PRODUCES, EXPLAINER.role, EXPLAINER.produces)


def at_work(dag: Plan) -> World:
    """A task whose patches are made and judged, and not explained yet."""
    world = World(crew=CREW)
    world.planned("t-1", dag)
    for _ in range(10):
        world.settle()
        for step in [step for step in world.task("t-1").steps.values() if step.running and step.role != "explainer"]:
            world.honest("t-1", step)
    return world


@pytest.mark.parametrize("names", [("write", "more"), (LONG + "1", LONG + "2")], ids=["short", "long"])
def test_each_artifact_has_a_step_that_it_triggers_and_the_end_waits_for_all(names: tuple[str, str]) -> None:
    dag = plan(*((name, "coder", ()) for name in names))
    assert problems_of_plan(dag, {"coder"}) == ()
    world = at_work(dag)
    running = {step: world.step("t-1", step).order for _, step in world.board.under_way}
    assert {order.goal for order in running.values() if order} == {f"Explains it. (after {name})" for name in names}
    assert set(running) == {triggered(EXPLAINER, name) for name in names}
    assert "integrate" not in world.task("t-1").steps
    for step in running:
        world.work("t-1", step, ("why", contents.finding(step)))
    assert world.finish("t-1").state == "done"
    assert all(world.step("t-1", step).status == "done" for step in running)


def test_names_of_triggered_steps_are_short_and_stay_apart() -> None:
    assert triggered(CREW["verifier"], "write") == "verify-write"
    assert triggered(EXPLAINER, "write") == "on-explainer-write"
    fits = "s" * (64 - len("on-explainer-"))
    assert triggered(EXPLAINER, fits) == f"on-explainer-{fits}"
    names = [triggered(EXPLAINER, f"{fits}{n}") for n in range(9)]
    assert len(set(names)) == 9
    assert {len(name) for name in names} == {64}
    assert all(name.startswith("on-explainer-sss") for name in names)


def test_a_triggered_step_goes_with_the_planned_one() -> None:
    world = at_work(plan(("write", "coder", ())))
    world.of["t-1"].say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", plan(("other", "coder", ()))))
    found = world.settle()
    assert [(c.step, c.body.why) for _, c in found if isinstance(c, Release)] == [("on-explainer-write", "replaced")]
    assert ends(world) == {"t-1": ""}
