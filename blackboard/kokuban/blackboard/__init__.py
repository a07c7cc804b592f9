"""The blackboard: a pure core, NATS under it, and the typed client over it."""

from kokuban.blackboard._events import Event
from kokuban.blackboard.client import Client, InvalidTask, KeyInUse, NoSuchTask, Outcome
from kokuban.blackboard.wire import BusError, CannotConnect, NoAnswer, Refused
from kokuban.blackboard.workspace import WorkspaceError

__all__ = [
    "BusError", "CannotConnect", "Client", "Event", "InvalidTask", "KeyInUse", "NoAnswer", "NoSuchTask", "Outcome",
    "Refused", "WorkspaceError",
]  # fmt: skip
