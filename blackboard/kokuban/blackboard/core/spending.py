"""What was spent and what running work may still spend, in the dimensions of a budget."""

from __future__ import annotations

from kokuban.blackboard.core.state import Step
from kokuban.schemas import Usage

DIMENSIONS = ("tokens", "micros", "steps", "tool_calls", "seconds")


def spent_in(usage: Usage) -> dict[str, int]:
    """Usage in the dimensions of a budget: `steps` are model turns."""
    return {
        "tokens": usage.tokens, "micros": usage.micros, "steps": usage.model_calls, "tool_calls": usage.tool_calls,
        "seconds": usage.seconds,
    }  # fmt: skip


def reserved_by(step: Step) -> dict[str, int]:
    """What a running step's work may still spend, nothing for any other. Its time is booked when it ends: until then
    all of it is reserved."""
    if not step.running:
        return dict.fromkeys(DIMENSIONS, 0)
    allotment, now, begun = step.allotment, spent_in(step.usage), spent_in(step.begun)
    return {
        name: max(0, (getattr(allotment, name) or 0) - (0 if name == "seconds" else max(0, now[name] - begun[name])))
        for name in DIMENSIONS
    }
