"""What a leader may decide, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kokuban.schemas import Allotment, Decision, Ending, Final, Gate, Released, Revoked, WorkOrder


class Order(NamedTuple):
    """Offer the step to its role's workers."""

    step: str
    role: str
    attempt: int
    order: WorkOrder


class Offer(NamedTuple):
    """An order that could be given now. `position` is its place in the plan; `stale` says that it makes again what was
    done with inputs that have been replaced. Its allotment is what the contract allows, before any budget."""

    task: str
    order: Order
    position: int = 0
    stale: bool = False


class Release(NamedTuple):
    """Take the step back from whoever holds it; `reg` is where its register must stand."""

    step: str
    role: str
    reg: int
    body: Released


class Revoke(NamedTuple):
    """Seal the step for good."""

    step: str
    role: str
    reg: int
    body: Revoked


class Allow(NamedTuple):
    """Answer an owner that asked for more."""

    step: str
    role: str
    claim: int
    allotment: Allotment


class Ask(NamedTuple):
    """Ask people about an artifact that `role` made."""

    role: str
    gate: Gate


class Decide(NamedTuple):
    """Close a gate of `role`."""

    role: str
    body: Decision


class Begin(NamedTuple):
    """Say that the task is about to end: before anything is sealed."""

    body: Ending


class End(NamedTuple):
    """End the task."""

    body: Final


Command: TypeAlias = Order | Release | Revoke | Allow | Ask | Decide | Begin | End


@dataclass(frozen=True, slots=True)
class Limits:
    """What the leader may have under way at once where the board's own limits say nothing. `steps_per_task` bounds one
    task; contracts bound each role."""

    steps_per_task: int = 8
