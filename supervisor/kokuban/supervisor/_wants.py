"""What a task wants: the steps that its state calls for now, each with the inputs that it should be done with.

A step comes from the plan, from an artifact that triggers a role, or from the end of all other work. Nobody's code
names another role's step: roles are told apart by their contracts alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kokuban.blackboard.core import Artifact, Step, Task, order_of
from kokuban.blackboard.core.dag import RESERVED, VERIFY
from kokuban.schemas import Patch, Plan, PlanStep, Ref, Verdict
from kokuban.schemas.contracts import Contract, Crew
from kokuban.schemas.kinds import decode_artifact

PLAN, INTEGRATE = RESERVED
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """`steps` in an order in which each follows its needs; only those whose turn has come. `complete` when all is done,
    judged and passed."""

    steps: tuple[Want, ...]
    complete: bool = False


def wanted(task: Task, crew: Crew) -> Wanted:
    """Work out, from what is admitted, which steps should be done now."""
    first = Want(PLAN, _one(crew, "start"), task.spec.goal)
    plan = effective_plan(task)
    if plan is None:
        return Wanted((first,))
    found, settled = [first], set[str]()
    steps, before = {step.id: step for step in plan.steps}, _before(plan)
    for name, earlier in before.items():
        if settled.issuperset(steps[name].needs) and _add(
            task, crew, _want(task, crew, plan, steps[name], earlier), earlier, found
        ):
            settled.add(name)
    if len(settled) < len(plan.steps):
        return Wanted(tuple(found))
    end, everything = _one(crew, "end"), tuple(before)
    last = Want(INTEGRATE, end, task.spec.goal, everything, _inputs(task, everything, end))
    complete = _add(task, crew, last, everything, found)
    return Wanted(tuple(found), complete)


def want_of(task: Task, crew: Crew, plan: Plan, step: PlanStep) -> Want:
    """A planned step, with what the steps before it have produced."""
    return _want(task, crew, plan, step, _before(plan)[step.id])


def _want(task: Task, crew: Crew, plan: Plan, step: PlanStep, before: tuple[str, ...]) -> Want:
    contract = crew[step.role]
    makers = {s.id for s in plan.steps if "patch" in crew[s.role].produces}
    scope: Literal["part", "whole"] = "whole" if makers <= {step.id, *before} else "part"
    return Want(step.id, contract, step.goal, step.needs, _inputs(task, before, contract), (), scope)


def _add(task: Task, crew: Crew, want: Want, before: tuple[str, ...], found: list[Want]) -> bool:
    """Add a step and, once it is done, the steps that its artifacts trigger. True when all is done and passed. What
    did not pass is about to be made again: nothing is triggered by it any more."""
    found.append(want)
    if not is_current(task, want):
        return False
    results = task.steps[want.step].results
    if failed_verdict(task, want.step) is not None:
        return False
    settled = True
    for contract in crew.values():
        triggering = tuple(a.ref for a in results if a.ref.kind in contract.triggers)
        if triggering:
            context = tuple(ref for ref in _inputs(task, before, contract) if ref.kind == "patch")
            judges = tuple(ref.digest for ref in triggering)
            goal = f"Judge what step {want.step} produced."
            name, inputs = f"{VERIFY}{want.step}", context + triggering
            judging = Want(name, contract, goal, (want.step,), inputs, judges, want.scope)
            found.append(judging)
            settled = settled and is_current(task, judging) and all(digest in task.verdicts for digest in judges)
    return settled


def is_current(task: Task, want: Want) -> bool:
    """Done, and no input has been replaced since."""
    step = task.steps.get(want.step)
    return step is not None and step.status == "done" and not stale(step, want)


def stale(step: Step, want: Want) -> bool:
    """Whether the step's last order gave it other inputs. An input made again with the same digest is the same."""
    return step.order is None or _identities(step.order.inputs) != _identities(want.inputs)


def failed_verdict(task: Task, name: str) -> tuple[Artifact, Verdict] | None:
    """The first verdict against something that the step has made, with the artifact that carries the verdict."""
    for artifact in _results(task, name):
        found = task.verdicts.get(artifact.ref.digest)
        if found is not None and not found[1].passed:
            return found
    return None


def _identities(refs: tuple[Ref, ...]) -> list[tuple[str, ...]]:
    return [(ref.step, ref.kind, ref.name, ref.digest) for ref in refs]


def effective_plan(task: Task) -> Plan | None:
    """The admitted plan, with the needs that later orders added (work redone on top of other work)."""
    if task.plan is None or PLAN not in task.steps or task.steps[PLAN].status != "done":
        return None
    return Plan(tuple(PlanStep(s.id, s.role, s.goal, _needs(task, s)) for s in task.plan.steps))


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
    later = step.order.needs if step is not None and step.order is not None else ()
    return tuple(dict.fromkeys((*planned.needs, *later)))


def _before(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Each step, in order, with every step that it follows, directly or not, in order too."""
    order, needs = order_of(plan), {step.id: step.needs for step in plan.steps}
    found: dict[str, set[str]] = {}
    for name in order:
        found[name] = set(needs[name]).union(*(found[need] for need in needs[name]))
    return {name: tuple(earlier for earlier in order if earlier in found[name]) for name in order}


def _inputs(task: Task, names: Iterable[str], contract: Contract) -> tuple[Ref, ...]:
    """What these steps produced that counts now and that the contract lets the role consume."""
    refs = (a.ref for name in names for a in _results(task, name))
    return tuple(dict.fromkeys(ref for ref in refs if ref.kind in contract.consumes))


def _results(task: Task, name: str) -> tuple[Artifact, ...]:
    step = task.steps.get(name)
    return step.results if step is not None and step.status == "done" else ()


def _one(crew: Crew, when: str) -> Contract:
    return next(contract for contract in crew.values() if contract.when == when)
