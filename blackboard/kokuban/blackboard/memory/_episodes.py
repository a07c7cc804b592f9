"""What a task tried and what came of it, in few words, from its events: an episode to remember."""

from __future__ import annotations

from collections.abc import Iterable

from kokuban.blackboard._events import Event
from kokuban.schemas.memory import Proposal

KEY_CHARS = 160
LINE_CHARS = 400
MOST_FAILURES, MOST_CRITIQUES = 10, 5
"""How many of each are told: the latest."""


def episode(events: Iterable[Event], *, tenant: str, task: str, expires_seconds: int | None) -> Proposal:
    """Goal, outcome, what failed and why, what the critiques said; with the artifacts that this came from as sources.
    Raises `ValueError` while the task has not ended: what came of it is not known then."""
    goal = outcome = ""
    failures: list[str] = []
    critiques: list[str] = []
    sources: list[str] = []
    for event in events:
        where = f"step {event.step} ({event.role}), attempt {event.attempt}"
        if event.event == "submitted":
            goal = event.text
        elif event.event == "ended":
            outcome = event.text
        elif event.event in ("failed", "refused", "revoked"):
            failures.append(_line(f"{event.event.capitalize()}: {where}: {event.text}"))
        elif event.event == "artifact" and event.kind == "critique":
            critiques.append(_line(f"Critique of {where}: {event.artifact().text}"))
            sources.append(event.digest)
        elif event.event == "artifact" and event.kind == "deliverable":
            sources.append(event.digest)
    if not outcome:
        raise ValueError(f"memory: task {task} has not ended, so nothing can be learnt from it yet")
    told = [_line(f"Goal: {goal}"), _line(f"Outcome: {outcome}")]
    lines = [*told, *failures[-MOST_FAILURES:], *critiques[-MOST_CRITIQUES:]]
    return Proposal(
        tenant, "episode", " ".join(goal.split())[:KEY_CHARS] or task, "\n".join(lines), task, None,
        tuple(dict.fromkeys(sources))[-100:], expires_seconds=expires_seconds,
    )  # fmt: skip


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARS else text[:LINE_CHARS] + "…"
