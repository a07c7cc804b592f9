"""The blackboard: a pure core, NATS under it, and the typed client over it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kokuban.blackboard._answers import Approval, Ended, Kin, Lineage, NotVoted, Told, Voted
    from kokuban.blackboard._events import Event
    from kokuban.blackboard.client import (
        Client,
        InvalidRequest,
        InvalidTask,
        KeyInUse,
        NoSuchArtifact,
        NoSuchGate,
        NoSuchTask,
        Outcome,
        StoreFull,
    )
    from kokuban.blackboard.wire import BusError, CannotConnect, NoAnswer, Refused
    from kokuban.blackboard.workspace import WorkspaceError

__all__ = [
    "Approval", "BusError", "CannotConnect", "Client", "Ended", "Event", "InvalidRequest", "InvalidTask", "KeyInUse",
    "Kin", "Lineage", "NoAnswer", "NoSuchArtifact", "NoSuchGate", "NoSuchTask", "NotVoted", "Outcome", "Refused",
    "StoreFull", "Told", "Voted", "WorkspaceError",
]  # fmt: skip

_HOMES = {
    "Event": "_events", "BusError": "wire", "CannotConnect": "wire", "NoAnswer": "wire", "Refused": "wire",
    "WorkspaceError": "workspace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for, then: `kokuban.blackboard.workspace` alone needs no NATS."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'client')}"), name)
