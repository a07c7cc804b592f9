"""Gates on artifacts: what people must approve before it counts, and what becomes of a denial."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.history import History
from core.world import World, ends
from kokuban.schemas import GateRequest, Revision, subjects
from kokuban.supervisor import Ask, Order
from kokuban.supervisor._gates import approval_of


def made(kind: str = "patch", **spec: Any) -> tuple[World, History, str]:
    """A task with a patch that people are asked about."""
    world = World()
    history = world.planned("t-1", plan(("write", "coder", ()), ("next", "coder", ("write",))), approve=(kind,), **spec)
    world.work("t-1", "write", ("change", contents.patch("one")))
    world.settle()
    world.verify("t-1", "verify-write")
    world.settle()
    (name,) = world.task("t-1").gates
    return world, history, name


def test_what_the_task_wants_approved_is_asked_about_and_nothing_is_built_on_it_before() -> None:
    world, history, name = made(votes=2, approval_seconds=60)
    ref = world.step("t-1", "write").results[0].ref
    at = world.task("t-1").gates[name]
    assert name == approval_of(ref)
    assert (at.gate.subject, at.gate.need, at.gate.expires_seconds, at.role) == (ref, 2, 60, "coder")
    assert ref.digest in at.gate.asks
    assert not world.board.under_way
    history.vote(name, person="ann")
    assert world.settle() == []
    history.vote(name, person="bob")
    assert [c.step for _, c in world.settle() if isinstance(c, Order)] == ["next"]


def test_what_is_denied_is_made_again_with_the_reason_and_asked_about_again() -> None:
    world, history, name = made(attempts=2)
    history.vote(name, "deny", "too long")
    world.settle()
    order = world.step("t-1", "write").order
    assert order is not None
    (feedback,) = order.feedback
    assert (feedback.reason, feedback.text, order.tries) == ("denied", "denied by ann: too long", 1)
    world.work("t-1", "write", ("change", contents.patch("two")))
    world.settle()
    world.verify("t-1", "verify-write")
    world.settle()
    again = next(gate for gate in world.task("t-1").gates if gate != name)
    history.vote(again, "deny")
    world.settle()
    assert ends(world) == {"t-1": "failed"}
    assert "denied by ann: no reason was given" in world.final("t-1").reason


def test_the_same_content_again_stays_denied() -> None:
    world, history, name = made(attempts=2)
    history.vote(name, "deny")
    world.settle()
    world.work("t-1", "write", ("change", contents.patch("one")))
    world.settle()
    assert ends(world) == {"t-1": "failed"}
    assert list(world.task("t-1").gates) == [name]


def test_what_nobody_decides_about_in_time_ends_the_task_and_is_called_no_denial() -> None:
    world, _, _ = made(approval_seconds=60)
    world.pass_time(61)
    world.settle()
    assert world.final("t-1").state == "failed"
    assert world.final("t-1").reason == "nobody decided on the patch of step write in time (no denial)"


def test_a_plan_can_want_approval_and_nothing_of_it_runs_before() -> None:
    world = World()
    history = world.planned("t-1", approve=("plan",))
    (name,) = world.task("t-1").gates
    assert not world.board.under_way
    history.vote(name, "deny", "one step is not enough")
    world.settle()
    order = world.step("t-1", "plan").order
    assert order is not None
    assert order.feedback[0].text == "denied by ann: one step is not enough"
    world.work("t-1", "plan", ("plan", plan(("a", "coder", ()), ("b", "coder", ()))))
    world.settle()
    history.vote(next(gate for gate in world.task("t-1").gates if gate != name))
    world.settle()
    assert {"a", "b"} <= {step for _, step in world.board.under_way}


@pytest.mark.parametrize("kind", ["deliverable", "verdict"])
def test_the_result_and_the_judgements_can_want_approval(kind: str) -> None:
    world = World()
    world.planned("t-1", approve=(kind,))
    asked: set[str] = set()
    for _ in range(20):
        world.settle()
        task = world.task("t-1")
        if task.final is not None:
            break
        for step in [step for step in task.steps.values() if step.running]:
            world.honest("t-1", step)
        for name in task.gates.keys() - asked:
            asked.add(name)
            world.of["t-1"].vote(name)
    assert world.final("t-1").state == "done"
    subjects_ = [gate.gate.subject for gate in world.task("t-1").gates.values()]
    assert {ref.kind for ref in subjects_ if ref} == {kind}
    assert len(subjects_) == (1 if kind == "deliverable" else 2)


def test_a_request_is_the_leaders_is_about_an_artifact_and_is_made_once() -> None:
    world, history, name = made()
    at = world.task("t-1").gates[name]
    ask = Ask("coder", at.gate)
    assert history.decided(ask).ignored == "the gate is there"
    subject = subjects.gate_request("t-1", "coder", name)
    body = GateRequest(at.gate)
    for wrong, why in (
        (replace(body, gate=replace(at.gate, id="other")), "no request about an artifact"),
        (replace(body, gate=replace(at.gate, about="question")), "no request about an artifact"),
        (replace(body, gate=replace(at.gate, subject=None)), "no request about an artifact"),
    ):
        assert history.write(subject, wrong, "gate.request", role="coder", fence=history.fence).ignored == why
    assert "is not the leader's" in history.write(subject, body, "gate.request", role="coder", fence=1).ignored


def test_a_revision_while_people_are_asked_about_a_plan_keeps_the_first_plans_steps_running() -> None:
    """The plan in force stays in force until the one made again is there."""
    world = World()
    history = world.planned("t-1")
    history.say("inject", "it rained")
    world.settle()
    order = world.step("t-1", "plan").order
    assert order is not None
    assert isinstance(order.revision, Revision)
    assert ("t-1", "write") in world.board.under_way
