"""People's word: what it takes to decide, what it is bound to, and how it reaches the work that waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.history import History
from core.world import ONE, World, ends
from kokuban.schemas import (
    Decided,
    Decision,
    Gate,
    Opens,
    Settles,
    Usage,
    Vote,
    digest,
    subjects,
)
from kokuban.supervisor import Decide, Order
from kokuban.supervisor.decide import next_instant


def gate(name: str = "write-1-2", **fields: Any) -> Gate:
    known = {"tool": "send", "arguments": Raw(b'{"to":"ann"}'), "call": 2, "key": "k-2"}
    return Gate(name, "call", "May it send this?", **{**known, **fields})


def waiting(asked: Gate | None = None, **spec: Any) -> tuple[World, History, Gate]:
    """A task whose step `write` has made one call and waits for a person before the second."""
    world, asked = World(), asked or gate()
    history = world.planned("t-1", **spec)
    world.claim("t-1", "write")
    history.journal("write", opens=Opens(1, "model", reserved_tokens=50))
    assert not history.wait("write", asked, settles=Settles(1, Usage(30, 5, 1))).ignored
    return world, history, asked


def outcome(world: World, name: str) -> str:
    decision = world.task("t-1").gates[name].decision
    return decision.outcome if decision else ""


# ---------------------------------------------------------------------- waiting


def test_waiting_holds_no_slot_no_time_and_no_reservation() -> None:
    world, _, asked = waiting()
    step = world.step("t-1", "write")
    assert (step.status, step.gate, step.running, step.opened) == ("waiting", asked.id, False, None)
    assert (world.board.running["coder"], world.board.under_way) == (0, {})
    seconds = step.usage.seconds
    world.pass_time(90_000)
    assert world.settle() == [], "nothing is due, whatever the clock says"
    assert step.usage == Usage(30, 5, 1, seconds=seconds)
    assert not world.of["t-1"].done("write", ("p", contents.patch())).admitted, "who waits owns nothing"


def test_another_step_gets_the_slot_that_a_waiting_one_left() -> None:
    world = World()
    world.limits(roles={"coder": 1})
    world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())))
    world.claim("t-1", "a")
    world.of["t-1"].wait("a", gate("a-1-1", call=1))
    assert [c.step for _, c in world.settle() if isinstance(c, Order)] == ["b"]


# ---------------------------------------------------------------------- votes


@pytest.mark.parametrize("need", [1, 2, 3])
def test_as_many_must_approve_as_the_gate_asks_for(need: int) -> None:
    world, history, asked = waiting(gate(need=need))
    for n in range(need):
        assert (world.settle(), outcome(world, asked.id)) == ([], "")
        history.vote(asked.id, person=f"p-{n}", text="" if n else "fine")
    bound, people = world.task("t-1").gates[asked.id].bound, tuple(f"p-{n}" for n in range(need))
    assert world.round()[0][1] == Decide("coder", Decision(asked.id, "approved", bound, people, "fine"))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_one_denial_denies_whatever_the_others_say(before: int) -> None:
    world, history, asked = waiting(gate(need=3))
    for n in range(before):
        history.vote(asked.id, person=f"p-{n}")
    history.vote(asked.id, "deny", "not today", person="ann")
    world.settle()
    decision = world.task("t-1").gates[asked.id].decision
    assert decision is not None
    assert (decision.outcome, decision.by, decision.text) == ("denied", ("ann",), "not today")


def test_two_people_at_once_both_count_and_a_person_counts_once() -> None:
    world, history, asked = waiting(gate(need=2))
    assert not history.vote(asked.id, person="ann").ignored
    assert history.vote(asked.id, person="ann").ignored == "ann has voted"
    assert (world.settle(), outcome(world, asked.id)) == ([], "")
    assert not history.vote(asked.id, person="bob").ignored
    world.settle()
    assert outcome(world, asked.id) == "approved"
    assert history.vote(asked.id, "deny", person="eve").ignored == "the gate is decided"


def test_an_approval_and_a_denial_that_come_at_once_are_a_denial() -> None:
    world, history, asked = waiting()
    history.vote(asked.id, person="ann")
    history.vote(asked.id, "deny", person="bob")
    world.settle()
    assert outcome(world, asked.id) == "denied"


def test_a_vote_on_another_digest_is_void() -> None:
    world, history, asked = waiting()
    other = digest(b"what I saw was something else")
    assert history.vote(asked.id, bound=other).ignored == "the vote is about something else"
    assert (world.settle(), outcome(world, asked.id)) == ([], "")
    unbound = Decide("coder", Decision(asked.id, "approved", other))
    assert history.decided(unbound).ignored == "the decision is about something else"


@pytest.mark.parametrize(
    ("about", "vote", "counts"),
    [
        ("call", "answer", False),
        ("call", "approve", True),
        ("question", "approve", False),
        ("question", "answer", True),
    ],
)
def test_a_question_takes_answers_and_a_call_takes_votes(about: Any, vote: str, counts: bool) -> None:
    world, history, asked = waiting(replace(gate(), about=about))
    assert bool(history.vote(asked.id, vote, "because").ignored) is not counts
    world.settle()
    assert outcome(world, asked.id) == ({"answer": "answered", "approve": "approved"}[vote] if counts else "")


def test_only_the_leader_decides() -> None:
    world, history, asked = waiting()
    bound, old = world.task("t-1").gates[asked.id].bound, history.fence
    world.lead("s-2")
    history.fence = old
    late = history.decided(Decide("coder", Decision(asked.id, "approved", bound)))
    assert "is not the leader's" in late.ignored
    assert outcome(world, asked.id) == ""


def test_a_gate_is_decided_once() -> None:
    world, history, asked = waiting()
    history.vote(asked.id)
    world.settle()
    bound = world.task("t-1").gates[asked.id].bound
    assert history.decided(Decide("coder", Decision(asked.id, "denied", bound))).ignored == "the gate is decided"
    assert outcome(world, asked.id) == "approved"


def test_expiry_is_no_denial_and_comes_at_its_time() -> None:
    world, _, asked = waiting(gate(expires_seconds=600))
    at = next_instant(world.task("t-1"))
    assert at == world.task("t-1").gates[asked.id].time + 600
    world.pass_time(at - world.stream.now - 1)
    assert world.settle() == []
    world.pass_time(1)
    world.settle()
    decision = world.task("t-1").gates[asked.id].decision
    assert decision is not None
    assert (decision.outcome, decision.by) == ("expired", ())
    order = world.step("t-1", "write").order
    assert order is not None
    assert [d.outcome for d in order.decided] == ["expired"]
    assert next_instant(world.task("t-1")) is None


def test_a_vote_that_came_in_time_counts_though_the_leader_looks_too_late() -> None:
    world, history, asked = waiting(gate(expires_seconds=600))
    history.vote(asked.id, person="ann")
    world.pass_time(9_000)
    world.settle()
    assert outcome(world, asked.id) == "approved"


def test_a_vote_that_comes_too_late_counts_for_nothing_though_the_leader_has_not_looked_yet() -> None:
    world, history, asked = waiting(gate(need=2, expires_seconds=600))
    at = world.task("t-1").gates[asked.id]
    world.pass_time(at.time + 598 - world.stream.now)
    assert history.vote(asked.id, person="ann").ignored == ""
    assert history.vote(asked.id, "deny", person="bob").ignored == "the gate's time was over"
    assert world.stream.now == at.time + 600
    assert set(at.votes) == {"ann"}
    world.settle()
    assert outcome(world, asked.id) == "expired"


def test_what_nobody_needs_any_more_is_withdrawn() -> None:
    """The plan was made again without the step; its gate must not ask people for ever."""
    world, history, asked = waiting()
    history.say("inject", "it rained")
    world.settle()
    world.work("t-1", "plan", ("plan", plan(("other", "coder", ()))))
    world.settle()
    assert outcome(world, asked.id) == "withdrawn"
    assert world.step("t-1", "write").status == "waiting"
    assert world.step("t-1", "write").attempt == 1


def test_a_gate_of_work_that_was_begun_anew_is_withdrawn() -> None:
    """The step has the same name and other work: the old question is nobody's."""
    world, history, asked = waiting()
    history.say("inject", "it rained")
    world.settle()
    changed = replace(ONE.steps[0], goal="do it otherwise")
    world.work("t-1", "plan", ("plan", replace(ONE, steps=(changed,))))
    world.settle()
    order = world.step("t-1", "write").order
    assert order is not None
    assert (order.goal, order.resumes, order.decided) == ("do it otherwise", 0, ())
    assert outcome(world, asked.id) == "withdrawn"


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(
    ("vote", "wanted"), [("approve", "approved"), ("deny", "denied")], ids=["approved", "denied"]
)  # fmt: skip
def test_the_next_owner_resumes_the_work_and_is_told(vote: str, wanted: str) -> None:
    world, history, asked = waiting()
    history.vote(asked.id, vote, "why not")
    world.settle()
    step = world.step("t-1", "write")
    assert step.order is not None
    assert (step.status, step.attempt, step.order.resumes, step.order.tries, step.order.recoveries) == (
        "ordered", 2, 1, 0, 0,
    )  # fmt: skip
    bound = world.task("t-1").gates[asked.id].bound
    assert step.order.decided == (Decided(asked.id, wanted, bound, "why not", ("ann",)),)  # type: ignore[arg-type]


def test_all_decisions_of_the_work_stay_in_its_orders() -> None:
    """A second gate, a lost worker: the third owner still finds both decisions, and where the work began."""
    world, history, first = waiting()
    history.vote(first.id)
    world.settle()
    world.claim("t-1", "write")
    history.wait("write", gate("write-1-4", call=4))
    history.vote("write-1-4", "deny")
    world.settle()
    world.claim("t-1", "write")
    history.release("write")
    world.settle()
    order = world.step("t-1", "write").order
    assert order is not None
    assert (order.resumes, order.recoveries) == (1, 1)
    assert [(d.gate, d.outcome) for d in order.decided] == [(first.id, "approved"), ("write-1-4", "denied")]


def test_an_approval_is_used_once_by_exactly_its_call() -> None:
    world, history, asked = waiting()
    call = Opens(2, "tool", "send", Raw(b'{"to":"ann"}'), "k-2", gate=asked.id)
    assert "owns nothing" in history.journal("write", opens=call, fence=history.last).ignored
    history.vote(asked.id)
    world.settle()
    world.claim("t-1", "write")
    for wrong in (replace(call, call=3), replace(call, tool="burn"), replace(call, gate="write-1-9")):
        assert history.journal("write", opens=wrong).ignored.startswith("gate ")
    assert not history.journal("write", opens=call).ignored
    assert world.task("t-1").gates[asked.id].used == 2
    history.journal("write", settles=Settles(2, Usage(tool_calls=1)))
    assert "for another call" in history.journal("write", opens=replace(call, call=3)).ignored
    # lost in flight: the next owner opens the same call again, under the same key
    history.release("write")
    world.settle()
    world.claim("t-1", "write")
    assert not history.journal("write", opens=call).ignored


@pytest.mark.parametrize("vote", ["deny", None])
def test_a_call_that_nobody_approved_cannot_be_opened_under_its_gate(vote: str | None) -> None:
    world, history, asked = waiting(gate(expires_seconds=60))
    if vote:
        history.vote(asked.id, vote)
    world.pass_time(100)
    world.settle()
    world.claim("t-1", "write")
    call = Opens(2, "tool", "send", gate=asked.id)
    assert history.journal("write", opens=call).ignored == f"gate {asked.id}: nobody approved this call"


def test_a_gate_of_another_step_approves_nothing_here() -> None:
    world = World()
    world.limits(roles={"coder": 2})
    world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())))
    history = world.of["t-1"]
    for name in "ab":
        world.claim("t-1", name)
    history.wait("a", gate("a-1-1", call=1))
    history.vote("a-1-1")
    world.round()
    assert "nobody approved" in history.journal("b", opens=Opens(1, "tool", "send", gate="a-1-1")).ignored


def test_an_owner_that_asks_again_for_what_is_decided_is_stopped() -> None:
    """A program that does not find its decision would wait, be ordered and wait again for ever."""
    world, history, asked = waiting(attempts=2)
    history.vote(asked.id, "deny")
    for _ in range(8):
        world.settle()
        if world.task("t-1").final is not None:
            break
        world.claim("t-1", "write")
        history.wait("write", asked)
    assert ends(world) == {"t-1": "failed"}
    assert asked.id in world.final("t-1").reason


def test_a_gate_that_is_decided_cannot_come_to_mean_something_else() -> None:
    world, history, asked = waiting()
    history.vote(asked.id)
    world.settle()
    world.claim("t-1", "write")
    history.wait("write", replace(asked, tool="burn"))
    step = world.step("t-1", "write")
    assert (step.status, step.why) == ("failed", "bug")
    assert world.task("t-1").gates[asked.id].gate.tool == "send"


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_an_end_seals_a_step_that_waits(state: str) -> None:
    world, history, asked = waiting()
    if state == "cancelled":
        history.say("cancel", "enough")
    else:
        history.final()
    world.settle()
    assert ends(world) == {"t-1": state}
    if state == "cancelled":
        assert world.step("t-1", "write").status == "revoked"
    assert history.vote(asked.id).ignored == "after the end"


def test_nobody_votes_on_a_gate_that_is_not_there() -> None:
    world, history, asked = waiting()
    vote = Vote("approve", world.task("t-1").gates[asked.id].bound)
    for role, name in (("coder", "ghost"), ("planner", asked.id)):
        subject = subjects.gate_vote("t-1", role, name, "ann")
        assert history.write(subject, vote, "gate.vote", role=role).ignored == "no such gate"
