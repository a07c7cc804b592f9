"""What a step needs next: the order for its next attempt, by how the last one ended."""

from __future__ import annotations

from msgspec.structs import replace

from kokuban.blackboard.core import Artifact, Step, Task
from kokuban.schemas import Allotment, Critique, Feedback, Plan, Teammate, Verdict, WorkOrder
from kokuban.schemas.contracts import Contract, Crew
from kokuban.schemas.kinds import decode_artifact
from kokuban.schemas.records import State
from kokuban.supervisor import _gates
from kokuban.supervisor._commands import Order
from kokuban.supervisor._wants import (
    INTEGRATE,
    PLAN,
    RECOVERIES,
    Want,
    culprit,
    effective_plan,
    failed_verdict,
    patch_steps,
    stale,
    want_of,
)

FEEDBACK_KEPT = 3
FEEDBACK_CHARS = 6_000
SCARCE = {"steps": "steps", "tool_calls": "tool_calls", "tokens": "tokens", "budget": "micros", "deadline": "seconds"}
"""How an attempt fails that was given too little, and of what."""


class Doomed(Exception):
    """The task ends; the message says why, `state` how, `step` which step stood in the way."""

    def __init__(self, reason: str, state: State = "failed", step: str = "") -> None:
        super().__init__(reason)
        self.state, self.step = state, step


class Exhausted(Doomed):
    """A planned step has used up its attempts: another plan may help."""


def next_order(task: Task, crew: Crew, want: Want, step: Step | None) -> Order | None:
    """The order that this step needs now, if any. Raises `Doomed` when its attempts are used up."""
    if step is None or step.order is None:
        return order_for(task, crew, want, None)
    if step.role != want.contract.role:
        raise Doomed(f"step {step.id} belongs to role {step.role}; this supervisor's crew says {want.contract.role}")
    changed = stale(step, want, task)
    if step.status == "waiting":
        return _after_gate(task, crew, want, step, changed)
    if step.status == "done":
        failed = failed_verdict(task, step.id)
        if changed:
            return _anew(task, crew, want, step)
        if failed is None:
            return _after_denial(task, crew, want, step)
        return _after_verdict(task, crew, want, step, *failed)
    if step.status == "released" and step.why not in ("deadline", "replaced"):
        if step.order.recoveries + 1 > RECOVERIES:
            text = f"step {step.id} was lost with its worker {RECOVERIES + 1} times; last: {joined(step)}"
            raise Doomed(text, "dead", step.id)
        if changed and step.doubt is not None:
            text = f"in doubt: call {step.doubt.call} ({step.doubt.tool}) of step {step.id} may have had its effect"
            raise Doomed(text, step=step.id)
        resumes = 0 if changed else step.order.resumes or step.attempt
        return order_for(task, crew, want, step, recoveries=step.order.recoveries + 1, resumes=resumes)
    if changed or step.why == "replaced":
        return _anew(task, crew, want, step)
    failure = step.failure
    if failure is not None and failure.why == "conflict" and failure.conflict:
        return _redo(task, crew, _in_order(task, failure.conflict), Feedback(step.attempt, "conflict", failure.reason))
    if failure is not None and failure.why == "in_doubt":
        raise Doomed(f"step {step.id}: {failure.reason}", step=step.id)
    if failure is not None and not failure.retryable:
        raise Exhausted(f"step {step.id} failed: {failure.reason}", step=step.id)
    if failure is not None and _had_a_rest(step, failure.why):
        raise Doomed(f"step {step.id} had only what was left of a budget: {failure.reason}", "out_of_budget", step.id)
    reason = "refused" if step.status == "refused" else "failed"
    return _retry(task, crew, want, step, Feedback(step.attempt, reason, bounded(joined(step))))  # type: ignore[arg-type]


def _had_a_rest(step: Step, why: str) -> bool:
    """Whether the attempt failed for want of what a budget had cut, so that another one would have less still."""
    assert step.order is not None
    more, of = step.order.more, SCARCE.get(why)
    return more is not None and of is not None and getattr(step.allotment, of) != getattr(more, of)


def _anew(task: Task, crew: Crew, want: Want, step: Step) -> Order:
    """Other work under the same name: its attempts and what was said about them are not the new one's."""
    assert step.order is not None
    if step.order.goal == want.goal and want.revision is None:
        return order_for(task, crew, want, step)
    return order_for(task, crew, want, step, tries=0, recoveries=0, forget=True)


def _after_gate(task: Task, crew: Crew, want: Want, step: Step, changed: bool) -> Order | None:
    """A step that waits goes on once people have decided; what they decided is in its order."""
    gate = task.gates[step.gate]
    if changed:
        return _anew(task, crew, want, step)
    if gate.decision is None:
        return None
    assert step.order is not None
    return order_for(task, crew, want, step, resumes=step.order.resumes or step.attempt)


def _after_denial(task: Task, crew: Crew, want: Want, step: Step) -> Order | None:
    """What people denied is made again; what they did not decide in time ends the task, without being a denial."""
    for artifact in step.results if task.spec.approve else ():
        gate = task.gates.get(_gates.approval_of(artifact.ref))
        outcome = gate.decision.outcome if gate is not None and gate.decision is not None else ""
        if gate is None or artifact.ref.kind not in task.spec.approve:
            continue
        if outcome == "expired":
            raise Doomed(
                f"nobody decided on the {artifact.ref.kind} of step {step.id} in time (no denial)", step=step.id
            )
        if outcome == "denied":
            feedback = Feedback(step.attempt, "denied", bounded(_gates.told(gate)), artifact.ref.digest)
            return _mended(task, crew, want, step, feedback)
    return None


def _after_verdict(task: Task, crew: Crew, want: Want, step: Step, judged: Artifact, verdict: Verdict) -> Order | None:
    """A failed verdict sends its critique to whoever can mend it."""
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
    return _mended(task, crew, want, step, Feedback(step.attempt, "verdict", bounded(critique[1]), critique[0]))


def _mended(task: Task, crew: Crew, want: Want, step: Step, feedback: Feedback) -> Order | None:
    """What did not pass is made again: by the step's own role, or, for the merged result, by the step that is to blame,
    on top of all others."""
    if want.step != INTEGRATE:
        return _retry(task, crew, want, step, feedback)
    plan = effective_plan(task)
    makers = patch_steps(task, plan) if plan else ()
    if not makers or plan is None:
        raise Doomed(f"the result did not pass and no step made a patch that could be mended: {feedback.text}")
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
        raise Doomed(f"cannot be merged: {feedback.text}")
    planned = next(s for s in plan.steps if s.id == names[-1])
    onto = replace(planned, needs=tuple(dict.fromkeys((*planned.needs, *names[:-1]))))
    changed = Plan(tuple(onto if s.id == onto.id else s for s in plan.steps))
    want, step = want_of(task, crew, changed, onto), task.steps[onto.id]
    return _retry(task, crew, want, step, feedback)


def _retry(task: Task, crew: Crew, want: Want, step: Step, feedback: Feedback) -> Order:
    assert step.order is not None
    tries = step.order.tries + 1
    if tries >= task.spec.attempts:
        state: State = "refused" if want.step == PLAN and feedback.reason == "refused" else "failed"
        raise Exhausted(f"step {step.id} did not succeed in {tries} attempts; last: {feedback.text}", state, step.id)
    return order_for(task, crew, want, step, feedback=feedback, tries=tries)


def order_for(
    task: Task,
    crew: Crew,
    want: Want,
    step: Step | None,
    *,
    feedback: Feedback | None = None,
    tries: int | None = None,
    recoveries: int | None = None,
    resumes: int = 0,
    forget: bool = False,
) -> Order:
    contract, last = want.contract, step.order if step else None
    kept = (*(last.feedback if last and not forget else ()), *((feedback,) if feedback else ()))[-FEEDBACK_KEPT:]
    begun = resumes or (step.attempt if step else 0) + 1
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
            facts=tuple(task.facts),
            decided=_gates.decided(task, want.step, begun) if resumes else (),
            revision=want.revision or (last.revision if last and want.step == PLAN else None),
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


def joined(step: Step) -> str:
    return "; ".join(step.reasons) or step.status


def bounded(text: str) -> str:
    return text if len(text) <= FEEDBACK_CHARS else text[:FEEDBACK_CHARS] + " …"
