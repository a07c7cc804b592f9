"""Artifact kinds and roles that users registered on a board: reading them, and registering one more."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import msgspec

from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.core.registry import problems_of_kind, problems_of_role
from kokuban.blackboard.wire import Bus, Conflict, Fence, NoAnswer, write
from kokuban.schemas import RegisteredKind, RegisteredRole, Wire, encode, seal, subjects
from kokuban.schemas.contracts import parse_contract

__all__ = ["NotRegistered", "Registered", "load", "load_kinds", "register_kind", "register_role"]

_TRIES = 10


class NotRegistered(ValueError):
    """A kind or a role that this board cannot take; the message says why, with the place. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Registered:
    """`kinds` (kind, version: schema) and `roles` (role: contract) count. `taken` is the last version of a kind that
    somebody wrote, `written` the last sequence of a role's record, whether they count or not."""

    kinds: dict[str, dict[int, bytes]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)


async def load(bus: Bus) -> Registered:
    """What is registered now. Raises `BusError`."""
    found = [
        *await bus.patiently(lambda: bus.history(subjects.REGISTERED_KINDS)),
        *await bus.patiently(lambda: bus.history(subjects.REGISTERED_ROLES)),
    ]
    board, taken, written = Board(), dict[str, int](), dict[str, int]()
    for stored in sorted(found, key=lambda one: one.seq):
        fold(board, stored)
        name = stored.subject.split(".")[3]
        if stored.subject == subjects.contract(name):
            written[name] = stored.seq
        elif stored.subject.rpartition(".")[2].isdecimal():
            taken[name] = max(taken.get(name, 0), int(stored.subject.rpartition(".")[2]))
    return Registered(board.kinds, board.roles, taken, written)


async def load_kinds(bus: Bus, board: Board) -> None:
    """Make the registered kinds known to a board that is a reading of one task alone. Raises `BusError`."""
    kinds = Board()
    for stored in await bus.patiently(lambda: bus.history(subjects.REGISTERED_KINDS)):
        fold(kinds, stored)
    board.kinds.update(kinds.kinds)


async def register_kind(bus: Bus, kind: str, schema: bytes, *, principal: str = "local") -> tuple[int, bool]:
    """Register a kind, or its next version; returns the version and whether it is new (the same schema again is not).
    When it returns, it is stored. Raises `NotRegistered`, `InvalidName` (nothing written), `NoAnswer` (unknown: do it
    again)."""
    subjects.token(kind, "kind")
    try:
        plain = msgspec.json.format(schema, indent=-1)
        plain.decode()
    except (ValueError, RecursionError) as error:
        raise NotRegistered(f"schema: not JSON: {error}") from error
    for _ in range(_TRIES):
        there = await load(bus)
        known = there.kinds.get(kind, {})
        if known and known[max(known)] == plain:
            return max(known), False
        version = there.taken.get(kind, 0) + 1
        body = RegisteredKind(kind, version, msgspec.Raw(plain))
        if problems := problems_of_kind(there.kinds, body):
            raise NotRegistered("; ".join(problems))
        if await _write(bus, subjects.kind(kind, version), body, "ctl.kind", 0, principal):
            return version, True
    raise NoAnswer(f"kind: others register versions of {kind!r} at the same time; nothing was written, do it again")


async def register_role(bus: Bus, contract: str, *, principal: str = "local") -> tuple[str, bool]:
    """Register a role by its contract (TOML), or replace it; returns its name and whether that changed anything. When
    it returns, it is stored. Raises `NotRegistered`, `InvalidContract` (nothing written), `NoAnswer` (unknown: do it
    again)."""
    for _ in range(_TRIES):
        there = await load(bus)
        role = parse_contract(contract, "contract", tuple(there.kinds)).role
        if there.roles.get(role) == contract:
            return role, False
        body = RegisteredRole(role, contract)
        if problems := problems_of_role(there.roles, there.kinds, body):
            raise NotRegistered("; ".join(problems))
        if await _write(bus, subjects.contract(role), body, "ctl.role", there.written.get(role, 0), principal):
            return role, True
    raise NoAnswer("role: others register it at the same time; nothing was written, do it again")


async def _write(bus: Bus, subject: str, body: Wire, kind: str, last: int, principal: str) -> bool:
    """Whether it was stored; not when somebody else was first. Raises `NotRegistered` for what no record can carry."""
    op = secrets.token_hex(12)
    if len(encode(body)) > bus.max_bytes:
        raise NotRegistered(f"{kind.removeprefix('ctl.')}: {len(encode(body))} bytes are more than a record takes")
    data = seal(body, id=op, type=kind, principal=principal, trust="principal", time=SYSTEM.stamp())
    return not isinstance(await write(bus, subject, data, op=op, fence=Fence(subject, last)), Conflict)
