"""What goes wrong and how it ends: refusals, verdicts, conflicts, lost workers, and the seal before the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core import contents
from core.contents import plan
from core.simulator import Act, Job, Simulator, Worker, honest, judged
from kokuban.blackboard.core import Task
from kokuban.schemas import Critique, Failed, Plan, Ref, Released, Revoked
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import End, Order, Release, Revoke

ONE = plan(("write", "coder", ()))
TWO = plan(("left", "coder", ()), ("right", "coder", ()))
THREE = plan(("a", "coder", ()), ("b", "coder", ("a",)), ("c", "coder", ("b",)), ("apart", "coder", ()))


def first(times: int, act: Callable[[Job], Act] | Act, then: Worker, step: str = "") -> Worker:
    """A worker whose first attempts, at this step or at any, go another way."""

    def worker(job: Job) -> Act:
        if job.attempt <= times and job.step.startswith(step):
            return act(job) if callable(act) else act
        return then(job)

    return worker


def team(dag: Plan = ONE, **workers: Worker) -> dict[str, Worker]:
    return honest(dag) | workers


def end(task: Task, state: str) -> str:
    assert task.final is not None
    assert task.final.state == state, task.final.reason
    return task.final.reason


HONEST = honest(ONE)
WRONG_KIND: Act = [("x", contents.finding())]


# ---------------------------------------------------------------------- refusals and failures


def test_a_refused_artifact_returns_with_the_reasons() -> None:
    run = Simulator(team(coder=first(1, WRONG_KIND, HONEST["coder"])))
    end(run.run(), "done")
    one, two = (order.order for order in run.orders("write"))
    assert (one.feedback, one.tries) == ((), 0)
    (feedback,) = two.feedback
    assert (feedback.attempt, feedback.reason, two.tries) == (1, "refused", 1)
    assert "finding 'x': the role's contract allows only patch" in feedback.text


@pytest.mark.parametrize("attempts", [1, 2, 3, 10])
def test_refused_attempts_are_bounded(attempts: int) -> None:
    run = Simulator(team(coder=lambda job: WRONG_KIND), contents.spec(attempts=attempts))
    reason = end(run.run(), "failed")
    assert len(run.orders("write")) == attempts
    assert f"step write did not succeed in {attempts} attempts" in reason
    assert "allows only patch" in reason
    assert len(run.orders("write")[-1].order.feedback) == min(attempts - 1, 3)


def test_a_plan_that_cannot_run_goes_back_to_the_planner_three_times() -> None:
    circle = plan(("a", "coder", ("b",)), ("b", "coder", ("a",)))
    run = Simulator(team(planner=lambda job: [("plan", circle)]))
    reason = end(run.run(), "refused")
    assert "these steps wait for each other in a circle: a, b" in reason
    assert len(run.orders("plan")) == 3
    assert "circle: a, b" in run.orders("plan")[1].order.feedback[0].text
    assert {command.step for command in run.commands if isinstance(command, Order)} == {"plan"}
    mended = Simulator(team(planner=first(2, [("plan", circle)], HONEST["planner"])))
    end(mended.run(), "done")


def test_a_failure_is_tried_again_unless_it_says_that_it_is_of_no_use() -> None:
    run = Simulator(team(coder=first(2, Failed("model", "no answer"), HONEST["coder"])))
    end(run.run(), "done")
    assert [f.text for f in run.orders("write")[-1].order.feedback] == ["no answer", "no answer"]
    run = Simulator(team(coder=lambda job: Failed("input", "no such file", retryable=False)))
    assert end(run.run(), "failed") == "step write failed: no such file"
    assert len(run.orders("write")) == 1


def test_when_one_step_fails_for_good_the_others_are_sealed_before_the_end() -> None:
    """E1, E8: the end reaches everyone, and nothing is started behind a failure."""
    dag = plan(*((f"s{n}", "coder", ()) for n in range(3)), ("after", "coder", ("s0",)))
    fails = Failed("input", "no such file", retryable=False)

    def coder(job: Job) -> Act:
        return fails if job.step == "s0" else "stuck"

    run = Simulator(team(dag, coder=coder))
    reason = end(run.run(), "failed")
    assert reason == "step s0 failed: no such file"
    revokes = [command for command in run.commands if isinstance(command, Revoke)]
    assert {(r.step, r.body) for r in revokes} == {("s1", Revoked(reason)), ("s2", Revoked(reason))}
    assert isinstance(run.commands[-1], End)
    assert not run.orders("after")
    assert {s: run.task.steps[s].status for s in ("s0", "s1", "s2")} == {
        "s0": "failed",
        "s1": "revoked",
        "s2": "revoked",
    }


def test_an_end_that_another_leader_began_is_carried_through() -> None:
    """Sealed by one leader, which died before the end; meanwhile the reason to end has gone away."""
    dag = plan(("a", "coder", ()), ("b", "coder", ()))
    run = Simulator(team(dag, coder=lambda job: "stuck"))
    while not (run.task.steps.get("a") and run.task.steps["b"].status == "claimed"):
        commands, _ = run.decide()
        for command in commands:
            run.carry_out(command)
        if not commands:
            run.choose = lambda n: n - 1
            run.work()
    run.history.revoke("b", "the first leader's reason")
    run.choose = lambda n: 0
    assert end(run.run(), "failed") == "the first leader's reason"
    assert [type(c) for c in run.commands[-2:]] == [Revoke, End]


# ---------------------------------------------------------------------- verdicts


def test_a_failed_verdict_gives_the_next_attempt_its_critique() -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: not (ref.step == "write" and job.attempt == 1))

    run = Simulator(team(verifier=verifier))
    task = run.run()
    end(task, "done")
    (feedback,) = run.orders("write")[1].order.feedback
    assert feedback.reason == "verdict"
    assert feedback.text.startswith("mend write ")
    assert feedback.digest is not None
    assert run.admitted[feedback.digest].ref.kind == "critique"
    assert len(run.orders("verify-write")) == 2


def test_a_verdict_without_critique_gives_its_reasons() -> None:
    def verifier(job: Job) -> Act:
        both = judged(job, lambda ref: not (ref.step == "write" and job.attempt == 1))
        return [(name, made) for name, made in both if not isinstance(made, Critique)]

    run = Simulator(team(verifier=verifier))
    end(run.run(), "done")
    (feedback,) = run.orders("write")[1].order.feedback
    assert (feedback.reason, feedback.text) == ("verdict", "wrong")


NOBODY = Ref("s", "patch", "n", contents.NOTHING, 1)


def test_three_failed_verdicts_are_the_end() -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: False)

    run = Simulator(team(TWO, verifier=verifier))
    reason = end(run.run(), "failed")
    assert "did not succeed in 3 attempts; last: mend " in reason
    assert max(len(run.orders("left")), len(run.orders("right"))) == 3


def test_the_same_patch_again_is_judged_as_before_and_still_bounded() -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: False)

    run = Simulator(team(coder=lambda job: [("change", contents.patch("always the same"))], verifier=verifier))
    end(run.run(), "failed")
    assert len(run.orders("write")) == 3
    assert len(run.orders("verify-write")) == 1, "a digest is judged once"


def test_a_verifier_that_judges_something_else_is_refused() -> None:
    run = Simulator(team(verifier=lambda job: [("v", contents.verdict(NOBODY))]))
    reason = end(run.run(), "failed")
    assert "step verify-write did not succeed in 3 attempts" in reason
    assert "is not among the order's inputs" in reason


def test_a_verdict_that_is_missing_is_no_pass() -> None:
    run = Simulator(team(verifier=lambda job: [("c", contents.critique(job.order.inputs[0]))]))
    assert "verdict: none for" in end(run.run(), "failed")


# ---------------------------------------------------------------------- the merged result


def test_a_merge_conflict_has_the_later_step_redone_on_top() -> None:
    clash = Failed("conflict", "left and right both change a.txt", conflict=("right", "left"), paths=("a.txt",))
    run = Simulator(team(TWO, integrator=first(1, clash, HONEST["integrator"])))
    end(run.run(), "done")
    assert len(run.orders("left")) == 1
    one, two = (order.order for order in run.orders("right"))
    assert (one.needs, one.inputs, one.scope) == ((), (), "part")
    assert (two.needs, [ref.step for ref in two.inputs], two.scope) == (("left",), ["left"], "whole")
    (feedback,) = two.feedback
    assert (feedback.reason, feedback.text) == ("conflict", clash.reason)
    assert [ref.step for ref in run.orders("verify-right")[-1].order.inputs] == ["left", "right"]


def test_a_conflict_among_the_inputs_of_a_planned_step_is_mended_below_it() -> None:
    dag = plan(("left", "coder", ()), ("right", "coder", ()), ("join", "coder", ("left", "right")))
    clash = Failed("conflict", "both change a.txt", conflict=("left", "right"))
    run = Simulator(team(dag, coder=first(1, clash, HONEST["coder"], step="join")))
    end(run.run(), "done")
    assert run.orders("right")[1].order.needs == ("left",)
    assert [(order.attempt, order.order.tries) for order in run.orders("join")] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("named", [("left", "right"), ("right",), ("left", "left")])
def test_a_conflict_that_stays_is_bounded(named: tuple[str, ...]) -> None:
    run = Simulator(team(TWO, integrator=lambda job: Failed("conflict", "still", conflict=named)))
    assert "did not succeed in 3 attempts; last: still" in end(run.run(), "failed")


@pytest.mark.parametrize("named", [("nobody",), ("plan", "integrate"), ("verify-left",)])
def test_a_conflict_between_strangers_cannot_be_mended(named: tuple[str, ...]) -> None:
    run = Simulator(team(TWO, integrator=lambda job: Failed("conflict", "what", conflict=named)))
    assert end(run.run(), "failed") == "cannot be merged: what"


@pytest.mark.parametrize("body", [Failed("model", "no", conflict=("left",)), Failed("conflict", "no")])
def test_only_a_conflict_that_names_steps_is_one(body: Failed) -> None:
    run = Simulator(team(TWO, integrator=first(1, body, HONEST["integrator"])))
    end(run.run(), "done")
    assert {name: len(run.orders(name)) for name in ("left", "right", "integrate")} == {
        "left": 1, "right": 1, "integrate": 2,
    }  # fmt: skip
    assert run.orders("integrate")[1].order.feedback[0].reason == "failed"


def test_a_failed_verdict_on_the_result_has_the_last_patch_redone() -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: ref.kind != "deliverable" or job.attempt > 1)

    run = Simulator(team(TWO, verifier=verifier))
    end(run.run(), "done")
    assert len(run.orders("left")) == 1
    redone = run.orders("right")[1].order
    assert (redone.needs, redone.tries, redone.feedback[0].reason) == (("left",), 1, "verdict")
    assert len(run.orders("integrate")) == 2
    assert len(run.orders("verify-integrate")) == 2


@pytest.mark.parametrize("same", [False, True])
def test_a_result_that_never_passes_is_bounded(same: bool) -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: ref.kind != "deliverable")

    text = "same" if same else ""
    workers = team(verifier=verifier)
    coder = workers["coder"]
    workers["coder"] = (lambda job: [("change", contents.patch(text))]) if same else coder
    run = Simulator(workers)
    assert "step write did not succeed in 3 attempts" in end(run.run(), "failed")
    assert len(run.orders("integrate")) == (1 if same else 3)


def test_a_result_without_patches_cannot_be_mended() -> None:
    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: ref.kind != "deliverable")

    workers = team(plan(("look", "researcher", ())), verifier=verifier)
    run = Simulator(workers, contents.spec(sources=contents.NOTHING))
    assert "no step made a patch that could be mended: mend integrate" in end(run.run(), "failed")


# ---------------------------------------------------------------------- replaced inputs


def judging_late(job: Job) -> Act:
    """A verifier that, when it first judges `c`, also finds fault with what `a` had made."""
    found = judged(job, lambda ref: True)
    if job.step == "verify-c" and job.attempt == 1:
        (early,) = [ref for ref in job.order.inputs if ref.step == "a"]
        found.append(("late", contents.verdict(early, False, reasons=("a is wrong after all",))))
    return found


def test_only_what_derives_from_a_replaced_input_is_done_again() -> None:
    """A late verdict against an early patch: what was built on it is stale, what stands apart is not."""

    run = Simulator(team(THREE, verifier=judging_late))
    end(run.run(), "done")
    assert {name: len(run.orders(name)) for name in ("a", "b", "c", "apart", "verify-apart")} == {
        "a": 2, "b": 2, "c": 2, "apart": 1, "verify-apart": 1,
    }  # fmt: skip
    assert [order.order.tries for order in run.orders("b")] == [0, 0], "it is not b's fault"
    assert run.orders("b")[1].order.inputs[0].digest == run.task.steps["a"].results[0].ref.digest


def test_who_builds_on_a_judgement_waits_until_it_is_made_again() -> None:
    """`look` has the same inputs as before, but it was judged beside a patch that has been replaced."""
    dag = plan(("a", "coder", ()), ("look", "researcher", ("a",)), ("c", "coder", ("look",)))

    run = Simulator(team(dag, verifier=judging_late), contents.spec(sources=contents.NOTHING))
    end(run.run(), "done")
    names = [(command.step, command.attempt) for command in run.commands if isinstance(command, Order)]
    assert len(run.orders("look")) == 1
    assert ("verify-look", 2) in names
    assert all({"verify-look", "c"} - together for together in run.together)


def test_an_input_made_again_byte_for_byte_makes_nothing_stale() -> None:
    def coder(job: Job) -> Act:
        if job.step == "a":
            return [("change", contents.patch("a"))]
        if job.step == "b" and job.attempt == 1:
            return Failed("conflict", "a does not fit itself", conflict=("a",))
        return HONEST["coder"](job)

    dag = plan(("a", "coder", ()), ("b", "coder", ("a",)))
    run = Simulator(team(dag, coder=coder))
    assert "step a did not succeed in 3 attempts" in end(run.run(), "failed")
    assert len(run.orders("b")) == 1
    assert len(run.orders("verify-a")) == 1


# ---------------------------------------------------------------------- lost workers


@pytest.mark.parametrize("how", ["silent", "lost", "junk"])
def test_a_lost_attempt_is_taken_up_by_another(how: Act) -> None:
    run = Simulator(team(coder=first(2, how, HONEST["coder"])))
    end(run.run(), "done")
    orders = [order.order for order in run.orders("write")]
    assert [(o.recoveries, o.resumes, o.tries) for o in orders] == [(0, 0, 0), (1, 1, 0), (2, 1, 0)]
    assert [order.attempt for order in run.orders("write")] == [1, 2, 3]
    moved = [c.body.why for c in run.commands if isinstance(c, Release)]
    assert moved == (["moved", "moved"] if how == "junk" else [])


def test_losing_workers_is_bounded() -> None:
    run = Simulator(team(coder=lambda job: "silent"))
    reason = end(run.run(), "dead")
    assert "step write was lost with its worker 6 times; last: not heard of" in reason
    assert [order.order.recoveries for order in run.orders("write")] == [0, 1, 2, 3, 4, 5]


def test_a_failed_attempt_is_no_recovery_and_starts_afresh() -> None:
    def coder(job: Job) -> Act:
        return {1: "silent", 2: Failed("model", "no answer"), 3: "silent"}.get(job.attempt) or HONEST["coder"](job)  # type: ignore[return-value]

    run = Simulator(team(coder=coder))
    end(run.run(), "done")
    orders = [order.order for order in run.orders("write")]
    assert [(o.recoveries, o.resumes, o.tries) for o in orders] == [(0, 0, 0), (1, 1, 0), (1, 0, 1), (2, 3, 1)]


def test_who_outlives_the_deadline_is_released_and_it_counts_as_a_try() -> None:
    run = Simulator(team(coder=first(1, "stuck", HONEST["coder"])))
    end(run.run(), "done")
    seconds = builtin_crew()["coder"].limits.seconds
    (release,) = [command for command in run.commands if isinstance(command, Release)]
    assert release.body == Released("deadline", f"not done 30 s after its {seconds} s")
    two = run.orders("write")[1].order
    assert (two.tries, two.recoveries, two.resumes, two.feedback[0].reason) == (1, 0, 0, "failed")
    run = Simulator(team(coder=lambda job: "stuck"))
    assert "did not succeed in 3 attempts; last: not done 30 s after" in end(run.run(), "failed")


def test_a_deadline_is_not_before_its_time() -> None:
    run = Simulator(team(coder=lambda job: "stuck"))
    while "write" not in run.task.steps or run.task.steps["write"].status != "claimed":
        commands, _ = run.decide()
        for command in commands:
            run.carry_out(command)
        if not commands:
            run.work()
    step = run.task.steps["write"]
    assert step.order is not None
    run.now = step.claim_time + step.order.allotment.seconds + 30
    assert run.decide() == ([], 0)
    run.now += 0.001
    (release,), _ = run.decide()
    assert isinstance(release, Release)
    assert release.reg == step.fence


def test_a_zombie_of_work_that_is_no_longer_wanted_is_released_too() -> None:
    """`right` is still running when `left`, which it needs, turns out wrong: it must not hold its slot for ever."""
    dag = plan(("left", "coder", ()), ("right", "coder", ("left",)))

    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: True)

    def coder(job: Job) -> Act:
        return "stuck" if job.step == "right" and job.attempt == 1 else HONEST["coder"](job)

    run = Simulator(team(dag, verifier=verifier, coder=coder))
    while "right" not in run.task.steps or run.task.steps["right"].status != "claimed":
        commands, _ = run.decide()
        for command in commands:
            run.carry_out(command)
        if not commands:
            run.work()
    history, left = run.history, run.task.steps["left"].results[0].ref
    history.registers["verify-left"].attempt = run.task.steps["verify-left"].attempt
    history.order("verify-left", "verifier", inputs=[left], judges=[left.digest])
    history.claim("verify-left")
    history.done("verify-left", ("v", contents.verdict(left, False, reasons=("no",))))
    end(run.run(), "done")
    assert len(run.orders("right")) == 2
    assert [c.step for c in run.commands if isinstance(c, Release)] == ["right"]


# ---------------------------------------------------------------------- another crew


def test_a_plan_for_roles_that_the_crew_lost_fails_with_their_names() -> None:
    run = Simulator(team())
    while run.task.plan is None:
        commands, _ = run.decide()
        for command in commands:
            run.carry_out(command)
        if not commands:
            run.work()
    run.crew = {role: contract for role, contract in builtin_crew().items() if role != "coder"}
    assert "does not have: coder" in end(run.run(), "refused")


def test_a_step_that_the_crew_gave_to_another_role_fails_the_task() -> None:
    run = Simulator(team(planner=lambda job: "lost"))
    for command in run.decide()[0]:
        run.carry_out(command)
    run.work()
    crew = dict(builtin_crew())
    crew["architect"] = crew.pop("planner").model_copy(update={"role": "architect"})
    run.crew = crew
    assert "step plan belongs to role planner" in end(run.run(), "failed")
