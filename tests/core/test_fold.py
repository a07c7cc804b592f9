"""Every rule of the fold: what counts, and what is stored but changes nothing."""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace

from core import contents
from core.folding import FINDING, changes_nothing, claimed, ordered
from core.history import History, begun, folded, result_of
from kokuban.blackboard.core import Applied, fold
from kokuban.schemas import (
    Ending,
    Epoch,
    Failed,
    Final,
    Lease,
    Opens,
    Settles,
    Usage,
    WorkOrder,
    digest,
    encode,
    subjects,
)


def test_a_task_from_spec_to_final() -> None:
    history = begun(goal="two facts")
    task = history.board.tasks["t-1"]
    assert (task.spec.goal, task.spec_seq, task.principal, task.time) == ("two facts", 3, "ann", 1003.0)

    history.order("look", "researcher")
    step = task.steps["look"]
    assert (step.status, step.attempt, step.order_seq, step.fence) == ("ordered", 1, 4, 0)
    assert history.board.running == {"researcher": 1}

    history.claim("look", opens=Opens(1, "model"), worker="w-7")
    assert (step.status, step.fence, step.claim_time, step.worker, step.reg) == ("claimed", 5, 1005.0, "w-7", 5)
    assert step.opened == Opens(1, "model")

    history.journal("look", settles=Settles(1, Usage(5, 2, 1)), opens=Opens(2, "tool", "search"))
    assert step.opened == Opens(2, "tool", "search")
    applied = history.done(
        "look", FINDING, settles=Settles(2, Usage(tool_calls=1)), usage=Usage(1, estimated=True), worker="w-7"
    )
    (artifact,) = applied.admitted
    assert artifact.ref.step == "look"
    assert artifact.ref.digest == digest(encode(FINDING[1]))
    assert (artifact.ref.seq, artifact.fence, artifact.attempt, artifact.role) == (7, 5, 1, "researcher")
    assert artifact.body == encode(FINDING[1])
    assert task.artifacts == {artifact.ref.digest: artifact}
    assert step.results == (artifact,)
    assert str(step.status) == "done"
    assert step.opened is None
    assert step.usage == task.usage == Usage(6, 2, 1, 1, True, seconds=2)
    assert +history.board.running == {}

    history.final(Final("failed", "enough"))
    assert (task.final, task.final_seq) == (Final("failed", "enough"), 8)
    assert task.artifacts[artifact.ref.digest].body == step.results[0].body == b""
    assert history.board.ignored == 0


def test_plan_and_verdict_are_read_when_admitted() -> None:
    history = begun()
    plan = contents.plan(("look", "researcher", ()))
    history.perform("plan", "planner", ("plan", plan))
    (fact,) = history.perform("look", "researcher", FINDING)
    history.perform("verify-look", "verifier", ("v", contents.verdict(fact)), inputs=[fact], judges=[fact.digest])
    task = history.board.tasks["t-1"]
    assert task.plan == plan
    artifact, verdict = task.verdicts[fact.digest]
    assert verdict == contents.verdict(fact)
    assert artifact.ref.step == "verify-look"


def test_what_was_seen_before_is_skipped() -> None:
    history = claimed()
    before = copy.deepcopy(history.board)
    for message in history.messages:
        applied = fold(history.board, message)
        assert applied == Applied(None, None, "seen before")
    assert history.board == before


# ---------------------------------------------------------------------- spec


def test_a_task_is_submitted_once() -> None:
    history = begun(goal="first")
    changes_nothing(history, history.spec(contents.spec("second")), "the task exists")
    assert history.board.tasks["t-1"].spec.goal == "first"


@pytest.mark.parametrize("fields", [{"task": "t-2"}, {"task": None}, {"type": "task.final"}])
def test_a_spec_must_be_about_its_subject(fields: dict[str, str]) -> None:
    history = History()
    kind = fields.pop("type", "task.spec")
    changes_nothing(history, history.write(subjects.spec("t-1"), contents.spec(), kind, **fields), "no task spec")


def test_a_spec_that_is_none_is_no_task() -> None:
    history = History()
    changes_nothing(history, history.write(subjects.spec("t-1"), contents.finding(), "task.spec"), "unreadable")


def test_nothing_is_about_a_task_that_does_not_exist() -> None:
    history = History()
    history.lead()
    changes_nothing(history, history.order("look", "researcher"), "no such task")


# ---------------------------------------------------------------------- the leader's decisions


@pytest.mark.parametrize("what", ["order", "final"])
def test_a_decision_cites_the_epoch_in_force(what: str) -> None:
    history = begun()
    decide = (lambda **f: history.order("look", "researcher", **f)) if what == "order" else history.final
    first = history.fence
    changes_nothing(history, decide(fence=0), "epoch 0 is not the leader's")
    history.lead("s-2")
    changes_nothing(history, decide(fence=first), f"epoch {first} is not the leader's")
    changes_nothing(history, decide(fence=history.fence + 1), "is not the leader's")
    assert not decide().ignored


def test_a_reading_of_one_task_trusts_the_servers_check() -> None:
    history = claimed()
    history.done("look", FINDING)
    own = [message for message in history.messages if message.subject.startswith("kb.task.t-1.")]
    filtered = folded(own, filtered=True)
    assert filtered.tasks == history.board.tasks
    assert filtered.ignored == 0
    assert folded(own).tasks["t-1"].steps == {}
    changes = History(board=filtered)
    changes.last, changes.registers = history.last, history.registers
    assert "epoch 0" in changes.final(fence=0).ignored


def test_an_epoch_of_another_shard_is_not_ours() -> None:
    history = begun()
    other = (subjects.shard("t-1") + 1) % subjects.EPOCH_SHARDS
    history.write(subjects.epoch(other), Epoch("s-2", other), "ctl.epoch", task=None)
    assert history.board.epoch_of("t-1") == history.fence
    lie = history.write(subjects.epoch(other), Epoch("s-2", subjects.shard("t-1")), "ctl.epoch", task=None)
    changes_nothing(history, lie, "subject and shard disagree")
    assert not history.order("look", "researcher").ignored


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        ("kb.ctl.pause", "ctl.lease"),
        ("kb.ctl.lease", "task.spec"),
        ("kb.elsewhere", "step.order"),
        ("kb.task.t-1.step.researcher", "step.claimed"),
        ("kb.task.t-1.gate.researcher.g.veto", "step.claimed"),
    ],
)
def test_subjects_that_this_release_does_not_know_are_left_alone(subject: str, kind: str) -> None:
    history = claimed()
    changes_nothing(history, history.write(subject, Lease("s-2"), kind), "unknown subject")


def test_a_register_belongs_to_one_role() -> None:
    history = claimed()
    history.registers["other"] = copy.copy(history.registers["look"])
    order = WorkOrder(0, 3, "do it", ("patch",))
    foreign = history.write(
        subjects.work("t-1", "coder", "look"), order, "step.order",
        step="look", role="coder", attempt=2, fence=history.fence,
    )  # fmt: skip
    changes_nothing(history, foreign, "belongs to another role")


def test_an_order_knows_the_register() -> None:
    history = begun()
    history.order("look", "researcher", order=WorkOrder(1, 3, "do it", ("finding",)))
    assert history.board.tasks["t-1"].steps == {}
    history.order("look", "researcher")
    history.claim("look")
    history.failed("look")
    stale = history.order("look", "researcher", order=WorkOrder(0, 3, "do it", ("finding",)))
    changes_nothing(history, stale, "the register is at")
    assert not history.order("look", "researcher").ignored


def test_a_task_that_is_about_to_end_gets_no_order_and_no_other_end() -> None:
    history = ordered()
    history.begin("cancelled", "enough")
    changes_nothing(history, history.order("other", "coder"), "the task is about to end")
    changes_nothing(history, history.begin("failed", "it cannot be done"), "an end was begun before")
    assert history.board.tasks["t-1"].ending == Ending("cancelled", "enough")
    assert not history.claim("look").ignored, "what was ordered before goes on until it is sealed"


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_attempts_are_counted_one_by_one(attempt: int) -> None:
    history = claimed()
    history.failed("look")
    changes_nothing(history, history.order("look", "researcher", attempt=attempt), "does not follow 1")


def test_a_running_step_is_not_ordered_again() -> None:
    history = ordered()
    changes_nothing(history, history.order("look", "researcher"), "the step is ordered")
    history = claimed()
    changes_nothing(history, history.order("look", "researcher"), "the step is claimed")


def test_a_sealed_step_stays_sealed() -> None:
    history = claimed()
    history.revoke("look", "it is over")
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.reasons) == ("revoked", ("it is over",))
    changes_nothing(history, history.order("look", "researcher"), "the step is revoked")
    changes_nothing(history, history.done("look", FINDING), "owns nothing here")
    changes_nothing(history, history.revoke("look"), "nothing to take back")
    changes_nothing(history, history.release("look"), "nothing to take back")


def test_a_done_step_can_be_ordered_again_and_its_results_wait() -> None:
    history = claimed()
    history.done("look", FINDING)
    history.order("look", "researcher")
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.fence, step.worker, step.attempt) == ("ordered", 0, "", 2)
    history.claim("look")
    (new,) = history.done("look", ("fact", contents.finding("it is otherwise"))).admitted
    assert step.results == (new,)
    assert len(history.board.tasks["t-1"].artifacts) == 2


# ---------------------------------------------------------------------- ends and usage


def test_only_the_open_call_is_settled_and_only_once() -> None:
    history = claimed()
    history.journal("look", opens=Opens(1, "model"))
    history.journal("look", settles=Settles(1, Usage(4, 1, 1)), opens=Opens(2, "model"))
    history.failed("look", Failed("deadline", "time is up", settles=Settles(1, Usage(4, 1, 1))))
    assert history.board.tasks["t-1"].steps["look"].usage == Usage(4, 1, 1, seconds=3)


def test_a_call_that_is_opened_again_with_more_reserved_is_one_call() -> None:
    history = claimed()
    step = history.board.tasks["t-1"].steps["look"]
    for tokens in (50, 80):
        opens = Opens(1, "tool", "mail", reserved_tokens=tokens, effect="other")
        assert not history.journal("look", opens=opens).ignored
        assert (step.opened, step.doubt, step.usage) == (opens, None, Usage())
    history.journal("look", settles=Settles(1, Usage(60, tool_calls=1)))
    assert (step.opened, step.doubt, step.usage) == (None, None, Usage(60, tool_calls=1))
    for call in (2, 3):
        history.journal("look", opens=Opens(call, "tool", "mail", reserved_tokens=50, effect="other"))
    assert step.doubt is not None, "another call is another matter"
    assert (step.doubt.call, step.usage.tool_calls) == (2, 2)


@pytest.mark.parametrize(
    ("key", "reconciled", "left"), [("k:0", "undone", False), ("k:0", "", True), ("k:1", "done", True)]
)
def test_what_was_left_in_doubt_is_in_none_once_somebody_has_looked(key: str, reconciled: str, left: bool) -> None:
    history = claimed()
    step = history.board.tasks["t-1"].steps["look"]
    wire = Opens(1, "tool", "wire", key="k:0", effect="other")
    history.journal("look", opens=wire)
    history.release("look")
    assert step.doubt == wire
    history.order("look", "researcher")
    history.claim("look")
    history.journal("look", opens=replace(wire, key=key, reconciled=reconciled))
    assert step.doubt == (wire if left else None)


def test_a_failure_carries_reason_and_cost() -> None:
    history = claimed()
    history.journal("look", opens=Opens(1, "model"))
    history.journal("look", settles=Settles(1, Usage(4, 1, 1)), opens=Opens(2, "model"))
    body = Failed("conflict", "two of them", True, Settles(2, Usage(3)), Usage(1), ("a", "b"))
    history.failed("look", body)
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.why, step.reasons, step.failure) == ("failed", "conflict", ("two of them",), body)
    assert step.usage == Usage(8, 1, 1, seconds=3)
    assert step.opened is None
    history.order("look", "researcher")
    assert (step.failure, step.why, step.reasons) == (None, "", ())
    assert step.usage == Usage(8, 1, 1, seconds=3)


def test_a_release_says_why() -> None:
    history = claimed()
    history.store("look", FINDING)
    history.release("look", "deadline")
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.why, step.reasons) == ("released", "deadline", ("not heard of",))
    assert step.stored == {}


def test_usage_never_outgrows_what_a_record_can_carry() -> None:
    history = claimed()
    most = Usage(2**53 - 1, 2**53 - 1, 2**53 - 1, 2**53 - 1)
    for call in range(3):
        history.journal("look", settles=Settles(call, most))
    history.done("look", FINDING, usage=most)
    usage = history.board.tasks["t-1"].usage
    assert replace(usage, seconds=0) == most
    assert not history.final(Final("failed", "enough", usage=usage)).ignored


# ---------------------------------------------------------------------- artifacts outside the commit


def test_an_artifact_stored_outside_counts_once_done_cites_it() -> None:
    history = claimed()
    other = ("other", FINDING[1])
    history.store("look", FINDING)
    assert not history.store("look", other).ignored
    assert history.board.tasks["t-1"].artifacts == {}
    applied = history.done("look", results=[result_of(FINDING, outside=True), result_of(other, outside=True)])
    assert [a.ref.name for a in applied.admitted] == ["fact", "other"]
    assert {a.body for a in applied.admitted} == {encode(FINDING[1])}
    assert history.board.tasks["t-1"].steps["look"].stored == {}


def test_an_artifact_said_to_be_outside_must_be_there() -> None:
    history = claimed()
    history.store("look", ("other", FINDING[1]))
    applied = history.done("look", results=[result_of(FINDING, outside=True)])
    assert "neither in the commit nor stored" in applied.refused[0]
    history.order("look", "researcher")
    history.claim("look")
    again = history.done("look", results=[result_of(("other", FINDING[1]), outside=True)])
    assert again.refused, "what an earlier attempt stored is not this attempt's"


def test_an_artifact_record_sits_under_its_owners_fence() -> None:
    history = claimed()
    history.order("other", "coder")
    history.claim("other")
    wrong = history.store("look", FINDING, subject_fence=history.registers["other"].fence)
    changes_nothing(history, wrong, "the fence is not the claim's")
    changes_nothing(history, history.store("look", FINDING, step="other"), "owns nothing here")
    fence = history.registers["other"].fence
    changes_nothing(history, history.store("look", FINDING, step="other", fence=fence), "the fence is not")
    changes_nothing(history, history.store("look", FINDING, step=None), "owns nothing here")
    fence = history.registers["look"].fence
    subject = subjects.artifact("t-1", "coder", "finding", "fact", fence)
    foreign = history.write(subject, FINDING[1], "artifact", step="look", role="coder", attempt=1, fence=fence)
    changes_nothing(history, foreign, "the fence is not the claim's")


def test_a_refused_result_is_kept_as_data_and_its_cost_counted() -> None:
    history = claimed()
    applied = history.done("look", ("p", contents.patch()), usage=Usage(7))
    (reason,) = applied.refused
    assert "patch 'p'" in reason
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.reasons, step.usage) == ("refused", (reason,), Usage(7, seconds=1))
    assert history.board.tasks["t-1"].artifacts == {}
    assert +history.board.running == {}
