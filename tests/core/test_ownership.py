"""A step has one owner: the claim that stands. Nobody else's write counts (invariant 2)."""

from __future__ import annotations

import pytest

from core import contents
from core.folding import FINDING, changes_nothing, claimed, ordered
from core.history import begun, folded
from kokuban.schemas import (
    Claimed,
    Revoked,
    Settles,
    Usage,
    WorkOrder,
    subjects,
)


def test_a_claim_is_for_the_order_that_stands() -> None:
    history = ordered()
    at = history.registers["look"]
    changes_nothing(history, history.claim("look", body=Claimed(at.order - 1, 0)), "for another order")
    history = ordered()
    changes_nothing(history, history.claim("look", body=Claimed(at.order, 1)), "for another order")
    history = ordered()
    changes_nothing(history, history.claim("look", attempt=2), "for another attempt")
    assert not ordered().claim("look").ignored


def test_a_step_has_one_owner() -> None:
    history = claimed()
    changes_nothing(history, history.claim("look", worker="w-2"), "nothing to claim")
    assert history.board.tasks["t-1"].steps["look"].worker == "w-1"


def test_nobody_claims_what_nobody_ordered() -> None:
    history = begun()
    history.order("look", "researcher", fence=1)
    history.registers["look"].order = history.last
    changes_nothing(history, history.claim("look"), "nothing to claim")
    changes_nothing(history, history.release("look"), "nothing to take back")
    changes_nothing(history, history.revoke("look"), "nothing to take back")
    changes_nothing(history, history.done("look", FINDING), "owns nothing here")
    changes_nothing(history, history.journal("look"), "owns nothing here")


def test_a_late_claim_of_an_old_order_is_void() -> None:
    history = ordered()
    old = Claimed(history.registers["look"].order, 0)
    history.release("look", "lost")
    history.order("look", "researcher")
    changes_nothing(history, history.claim("look", body=old), "for another order")


@pytest.mark.parametrize("end", ["done", "failed", "journal", "store"])
@pytest.mark.parametrize("fence", ["none", "old", "other"])
def test_a_write_without_the_fence_counts_for_nothing(end: str, fence: str) -> None:
    history = claimed()
    old = history.registers["look"].fence
    history.release("look")
    history.order("look", "researcher")
    history.claim("look", worker="w-2")
    sequence = {"none": 0, "old": old, "other": history.last + 1}[fence]
    writes = {
        "done": lambda: history.done("look", FINDING, fence=sequence),
        "failed": lambda: history.failed("look", fence=sequence),
        "journal": lambda: history.journal("look", settles=Settles(1, Usage(9)), fence=sequence),
        "store": lambda: history.store("look", FINDING, fence=sequence),
    }
    changes_nothing(history, writes[end](), "owns nothing here")


def test_done_without_a_claim_is_nothing() -> None:
    history = ordered()
    changes_nothing(history, history.done("look", FINDING), "owns nothing here")
    changes_nothing(history, history.done("look", FINDING, fence=history.registers["look"].order), "owns nothing")


def test_a_second_end_is_nothing() -> None:
    history = claimed()
    history.done("look", FINDING)
    changes_nothing(history, history.done("look", ("fact", contents.finding("other"))), "owns nothing here")
    changes_nothing(history, history.failed("look"), "owns nothing here")


def test_junk_on_the_register_ends_the_owners_right_to_write() -> None:
    history = claimed()
    step = history.board.tasks["t-1"].steps["look"]
    assert not step.moved
    changes_nothing(history, history.put(subjects.register("t-1", "researcher", "look"), b"\xff\x00 junk"), "")
    assert step.moved
    assert step.reg == history.last
    changes_nothing(history, history.journal("look", settles=Settles(1, Usage(9))), "the register has moved")
    changes_nothing(history, history.store("look", FINDING), "the fence is not the claim's")
    changes_nothing(history, history.done("look", FINDING), "the register has moved")
    changes_nothing(history, history.failed("look"), "the register has moved")
    history.release("look", "moved")
    assert (step.status, step.moved) == ("released", False)
    assert not history.order("look", "researcher").ignored


def test_junk_on_the_register_voids_the_order() -> None:
    history = ordered()
    history.put(subjects.register("t-1", "researcher", "look"), b"")
    step = history.board.tasks["t-1"].steps["look"]
    assert step.moved
    changes_nothing(history, history.claim("look"), "for another order")


def test_junk_before_the_first_order_is_remembered() -> None:
    history = begun()
    history.put(subjects.register("t-1", "researcher", "look"), b"{}")
    history.put(subjects.register("t-1", "coder", "look"), b"{}")
    void = history.order("look", "researcher", order=WorkOrder(0, 3, "do it", ("finding",)))
    assert "the register is at 4" in void.ignored
    assert not history.order("look", "researcher", order=WorkOrder(4, 3, "do it", ("finding",))).ignored
    assert history.board.tasks["t-1"].steps["look"].reg == 4


def test_a_register_of_another_role_is_another_register() -> None:
    history = claimed()
    history.put(subjects.register("t-1", "coder", "look"), b"{}")
    assert not history.board.tasks["t-1"].steps["look"].moved
    assert not history.journal("look", settles=Settles(1, Usage(9))).ignored
    assert not history.done("look", FINDING).ignored


def test_a_claim_on_another_roles_register_is_no_claim() -> None:
    history = ordered()
    at = history.registers["look"]
    wrong = subjects.register("t-1", "coder", "look")
    fields = {"step": "look", "role": "coder", "attempt": 1, "worker": "w-9"}
    applied = history.write(wrong, Claimed(at.order, 0), "step.claimed", **fields)
    changes_nothing(history, applied, "belongs to another role")
    assert not history.claim("look").ignored


@pytest.mark.parametrize("take", ["release", "revoke"])
def test_a_leader_of_the_past_takes_nothing_back(take: str) -> None:
    history = claimed()
    step, old = history.board.tasks["t-1"].steps["look"], history.fence
    history.lead("s-2")
    new, history.fence = history.fence, old
    if take == "release":
        changes_nothing(history, history.release("look"), "is not the leader's")
    else:  # the server has refused its word on the end, which is fenced on the epoch
        late = history._register("look", Revoked("late"), "step.revoked", fence=history.fence)
        changes_nothing(history, late, "nobody has said that the task ends")
    assert step.moved  # the server has fenced the owner off all the same: the step is the leader's to give out again
    history.fence = new
    assert not history.release("look", "moved").ignored
    assert not history.order("look", "researcher").ignored
    task = folded(history.messages, filtered=True).tasks["t-1"]  # who reads one task alone comes to the same
    assert (task.steps["look"].status, task.steps["look"].attempt) == ("ordered", 2)
