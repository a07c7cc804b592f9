"""What a task wants: the steps that its state calls for now, each with the inputs that it should be done with.

A step comes from the plan, from an artifact that triggers a role, or from the end of all other work. Nobody's code
names another role's step: roles are told apart by their contracts alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from kokuban.blackboard.core import Artifact, GateState, Step, Task, order_of
from kokuban.blackboard.core.dag import RESERVED, TRIGGERED, VERIFY
from kokuban.schemas import Patch, Plan, PlanStep, Ref, Revision, Verdict, digest
from kokuban.schemas.contracts import Contract, Crew
from kokuban.schemas.kinds import decode_artifact

PLAN, INTEGRATE = RESERVED
PATCHES = ("patch",)
RECOVERIES = 5
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Want:
    """A step that should be done with exactly these inputs. `judges` are the artifacts that it owes a verdict on;
    `scope` is `whole` when all of the task's work is in its tree."""

    step: str
    contract: Contract
    goal: str
    needs: tuple[str, ...] = ()
    inputs: tuple[Ref, ...] = ()
    judges: tuple[str, ...] = ()
    scope: Literal["part", "whole"] = "whole"
    revision: Revision | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """`steps` in an order in which each follows its needs; only those whose turn has come. `complete` when all is done,
    judged, passed and approved. `asks` are artifacts that want people's approval, each with the role that made it."""

    steps: tuple[Want, ...]
    complete: bool = False
    asks: tuple[tuple[str, Ref], ...] = ()


def wanted(task: Task, crew: Crew) -> Wanted:
    """Work out, from what is admitted, which steps should be done now."""
    first = Want(PLAN, _one(crew, "start"), task.spec.goal)
    plan = effective_plan(task)
    if plan is None:
        return Wanted((first,))
    if stale(task.steps[PLAN], first, task):
        return Wanted((revised(task, crew, "People have added facts; say whether the plan still fits them."),))
    found, asks, settled = [first], list[tuple[str, Ref]](), set[str]()
    if not _approved(task, first, asks):
        return Wanted((first,), asks=tuple(asks))
    steps, before, given = {step.id: step for step in plan.steps}, _before(plan), _Given(task)
    for name, earlier in before.items():
        if not settled.issuperset(steps[name].needs):
            continue
        want = _want(given, crew, plan, steps[name], earlier)
        if given_up(task, steps[name], want) or _add(task, crew, want, earlier, found, asks, given):
            settled.add(name)
    if len(settled) < len(plan.steps):
        return Wanted(tuple(found), asks=tuple(asks))
    end, everything = _one(crew, "end"), tuple(before)
    last = Want(INTEGRATE, end, task.spec.goal, everything, given.by(everything, end.consumes))
    complete = _add(task, crew, last, everything, found, asks, given)
    return Wanted(tuple(found), complete, tuple(asks))


def revised(task: Task, crew: Crew, reason: str, *, another: bool = False) -> Want:
    """The planner's step, to make the plan in force again. `another` counts against the task's replans."""
    step = task.steps[PLAN]
    assert step.order is not None
    assert task.plan is not None
    number = (step.order.revision.number if step.order.revision else 0) + another
    plan = next((a.ref for a in step.results if a.ref.kind == "plan"), None)
    kept = tuple(s.id for s in task.plan.steps if s.id in task.steps and task.steps[s.id].status == "done")
    return Want(PLAN, _one(crew, "start"), task.spec.goal, revision=Revision(number, reason, plan, kept))


def replans_left(task: Task) -> bool:
    """Whether the plan may be made again for a step that has used up its attempts."""
    order = task.steps[PLAN].order if PLAN in task.steps else None
    used = order.revision.number if order is not None and order.revision is not None else 0
    return task.plan is not None and used < task.spec.replans


def known_steps(task: Task, crew: Crew) -> set[str]:
    """Every step that the plan in force can call for: what is none of these has been replaced."""
    planned = [step.id for step in task.plan.steps] if task.plan else []
    names = {PLAN, INTEGRATE, *planned}
    return names | {triggered(c, name) for c in crew.values() if c.triggers for name in (*planned, INTEGRATE)}


def triggered(contract: Contract, step: str) -> str:
    """The name of the step that an artifact of `step` triggers."""
    if "verdict" in contract.produces:
        return f"{VERIFY}{step}"
    name = f"{TRIGGERED}{contract.role}-{step}"
    return name if len(name) <= 64 else f"{name[:47]}-{digest(name.encode())[7:23]}"


def given_up(task: Task, planned: PlanStep, want: Want) -> bool:
    """Whether an optional step has used up its attempts: the others go on without it."""
    step = task.steps.get(planned.id)
    if not planned.optional or step is None or step.order is None or stale(step, want, task):
        return False
    last = step.order.tries + 1 >= task.spec.attempts
    if step.status == "done":
        return last and failed_verdict(task, step.id) is not None
    if step.status == "released":
        return last if step.why == "deadline" else step.why != "replaced" and step.order.recoveries >= RECOVERIES
    return step.status in ("failed", "refused") and (last or (step.failure is not None and not step.failure.retryable))


def want_of(task: Task, crew: Crew, plan: Plan, step: PlanStep) -> Want:
    """A planned step, with what the steps before it have produced."""
    return _want(_Given(task), crew, plan, step, _before(plan)[step.id])


def _want(given: _Given, crew: Crew, plan: Plan, step: PlanStep, before: tuple[str, ...]) -> Want:
    contract, reached = crew[step.role], {step.id, *before}
    part = any(s.id not in reached and "patch" in crew[s.role].produces for s in plan.steps)
    inputs = given.by(before, contract.consumes)
    return Want(step.id, contract, step.goal, step.needs, inputs, (), "part" if part else "whole")


def _add(
    task: Task, crew: Crew, want: Want, before: tuple[str, ...], found: list[Want], asks: list[tuple[str, Ref]],
    given: _Given,
) -> bool:  # fmt: skip
    """Add a step and, once it is done, the steps that its artifacts trigger. True when all is done, passed, approved.
    What did not pass is about to be made again: nothing is triggered by it any more."""
    found.append(want)
    if not is_current(task, want):
        return False
    results = task.steps[want.step].results
    if failed_verdict(task, want.step) is not None:
        return False
    settled = True
    for contract in crew.values():
        triggers = contract.triggers
        triggering = tuple(a.ref for a in results if a.ref.kind in triggers) if triggers else ()
        if triggering:
            context = given.by(before, PATCHES) if "patch" in contract.consumes else ()
            judging = "verdict" in contract.produces
            judges = tuple(ref.digest for ref in triggering) if judging else ()
            goal = f"Judge what step {want.step} produced." if judging else f"{contract.summary} (after {want.step})"
            name, inputs = triggered(contract, want.step), context + triggering
            after = Want(name, contract, goal, (want.step,), inputs, judges, want.scope)
            found.append(after)
            settled = settled and is_current(task, after) and all(digest in task.verdicts for digest in judges)
            settled = settled and _approved(task, after, asks)
    return settled and _approved(task, want, asks)


def _approved(task: Task, want: Want, asks: list[tuple[str, Ref]]) -> bool:
    """Whether people have approved what the task wants them to see; what they were not asked yet is added to `asks`."""
    if not task.spec.approve:
        return True
    approved = True
    for artifact in task.steps[want.step].results:
        if artifact.ref.kind in task.spec.approve:
            gate = task.gates.get(approval_of(artifact.ref))
            if gate is None:
                asks.append((want.contract.role, artifact.ref))
            approved = approved and gate is not None and outcome_of(gate) == "approved"
    return approved


def approval_of(ref: Ref) -> str:
    """The name of the gate that stands before an artifact."""
    return f"approve-{ref.digest.removeprefix('sha256:')[:32]}"


def outcome_of(gate: GateState) -> str:
    """How a gate ended, '' while it is open."""
    return gate.decision.outcome if gate.decision else ""


def is_current(task: Task, want: Want) -> bool:
    """Done, and no input has been replaced since."""
    step = task.steps.get(want.step)
    return step is not None and step.status == "done" and not stale(step, want, task)


def stale(step: Step, want: Want, task: Task) -> bool:
    """Whether the step's last order gave it other inputs or another goal, or a plan was made before facts came in. An
    input made again with the same digest is the same."""
    if step.order is None or step.order.goal != want.goal:
        return True
    if want.step == PLAN and len(step.order.facts) < len(task.facts):
        return True
    return not _same(step.order.inputs, want.inputs)


def failed_verdict(task: Task, name: str) -> tuple[Artifact, Verdict] | None:
    """The first verdict against something that the step has made, with the artifact that carries the verdict."""
    step = task.steps.get(name)
    for artifact in step.results if step is not None and step.status == "done" else ():
        found = task.verdicts.get(artifact.ref.digest)
        if found is not None and not found[1].passed:
            return found
    return None


def _same(one: tuple[Ref, ...], other: tuple[Ref, ...]) -> bool:
    """Whether these are the same artifacts; one that was made again has another sequence and counts as the same."""
    return one == other or _identities(one) == _identities(other)


def _identities(refs: tuple[Ref, ...]) -> list[tuple[str, ...]]:
    return [(ref.step, ref.kind, ref.name, ref.digest) for ref in refs]


def effective_plan(task: Task) -> Plan | None:
    """The admitted plan, with the needs that later orders added (work redone on top of other work), unless a plan made
    again since cannot have them: it may be without the other step, or have it the other way round."""
    if task.plan is None or PLAN not in task.steps or task.steps[PLAN].status != "done":
        return None
    plan = Plan(tuple(PlanStep(s.id, s.role, s.goal, _needs(task, s), s.optional) for s in task.plan.steps))
    return plan if len(order_of(plan)) == len(plan.steps) else task.plan


def patch_steps(task: Task, plan: Plan) -> tuple[str, ...]:
    """The plan's steps whose patches count now, in order."""
    return tuple(name for name in order_of(plan) if any(a.ref.kind == "patch" for a in _results(task, name)))


def culprit(task: Task, plan: Plan, names: Sequence[str], said: str) -> str:
    """Which of these steps to send back for what a check said: of those that no other builds on, the one most of whose
    changed files are named in it; the last one when that does not tell them apart."""
    before = _before(plan)
    free = [name for name in names if not any(name in before[other] for other in names)]
    words = set(_WORD.findall(said.lower()))
    return max(free, key=lambda name: (_named(task, name, words), names.index(name)))


def _named(task: Task, name: str, words: set[str]) -> int:
    """How many of the files that a step's patches change are named: `word_count.py` by `test_word_count`, too."""
    patches = (decode_artifact("patch", a.body) for a in _results(task, name) if a.ref.kind == "patch")
    paths = {change.path for patch in patches if isinstance(patch, Patch) for change in patch.changes}
    stems = {path.rsplit("/", 1)[-1].split(".", 1)[0].lower() for path in paths}
    return sum(words.issuperset(_WORD.findall(stem)) for stem in stems)


def _needs(task: Task, planned: PlanStep) -> tuple[str, ...]:
    step = task.steps.get(planned.id)
    same = step is not None and step.order is not None and step.order.goal == planned.goal
    later = step.order.needs if same and step is not None and step.order is not None else ()
    return tuple(dict.fromkeys((*planned.needs, *later)))


@functools.lru_cache(maxsize=512)
def _before(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Each step, in order, with every step that it follows, directly or not, in order too."""
    order, needs = order_of(plan), {step.id: step.needs for step in plan.steps}
    found: dict[str, set[str]] = {}
    for name in order:
        found[name] = set(needs[name]).union(*(found[need] for need in needs[name]))
    return {name: tuple(earlier for earlier in order if earlier in found[name]) for name in order}


class _Given:
    """What the steps of one task have given, looked up once for each step and choice of kinds: in a long plan, every
    step is asked for what all steps before it gave."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._refs: dict[tuple[str, tuple[str, ...]], tuple[Ref, ...]] = {}

    def by(self, names: Iterable[str], kinds: tuple[str, ...]) -> tuple[Ref, ...]:
        """What these steps produced that counts now and is of these kinds, in their order."""
        return tuple(chain.from_iterable([self._by_one(name, kinds) for name in names])) if kinds else ()

    def _by_one(self, name: str, kinds: tuple[str, ...]) -> tuple[Ref, ...]:
        key = (name, kinds)
        found = self._refs.get(key)
        if found is None:
            found = self._refs[key] = tuple(a.ref for a in _results(self._task, name) if a.ref.kind in kinds)
        return found


def _results(task: Task, name: str) -> tuple[Artifact, ...]:
    """What a step produced that counts. Of an optional step, nothing that was judged and did not pass."""
    step = task.steps.get(name)
    if step is None or step.status != "done":
        return ()
    optional = task.plan is not None and name in _optional(task.plan)
    return () if optional and failed_verdict(task, name) is not None else step.results


@functools.lru_cache(maxsize=512)
def _optional(plan: Plan) -> frozenset[str]:
    return frozenset(step.id for step in plan.steps if step.optional)


def _one(crew: Crew, when: str) -> Contract:
    return next(contract for contract in crew.values() if contract.when == when)
