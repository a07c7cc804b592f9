"""Gates: what people are asked, when their word decides, and how it reaches the work that waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from kokuban.blackboard.core import GateState, Task
from kokuban.schemas import Decided, Decision, Gate, Ref
from kokuban.schemas.records import Outcome
from kokuban.supervisor._commands import Decide
from kokuban.supervisor._wants import approval_of

__all__ = ["about", "approval_of", "decided", "decisions", "told"]


def about(task: Task, ref: Ref) -> Gate:
    """The gate that stands before an artifact."""
    asks = f"May the {ref.kind} {ref.name!r} of step {ref.step} be used? Its digest is {ref.digest}."
    spec = task.spec
    return Gate(
        approval_of(ref), "artifact", asks, subject=ref, need=spec.votes, expires_seconds=spec.approval_seconds
    )  # fmt: skip


def decisions(task: Task, now: float, known: set[str]) -> Iterator[Decide]:
    """The gates that are decided by now: by votes, by time, or because nobody needs them any more."""
    for gate in task.gates.values():
        outcome = _outcome(gate, now, _is_needed(task, gate, known)) if gate.decision is None else None
        if outcome is not None:
            by = tuple(person for person, vote in gate.votes.items() if _counts(vote.vote, outcome))
            text = "; ".join(gate.votes[person].text for person in by if gate.votes[person].text)[:16_000]
            yield Decide(gate.role, Decision(gate.gate.id, outcome, gate.bound, by, text))


def _is_needed(task: Task, gate: GateState, known: set[str]) -> bool:
    """Whether the work that asked still waits for it: the plan may be without the step, or the step be other work."""
    step = task.steps.get(gate.step)
    waits = step is not None and step.id in known and (step.status, step.gate) == ("waiting", gate.gate.id)
    return waits or not gate.step


def _outcome(gate: GateState, now: float, needed: bool) -> Outcome | None:
    """One denial denies; `need` approvals approve; the first answer answers."""
    votes = [vote.vote for vote in gate.votes.values()]
    if "deny" in votes:
        return "denied"
    if "answer" in votes:
        return "answered"
    if votes.count("approve") >= gate.gate.need:
        return "approved"
    if not needed:
        return "withdrawn"
    if gate.gate.expires_seconds is not None and now >= gate.time + gate.gate.expires_seconds:
        return "expired"
    return None


def _counts(vote: str, outcome: Outcome) -> bool:
    return {"denied": "deny", "approved": "approve", "answered": "answer"}.get(outcome) == vote


def decided(task: Task, step: str, begun: int) -> tuple[Decided, ...]:
    """How the gates of this work ended: those that its attempts since `begun` asked for."""
    mine = [gate for gate in task.gates.values() if gate.step == step and gate.begun == begun]
    return tuple(
        Decided(gate.gate.id, d.outcome, gate.bound, d.text, d.by) for gate in mine if (d := gate.decision) is not None
    )


def told(gate: GateState) -> str:
    """A denial in words, for whoever makes it again."""
    assert gate.decision is not None
    who = ", ".join(gate.decision.by)
    return f"denied by {who}: {gate.decision.text or 'no reason was given'}"
