"""The supervisor: decides about tasks. It asks no model and keeps no process alive."""

from kokuban.supervisor.decide import Command, End, Limits, Order, Release, Revoke, decide
from kokuban.supervisor.service import Supervisor

__all__ = ["Command", "End", "Limits", "Order", "Release", "Revoke", "Supervisor", "decide"]
