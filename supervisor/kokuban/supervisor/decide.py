"""What the leader decides about one task: a pure function of its state (DESIGN 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from kokuban.blackboard.core import Board, Step, Task
from kokuban.schemas import Ending, Final, KindRef, Released, Revoked
from kokuban.schemas.contracts import Crew
from kokuban.schemas.records import State
from kokuban.supervisor import _gates
from kokuban.supervisor._budget import Promised, Short, carve, grant, lineage
from kokuban.supervisor._commands import Allow, Ask, Begin, Command, End, Offer, Order, Release, Revoke
from kokuban.supervisor._orders import Doomed, Exhausted, bounded, joined, next_order, order_for
from kokuban.supervisor._wants import (
    INTEGRATE,
    PLAN,
    Want,
    effective_plan,
    known_steps,
    replans_left,
    revised,
    wanted,
)

GRACE_SECONDS = 30
IDLE_SECONDS = 30 * 86_400
"""How long a task may stand without a record: for a worker that nobody runs, for a person that never answers."""


class Decided(NamedTuple):
    """Commands to carry out now, and what could run as soon as there is room."""

    commands: list[Command]
    offers: list[Offer]


def decide(
    board: Board, task: Task, crew: Crew, now: float, promised: Promised | None = None, impossible: str = ""
) -> Decided:
    """What the task's state calls for. `now` is the server's time in seconds, `promised` what orders that are not
    folded yet may spend, `impossible` why an order of this task can never be written. The same arguments give the same
    decisions."""
    if task.final is not None:
        return Decided([], [])
    sealed = next((step for step in task.steps.values() if step.status == "revoked"), None)
    try:
        if task.ending is not None:  # begun, perhaps by an earlier leader: it is carried through
            raise Doomed(task.ending.reason, task.ending.state, task.ending.step or "")
        if impossible:
            raise Doomed(impossible)
        if sealed is not None:  # the first release sealed without a word before
            raise Doomed(joined(sealed))
        _ends_from_outside(board, task, now)
        if _blocked(board, task):
            return Decided([], [])
        return _decide(board, task, crew, now, promised or {})
    except Doomed as doom:
        return Decided(_ending(task, doom), [])


def _ends_from_outside(board: Board, task: Task, now: float) -> None:
    """What ends a task whatever its work has come to."""
    if task.cancel is not None:
        raise Doomed(f"cancelled: {task.cancel}", "cancelled")
    if task.deadline is not None and now >= task.deadline:
        raise Doomed(f"not done within its {task.spec.deadline_seconds} s", "deadline")
    if now - task.last_time > IDLE_SECONDS:
        raise Doomed(f"nothing has happened for {IDLE_SECONDS // 86_400} days", "dead")
    if not task.admissible:
        raise Doomed("the store was above its high-water mark: no new task was taken", "refused")
    if task.parent is not None:
        parent = board.tasks.get(task.parent)
        if parent is None or parent.spec_seq > task.spec_seq:
            raise Doomed(f"its parent, task {task.parent}, was not on the board before it", "refused")
        if parent.final is not None and parent.final_seq < task.spec_seq:
            raise Doomed(f"its parent, task {task.parent}, had ended before it was submitted", "refused")
        for above in lineage(board, parent):
            if above.cancel is not None:
                raise Doomed(f"cancelled with task {above.id} above it: {above.cancel}", "cancelled")
            end = above.final or above.ending
            if end is not None and end.state != "done":
                state: State = "cancelled" if end.state == "cancelled" else "dependency_failed"
                raise Doomed(f"task {above.id} above it has ended: {end.state}", state)
    for earlier in task.spec.after:
        needed = board.tasks.get(earlier)
        if needed is None or needed.spec_seq >= task.spec_seq:  # a later one could wait for this one
            raise Doomed(f"after: there was no task {earlier!r} to wait for", "refused")
        end = needed.final or needed.ending
        if end is not None and end.state != "done":
            raise Doomed(f"task {earlier}, which it follows, has ended: {end.state}", "dependency_failed")


def next_instant(task: Task) -> float | None:
    """The next instant of the server's clock at which time alone changes what the task calls for."""
    instants = [gate.time + gate.gate.expires_seconds for gate in task.gates.values()
                if gate.decision is None and gate.gate.expires_seconds is not None]  # fmt: skip
    return min([*instants, *([] if task.deadline is None else [task.deadline])], default=None)


def _blocked(board: Board, task: Task) -> bool:
    return any(board.tasks[earlier].final is None for earlier in task.spec.after)


def _decide(board: Board, task: Task, crew: Crew, now: float, promised: Promised) -> Decided:
    plan = effective_plan(task)
    unknown = sorted({step.role for step in plan.steps} - crew.keys()) if plan else []
    if unknown:
        raise Doomed(f"the plan names roles that this crew does not have: {', '.join(unknown)}", "refused")
    goal = wanted(task, crew)
    _refuse_doubt(task)
    if goal.complete:
        left = [step for step in task.steps.values() if step.running]
        return Decided([_gone(step) for step in left] or [End(_proven(task))], [])
    commands: list[Command] = list(_gates.decisions(task, now, known_steps(task, crew)))
    commands += [Ask(role, _gates.about(task, ref)) for role, ref in goal.asks]
    commands += [command for step in task.steps.values() if step.running for command in _overdue(step, now)]
    answers = list(_answers(board, task, now, promised))
    promised = {**promised, **{(task.id, answer.step): answer.allotment for answer in answers}}
    commands += answers
    if plan is not None:
        commands += _replaced(task, known_steps(task, crew))
    orders: dict[str, tuple[Order, Want]] = {}
    for want in goal.steps:
        step = task.steps.get(want.step)
        if step is not None and step.running:
            continue
        order = _order_or_plan(task, crew, want, step)
        if order is not None and not _is_running(task, order.step):
            orders.setdefault(order.step, (order, want))
    offers = [_offer(board, task, crew, order, position) for position, (order, _) in enumerate(orders.values())]
    for offer in offers:
        short = fitted(board, task, crew, offer, promised)
        if isinstance(short, Short) and short.final:
            raise Doomed(f"step {offer.order.step} cannot begin: {short}", "out_of_budget", offer.order.step)
    return Decided(commands, offers)


def fitted(board: Board, task: Task, crew: Crew, offer: Offer, promised: Promised) -> Order | Short:
    """The offer's order with an allotment that fits every budget at this moment."""
    order = offer.order
    step, model = task.steps.get(order.step), crew[order.role].model
    body = carve(board, task, order.order, step, promised, asks_model=model)
    return body if isinstance(body, Short) else order._replace(order=body)


def _offer(board: Board, task: Task, crew: Crew, order: Order, position: int) -> Offer:
    step = task.steps.get(order.step)
    names = [step.id for step in task.plan.steps] if task.plan else []
    place = names.index(order.step) if order.step in names else position
    latest = {kind: max(versions) for kind, versions in board.kinds.items() if versions}
    kinds = tuple(KindRef(kind, latest[kind]) for kind in order.order.produces if kind in latest)
    body = replace(order.order, kinds=kinds) if kinds else order.order
    return Offer(task.id, order._replace(order=body), place, step is not None and step.status == "done")


def _is_running(task: Task, name: str) -> bool:
    return name in task.steps and task.steps[name].running


def _order_or_plan(task: Task, crew: Crew, want: Want, step: Step | None) -> Order | None:
    """The order that this step needs, or the planner's when it has used up its attempts and another plan may help."""
    try:
        return next_order(task, crew, want, step)
    except Exhausted as doom:
        if want.step == PLAN or not replans_left(task):
            raise
        again = revised(task, crew, str(doom), another=True)
        return order_for(task, crew, again, task.steps[PLAN], tries=0, recoveries=0)


def _answers(board: Board, task: Task, now: float, promised: Promised) -> Iterable[Allow]:
    """What owners that asked for more get: each answer counts for the next one."""
    given = dict(promised)
    for step in task.steps.values():
        if step.status == "claimed" and step.asks is not None and not _overdue(step, now):
            given[(task.id, step.id)] = grant(board, task, step, given)
            yield Allow(step.id, step.role, step.fence, given[(task.id, step.id)])


def _replaced(task: Task, known: set[str]) -> Iterable[Command]:
    """Steps that the plan made again does not call for any more."""
    for step in task.steps.values():
        if step.running and step.id not in known:
            yield _gone(step)


def _gone(step: Step) -> Release:
    return Release(step.id, step.role, step.reg, Released("replaced", "nothing calls for this step any more"))


def _refuse_doubt(task: Task) -> None:
    """An effect that may have happened is not made again by new work: a person has to look (invariant 5). Work that is
    taken up again finds it in its journal."""
    for step in task.steps.values():
        resumed = step.running or (step.status == "released" and step.why in ("silent", "lost", "moved"))
        if step.doubt is not None and not resumed:
            raise Doomed(
                f"in doubt: call {step.doubt.call} ({step.doubt.tool}) of step {step.id} was begun and nobody knows "
                "whether it had its effect; look there before you submit this again", step=step.id
            )  # fmt: skip


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


def _ending(task: Task, doom: Doomed) -> list[Command]:
    """Say that it ends; seal what is unfinished; once all is sealed, end."""
    reason = bounded(str(doom))
    unfinished = [step for step in task.steps.values() if step.running or step.status == "waiting"]
    if unfinished and task.ending is None:
        return [Begin(Ending(doom.state, reason, doom.step or None))]
    if unfinished:
        return [Revoke(step.id, step.role, step.reg, Revoked(reason[:1_900])) for step in unfinished]
    planned = [step.id for step in task.plan.steps] if task.plan else []
    over = ("done", "failed", "refused")
    undone = (name for name in planned if name not in task.steps or task.steps[name].status not in over)
    blocked = tuple(name for name in undone if name != doom.step)
    return [End(Final(doom.state, reason, usage=task.usage, blocked=blocked))]


def _proven(task: Task) -> Final:
    """The end of a task whose deliverable is covered by a passing verdict (invariant 9)."""
    deliverable = next(a for a in task.steps[INTEGRATE].results if a.ref.kind == "deliverable")
    judged, verdict = task.verdicts[deliverable.ref.digest]
    reason = (
        "every check passed on the merged result" if verdict.checked else "no check was given: the result is unchecked"
    )
    return Final("done", reason, verdict.checked, deliverable.ref, judged.ref, task.usage)
