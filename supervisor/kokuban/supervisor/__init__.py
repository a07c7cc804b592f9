"""The supervisor: decides about tasks. It asks no model and keeps no process alive."""

from kokuban.supervisor._agenda import WEIGHTS, Agenda, rating
from kokuban.supervisor._archive import Retention
from kokuban.supervisor._commands import Allow, Ask, Begin, Command, Decide, End, Limits, Offer, Order, Release, Revoke
from kokuban.supervisor.decide import Decided, decide
from kokuban.supervisor.service import Supervisor

__all__ = [
    "WEIGHTS", "Agenda", "Allow", "Ask", "Begin", "Command", "Decide", "Decided", "End", "Limits", "Offer", "Order",
    "Release", "Retention", "Revoke", "Supervisor", "decide", "rating",
]  # fmt: skip
