"""Every rule of the fold: what counts, and what is stored but changes nothing."""

from __future__ import annotations

import copy

import msgspec
import pytest

from core import contents
from core.history import History, begun, folded, result_of
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.schemas import (
    Claimed,
    Done,
    Epoch,
    Failed,
    Final,
    Lease,
    Opens,
    Released,
    Settles,
    Usage,
    WorkOrder,
    digest,
    encode,
    seal,
    subjects,
)

FINDING = ("fact", contents.finding())


def ordered() -> History:
    history = begun()
    history.order("look", "researcher")
    return history


def claimed() -> History:
    history = ordered()
    history.claim("look")
    return history


def changes_nothing(history: History, applied: Applied, why: str) -> None:
    """The last message was ignored for this reason, and all else is as if it had never been stored."""
    assert why in applied.ignored
    assert not applied.admitted
    assert not applied.refused
    without = folded(history.messages[:-1])
    assert history.board.ignored == without.ignored + 1
    assert plain(history.board) == plain(without)


def plain(board: Board) -> object:
    """The board without positions: sequences of the stream and of registers, and the count of what was ignored."""
    board = copy.deepcopy(board)
    board.last_seq = board.ignored = 0
    for task in board.tasks.values():
        task.last_seq = 0
        task.registers = {}
        for step in task.steps.values():
            step.reg = 0
    return board


def test_a_task_from_spec_to_final() -> None:
    history = begun(goal="two facts")
    task = history.board.tasks["t-1"]
    assert (task.spec.goal, task.spec_seq, task.principal, task.time) == ("two facts", 3, "ann", 1003.0)

    history.order("look", "researcher")
    step = task.steps["look"]
    assert (step.status, step.attempt, step.order_seq, step.order_time, step.fence) == ("ordered", 1, 4, 1004.0, 0)
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
    assert step.done_seq == 7
    assert step.opened is None
    assert step.usage == task.usage == Usage(6, 2, 1, 1, True)
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
        ("kb.task.t-1.gate.researcher.g.decision", "step.claimed"),
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


# ---------------------------------------------------------------------- ownership


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
    assert not history.done("look", FINDING).ignored


# ---------------------------------------------------------------------- ends and usage


def test_a_failure_carries_reason_and_cost() -> None:
    history = claimed()
    history.journal("look", settles=Settles(1, Usage(4, 1, 1)), opens=Opens(2, "model"))
    body = Failed("conflict", "two of them", True, Settles(2, Usage(3)), Usage(1), ("a", "b"))
    history.failed("look", body)
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.why, step.reasons, step.failure) == ("failed", "conflict", ("two of them",), body)
    assert step.usage == Usage(8, 1, 1)
    assert step.opened is None
    history.order("look", "researcher")
    assert (step.failure, step.why, step.reasons) == (None, "", ())
    assert step.usage == Usage(8, 1, 1)


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
    assert usage == most
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


def test_a_refused_result_is_kept_as_data_and_its_cost_counted() -> None:
    history = claimed()
    applied = history.done("look", ("p", contents.patch()), usage=Usage(7))
    (reason,) = applied.refused
    assert "patch 'p'" in reason
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.reasons, step.usage) == ("refused", (reason,), Usage(7))
    assert history.board.tasks["t-1"].artifacts == {}
    assert +history.board.running == {}


# ---------------------------------------------------------------------- envelopes


@pytest.mark.parametrize("fields", [{"task": "t-2"}, {"step": "other"}, {"role": "coder"}, {"role": None}])
def test_subject_and_envelope_agree(fields: dict[str, str | None]) -> None:
    history = ordered()
    changes_nothing(history, history.claim("look", **fields)  # type: ignore[arg-type], "disagree")


@pytest.mark.parametrize("kind", ["step.order", "task.final", "artifact", "step.journal", "task.spec", "ctl.epoch"])
def test_a_type_belongs_under_its_subject(kind: str) -> None:
    history = claimed()
    subject = subjects.register("t-1", "researcher", "look")
    wrong = history.write(subject, Done(()), kind, step="look", role="researcher", fence=history.fence)
    changes_nothing(history, wrong, "disagree")


def test_the_end_is_the_end() -> None:
    history = claimed()
    history.order("other", "coder")
    history.final()
    task = history.board.tasks["t-1"]
    assert {step.status for step in task.steps.values()} == {"revoked"}
    assert +history.board.running == {}
    for late in (
        lambda: history.done("look", FINDING),
        lambda: history.order("third", "coder"),
        lambda: history.journal("look", settles=Settles(1, Usage(5))),
        lambda: history.final(Final("done", "all is well")),
        lambda: history.release("look"),
    ):
        changes_nothing(history, late(), "after the end")
    assert task.final == Final("failed", "it cannot be done")


def bad_bytes() -> dict[str, bytes]:
    good = seal(Released("silent", "gone"), id="x", type="step.released", task="t-1", step="look", role="researcher")
    body = b'{"why":"silent","reason":"gone"}'

    def with_body(raw: bytes) -> bytes:
        return good.replace(body, raw).replace(digest(body).encode(), digest(raw).encode())

    assert body in good
    return {
        "empty": b"",
        "text": b"hello",
        "cut": good[:-1],
        "tampered": good.replace(b"gone", b"gine"),
        "newer": good.replace(b'"id":"x"', b'"id":"x","version":2,"novel":[]'),
        "unknown field": good.replace(b'"id":"x"', b'"id":"x","novel":1'),
        "unknown type": good.replace(b"step.released", b"step.relieved"),
        "deep": b"[" * 100_000,
        "deep body": with_body(b'{"why":' + b"[" * 400 + b"]" * 400 + b"}"),
        "not UTF-8": with_body(b'{"why":"silent","reason":"\xff"}'),
        "not UTF-8 in a key": with_body(b'{"\xff":1}'),
        "surrogate": with_body(b'{"why":"silent","reason":"\\ud800"}'),
        "huge integer": with_body(b'{"why":"silent","reason":' + b"9" * 5_000 + b"}"),
        "huge float": with_body(b'{"why":1e999,"reason":"x"}'),
        "NaN": with_body(b'{"why":NaN,"reason":"x"}'),
        "null": with_body(b"null"),
        "wrong shape": with_body(b'{"why":"silent"}'),
        "wrong value": with_body(b'{"why":"bored","reason":"x"}'),
    }


@pytest.mark.parametrize("name", list(bad_bytes()))
def test_bytes_that_are_no_record_only_move_the_register(name: str) -> None:
    history = claimed()
    subject = subjects.register("t-1", "researcher", "look")
    changes_nothing(history, history.put(subject, bad_bytes()[name]), "")
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.reg, step.moved) == ("claimed", history.last, True)


def test_a_result_of_any_depth_or_size_is_refused_not_fatal() -> None:
    deep = b'{"statement":' + b"[" * 110 + b"]" * 110 + b',"citations":[]}'
    long = b'{"statement":"' + b"x" * 100_000 + b'","citations":[]}'
    for raw in (deep, long, b'{"statement":' + b"9" * 5_000 + b"}", b'{"statement":1e999}', b"7"):
        history = claimed()
        result = msgspec.structs.replace(result_of(FINDING), body=msgspec.Raw(raw), digest=digest(raw))
        applied = history.done("look", results=[result])
        assert applied.refused
        assert all(reason.startswith("finding") and len(reason) < 1_000 for reason in applied.refused)


def test_the_fold_of_a_history_does_not_depend_on_how_it_was_read() -> None:
    history = claimed()
    history.done("look", FINDING)
    history.final()
    board = Board()
    for position, message in enumerate(history.messages):
        for again in history.messages[max(0, position - 2) : position + 1]:
            fold(board, again)
        assert board.last_seq == message.seq
    assert board == history.board == folded(history.messages)


def test_gaps_in_the_stream_are_no_fault() -> None:
    """Deleted messages leave gaps; sequences only grow."""
    history = claimed()
    shifted = [Stored(m.seq, m.subject, m.time, m.data) for m in history.messages if m.subject != subjects.LEASE]
    assert folded(shifted).tasks == history.board.tasks
