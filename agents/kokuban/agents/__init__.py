"""The agents: a bounded loop, tools, models, and the worker that runs a role's steps as their owner."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kokuban.agents._gates import ask_person
    from kokuban.agents._output import Output
    from kokuban.agents._work import Role, StepFailed, Work
    from kokuban.agents.worker import Worker

__all__ = ["Output", "Role", "StepFailed", "Work", "Worker", "ask_person"]

_HOMES = {
    "Output": "_output", "Role": "_work", "StepFailed": "_work", "Work": "_work", "Worker": "worker",
    "ask_person": "_gates",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for, then: `kokuban.agents.models` alone needs no NATS."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
