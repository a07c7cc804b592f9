"""Checking a plan: a DAG of known roles, iteratively, with the offending ids named."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kokuban.schemas import MAX_STEPS, Plan

RESERVED = ("plan", "integrate")
VERIFY = "verify-"
TRIGGERED = "on-"
MAX_ID = 64 - len(VERIFY)


def problems_of_plan(plan: Plan, roles: Collection[str], earlier: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Why this plan cannot run: empty when it can. Each reason names the ids, so that a planner can mend it. `earlier`
    are the steps of the plan that this one replaces, with their roles: an id keeps its role."""
    found: list[str] = []
    ids = [step.id for step in plan.steps]
    if len(ids) > MAX_STEPS:
        found.append(f"steps: {len(ids)} steps are too many; at most {MAX_STEPS}")
    twice = sorted({i for i in ids if ids.count(i) > 1}) if len(ids) <= MAX_STEPS else []
    if twice:
        found.append(f"id: used more than once: {', '.join(twice)}")
    known = set(ids)
    for step in plan.steps[:MAX_STEPS]:
        if step.id in RESERVED or step.id.startswith((VERIFY, TRIGGERED)) or len(step.id) > MAX_ID:
            found.append(
                f"id: {step.id!r} cannot be used: not plan, integrate, {VERIFY}… or {TRIGGERED}…, "
                f"at most {MAX_ID} characters"
            )
        if earlier.get(step.id, step.role) != step.role:
            found.append(f"id: {step.id!r} was a step of {earlier[step.id]!r}; a step of another role needs a new id")
        if step.role not in roles:
            found.append(f"role: step {step.id!r} names {step.role!r}; use one of {', '.join(sorted(roles))}")
        missing = [need for need in step.needs if need not in known]
        if missing:
            found.append(f"needs: step {step.id!r} needs {', '.join(missing)}, which no step is called")
    if not found:
        left = _left_over(plan)
        if left:
            found.append(f"needs: these steps wait for each other in a circle: {', '.join(left[:20])}")
    return tuple(found)


def order_of(plan: Plan) -> tuple[str, ...]:
    """Ids in an order in which every step follows what it needs; among the free ones, the plan's own order."""
    done: set[str] = set()
    result: list[str] = []
    waiting = list(plan.steps)
    while waiting:
        ready = [step for step in waiting if all(need in done for need in step.needs)]
        if not ready:
            break
        result += [step.id for step in ready]
        done.update(step.id for step in ready)
        waiting = [step for step in waiting if step.id not in done]
    return tuple(result)


def _left_over(plan: Plan) -> list[str]:
    """Members of cycles: what remains after taking away, again and again, steps that wait for nothing or that nothing
    waits for."""
    rest = {step.id: set(step.needs) for step in plan.steps}
    while True:
        needed = set().union(*rest.values()) if rest else set()
        gone = {i for i, needs in rest.items() if not (needs & rest.keys()) or i not in needed}
        if not gone:
            return list(rest)
        rest = {i: needs - gone for i, needs in rest.items() if i not in gone}
