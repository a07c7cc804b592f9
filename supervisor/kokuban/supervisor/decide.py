"""What the leader decides about one task: a pure function of its state (DESIGN 5)."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from kokuban.blackboard.core import Artifact, Step, Task
from kokuban.schemas import Allotment, Critique, Feedback, Final, Plan, Released, Revoked, Teammate, Verdict, WorkOrder
from kokuban.schemas.contracts import Contract, Crew
from kokuban.schemas.kinds import decode_artifact
from kokuban.supervisor._wants import (
    INTEGRATE,
    Want,
    culprit,
    effective_plan,
    failed_verdict,
    patch_steps,
    stale,
    want_of,
    wanted,
)

FEEDBACK_KEPT = 3
RECOVERIES = 5
GRACE_SECONDS = 30
FEEDBACK_CHARS = 6_000


class Order(NamedTuple):
    """Offer the step to its role's workers."""

    step: str
    role: str
    attempt: int
    order: WorkOrder


class Release(NamedTuple):
    """Take the step back from whoever holds it; `reg` is where its register must stand."""

    step: str
    role: str
    reg: int
    body: Released


class Revoke(NamedTuple):
    """Seal the step for good."""

    step: str
    role: str
    reg: int
    body: Revoked


class End(NamedTuple):
    """End the task."""

    body: Final


Command: TypeAlias = Order | Release | Revoke | End


@dataclass(frozen=True, slots=True)
class Limits:
    """What the leader may have under way at once. `steps_per_task` bounds one task, contracts bound each role."""

    steps_per_task: int = 8


class _Doomed(Exception):
    """The task cannot be done; the message says why."""


def decide(
    task: Task, crew: Crew, limits: Limits, free: MutableMapping[str, int], now: float
) -> tuple[list[Command], set[str]]:
    """Commands for this task, and the roles that it waits for because they have no free slot.

    `free` says how many more steps of a role may run and is used up; `now` is the server's time in seconds. The same
    arguments give the same commands.
    """
    if task.final is not None:
        return [], set()
    sealed = next((step for step in task.steps.values() if step.status == "revoked"), None)
    if sealed is not None:  # an end was begun, perhaps by an earlier leader: it is carried through
        return _ending(task, _joined(sealed)), set()
    try:
        return _decide(task, crew, limits, free, now)
    except _Doomed as doom:
        return _ending(task, str(doom)), set()


def _decide(
    task: Task, crew: Crew, limits: Limits, free: MutableMapping[str, int], now: float
) -> tuple[list[Command], set[str]]:
    plan = effective_plan(task)
    unknown = sorted({step.role for step in plan.steps} - crew.keys()) if plan else []
    if unknown:
        raise _Doomed(f"the plan names roles that this supervisor's crew does not have: {', '.join(unknown)}")
    goal = wanted(task, crew)
    if goal.complete:
        return [End(_proven(task))], set()
    commands = [command for step in task.steps.values() if step.running for command in _overdue(step, now)]
    orders: list[Order] = []
    for want in goal.steps:
        step = task.steps.get(want.step)
        if step is None or not step.running:
            order = _next_order(task, crew, want, step)
            if order is not None and order.step not in {o.step for o in orders}:
                orders.append(order)
    room = limits.steps_per_task - sum(step.running for step in task.steps.values())
    starved: set[str] = set()
    for order in orders:
        if room > 0 and free.get(order.role, 0) > 0:
            free[order.role] -= 1
            room -= 1
            commands.append(order)
        elif room > 0:
            starved.add(order.role)
    return commands, starved


def _overdue(step: Step, now: float) -> list[Command]:
    """A step whose register moved is nobody's; a claim that outlived its allotment by far is taken back."""
    if step.moved:
        body = Released("moved", "something else was written on the step's register")
    elif (
        step.status == "claimed"
        and step.order is not None
        and now - step.claim_time > step.order.allotment.seconds + GRACE_SECONDS
    ):
        body = Released("deadline", f"not done {GRACE_SECONDS} s after its {step.order.allotment.seconds} s")
    else:
        return []
    return [Release(step.id, step.role, step.reg, body)]


def _next_order(task: Task, crew: Crew, want: Want, step: Step | None) -> Order | None:
    """The order that this step needs now, if any. Raises `_Doomed` when its attempts are used up."""
    if step is None or step.order is None:
        return _order(task, crew, want, None)
    if step.role != want.contract.role:
        raise _Doomed(f"step {step.id} belongs to role {step.role}; this supervisor's crew says {want.contract.role}")
    changed = stale(step, want)
    if step.status == "done":
        failed = failed_verdict(task, step.id)
        if changed:
            return _order(task, crew, want, step)
        if failed is None:
            return None
        return _after_verdict(task, crew, want, step, *failed)
    if step.status == "released" and step.why != "deadline":
        if step.order.recoveries + 1 > RECOVERIES:
            raise _Doomed(f"step {step.id} was lost with its worker {RECOVERIES + 1} times; last: {_joined(step)}")
        resumes = 0 if changed else step.order.resumes or step.attempt
        return _order(task, crew, want, step, recoveries=step.order.recoveries + 1, resumes=resumes)
    if changed:
        return _order(task, crew, want, step)
    failure = step.failure
    if failure is not None and failure.why == "conflict" and failure.conflict:
        return _redo(task, crew, _in_order(task, failure.conflict), Feedback(step.attempt, "conflict", failure.reason))
    if failure is not None and not failure.retryable:
        raise _Doomed(f"step {step.id} failed: {failure.reason}")
    reason = "refused" if step.status == "refused" else "failed"
    return _retry(task, crew, want, step, Feedback(step.attempt, reason, _bounded(_joined(step))))  # type: ignore[arg-type]


def _after_verdict(task: Task, crew: Crew, want: Want, step: Step, judged: Artifact, verdict: Verdict) -> Order | None:
    """A failed verdict sends its critique to whoever can mend it: the step's own role, or, for the merged result, the
    step that the checks point at, redone on top of all others."""
    critique = next(
        (
            (a.ref.digest, content.text)
            for a in task.steps[judged.ref.step].results
            if a.ref.kind == "critique"
            and isinstance(content := decode_artifact("critique", a.body), Critique)
            and content.subject.digest == verdict.subject.digest
        ),
        (judged.ref.digest, "; ".join(verdict.reasons) or "the verdict gives no reason"),
    )
    feedback = Feedback(step.attempt, "verdict", _bounded(critique[1]), critique[0])
    if want.step != INTEGRATE:
        return _retry(task, crew, want, step, feedback)
    plan = effective_plan(task)
    makers = patch_steps(task, plan) if plan else ()
    if not makers or plan is None:
        raise _Doomed(f"the result did not pass and no step made a patch that could be mended: {feedback.text}")
    blamed = culprit(task, plan, makers, feedback.text)
    return _redo(task, crew, (*(name for name in makers if name != blamed), blamed), feedback)


def _in_order(task: Task, names: tuple[str, ...]) -> tuple[str, ...]:
    plan = effective_plan(task)
    return tuple(name for name in (patch_steps(task, plan) if plan else ()) if name in names)


def _redo(task: Task, crew: Crew, steps: tuple[str, ...], feedback: Feedback) -> Order | None:
    """Redo the last of these steps with the others' work in its tree."""
    plan = effective_plan(task)
    makers = patch_steps(task, plan) if plan else ()
    names = [name for name in steps if name in makers]
    if not names or plan is None:
        raise _Doomed(f"cannot be merged: {feedback.text}")
    planned = next(s for s in plan.steps if s.id == names[-1])
    onto = replace(planned, needs=tuple(dict.fromkeys((*planned.needs, *names[:-1]))))
    changed = Plan(tuple(onto if s.id == onto.id else s for s in plan.steps))
    want, step = want_of(task, crew, changed, onto), task.steps[onto.id]
    return _retry(task, crew, want, step, feedback)


def _retry(task: Task, crew: Crew, want: Want, step: Step, feedback: Feedback) -> Order:
    assert step.order is not None
    tries = step.order.tries + 1
    if tries >= task.spec.attempts:
        raise _Doomed(f"step {step.id} did not succeed in {tries} attempts; last: {feedback.text}")
    return _order(task, crew, want, step, feedback=feedback, tries=tries)


def _order(
    task: Task,
    crew: Crew,
    want: Want,
    step: Step | None,
    *,
    feedback: Feedback | None = None,
    tries: int | None = None,
    recoveries: int | None = None,
    resumes: int = 0,
) -> Order:
    contract, last = want.contract, step.order if step else None
    kept = (*(last.feedback if last else ()), *((feedback,) if feedback else ()))[-FEEDBACK_KEPT:]
    team = _team(task, crew) if "plan" in contract.produces else ()
    return Order(
        want.step,
        contract.role,
        (step.attempt if step else 0) + 1,
        WorkOrder(
            reg=step.reg if step else task.registers.get((contract.role, want.step), 0),
            spec=task.spec_seq,
            goal=want.goal,
            produces=contract.produces,
            needs=want.needs,
            inputs=want.inputs,
            judges=want.judges,
            feedback=kept,
            allotment=allotment(task, contract),
            team=team,
            scope=want.scope,
            tries=tries if tries is not None else (last.tries if last else 0),
            recoveries=recoveries if recoveries is not None else (last.recoveries if last else 0),
            resumes=resumes,
        ),
    )


def _team(task: Task, crew: Crew) -> tuple[Teammate, ...]:
    """The roles that a plan may name: those for which the task brings what they require."""
    given = {"sources"} if task.spec.sources is not None else set()
    return tuple(c.teammate() for c in crew.values() if c.when == "planned" and given.issuperset(c.requires))


def allotment(task: Task, contract: Contract) -> Allotment:
    """What one attempt may spend: the task's own numbers where it gives them, else the contract's."""
    spec, base = task.spec, contract.limits.allotment()
    return Allotment(
        steps=base.steps if spec.steps is None else spec.steps,
        tool_calls=base.tool_calls if spec.tool_calls is None else spec.tool_calls,
        tokens=base.tokens if spec.tokens is None else spec.tokens,
        seconds=base.seconds if spec.seconds is None else max(spec.seconds, base.seconds if not contract.model else 0),
    )


def _ending(task: Task, reason: str) -> list[Command]:
    """Seal what is unfinished; once all is sealed, end."""
    unfinished = [step for step in task.steps.values() if step.running]
    if unfinished:
        return [Revoke(step.id, step.role, step.reg, Revoked(_bounded(reason)[:1_900])) for step in unfinished]
    return [End(Final("failed", _bounded(reason), usage=task.usage))]


def _proven(task: Task) -> Final:
    """The end of a task whose deliverable is covered by a passing verdict (invariant 9)."""
    deliverable = next(a for a in task.steps[INTEGRATE].results if a.ref.kind == "deliverable")
    judged, verdict = task.verdicts[deliverable.ref.digest]
    reason = (
        "every check passed on the merged result" if verdict.checked else "no check was given: the result is unchecked"
    )
    return Final("done", reason, verdict.checked, deliverable.ref, judged.ref, task.usage)


def _joined(step: Step) -> str:
    return "; ".join(step.reasons) or step.status


def _bounded(text: str) -> str:
    return text if len(text) <= FEEDBACK_CHARS else text[:FEEDBACK_CHARS] + " …"
