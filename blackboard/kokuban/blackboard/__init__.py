"""The blackboard: a pure core, NATS under it, and the typed client over it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kokuban.blackboard._events import Event
    from kokuban.blackboard.client import Client, InvalidTask, KeyInUse, NoSuchTask, Outcome
    from kokuban.blackboard.wire import BusError, CannotConnect, NoAnswer, Refused
    from kokuban.blackboard.workspace import WorkspaceError

__all__ = [
    "BusError", "CannotConnect", "Client", "Event", "InvalidTask", "KeyInUse", "NoAnswer", "NoSuchTask", "Outcome",
    "Refused", "WorkspaceError",
]  # fmt: skip

_HOMES = {
    "Event": "_events", "Client": "client", "InvalidTask": "client", "KeyInUse": "client", "NoSuchTask": "client",
    "Outcome": "client", "BusError": "wire", "CannotConnect": "wire", "NoAnswer": "wire", "Refused": "wire",
    "WorkspaceError": "workspace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for, then: `kokuban.blackboard.workspace` alone needs no NATS."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
