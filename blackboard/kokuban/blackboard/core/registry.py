"""What users registered: artifact kinds with their schemas, roles with their contracts. Data in, reasons out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from kokuban.schemas import KINDS, KindRef, RegisteredKind, RegisteredRole, WorkOrder
from kokuban.schemas.contracts import Contract, Crew, InvalidContract, builtin_crew, check_crew, parse_contract
from kokuban.schemas.kinds import incompatible, problems_of_schema

Kinds = Mapping[str, Mapping[int, bytes]]
"""Kind to version to JSON Schema, as `Board.kinds` holds it."""
Roles = Mapping[str, str]
"""Role to contract (TOML), as `Board.roles` holds it."""
MAX_KINDS = 500
MAX_VERSIONS = 1_000
MAX_ROLES = 500


def problems_of_kind(kinds: Kinds, wanted: RegisteredKind) -> tuple[str, ...]:
    """Why this kind, in this version, cannot be registered beside these: empty when it can. A new version comes after
    the last and accepts everything that the last one accepted."""
    if wanted.kind in KINDS:
        return (f"kind: {wanted.kind!r} is built in; choose another name",)
    there = kinds.get(wanted.kind, {})
    last = max(there, default=0)
    if wanted.version <= last:
        return (f"version: {wanted.version} does not follow {last}, the last of {wanted.kind!r}",)
    if len(there) >= MAX_VERSIONS or (not there and len(kinds) >= MAX_KINDS):
        return (f"kind: there are {MAX_KINDS} kinds, or {MAX_VERSIONS} versions of this one; no more are taken",)
    found = problems_of_schema(wanted.schema)
    if found or not there:
        return found
    reasons = incompatible(there[last], bytes(wanted.schema))
    return tuple(f"version {wanted.version} refuses what version {last} accepted: {reason}" for reason in reasons)


def problems_of_role(roles: Roles, kinds: Kinds, wanted: RegisteredRole) -> tuple[str, ...]:
    """Why this role cannot be registered beside these: empty when it can. One of the same name is replaced."""
    if wanted.role in builtin_crew():
        return (f"role: {wanted.role!r} is built in; choose another name",)
    if wanted.role not in roles and len(roles) >= MAX_ROLES:
        return (f"role: there are {MAX_ROLES} roles; no more are taken",)
    try:
        contract = parse_contract(wanted.contract, wanted.role, tuple(kinds))
        if contract.role != wanted.role:
            return (f"role: the contract says {contract.role!r}, the record {wanted.role!r}",)
        others = {role: text for role, text in roles.items() if role != wanted.role}
        check_crew([*crew_of(builtin_crew(), others, kinds).values(), contract])
    except InvalidContract as error:
        return (str(error),)
    return ()


def crew_of(builtin: Crew, roles: Roles, kinds: Kinds) -> Crew:
    """These roles and the registered ones beside them, in the order in which they were registered. One that does not
    fit (`builtin` may be a crew of its own) is left out. The same content gives the same crew, at little cost."""
    if not roles:
        return builtin
    return _crew_of(tuple(builtin.values()), tuple(roles.items()), tuple(kinds))


@functools.lru_cache(maxsize=32)
def _crew_of(builtin: tuple[Contract, ...], roles: tuple[tuple[str, str], ...], kinds: tuple[str, ...]) -> Crew:
    crew: Crew = {contract.role: contract for contract in builtin}
    for role, text in roles:
        try:
            crew = check_crew([*crew.values(), parse_contract(text, role, kinds)])
        except InvalidContract:
            continue
    return crew


def versions_of(produces: Iterable[str], kinds: Kinds) -> tuple[KindRef, ...]:
    """The registered kinds among these, each in its last version: what a work order is judged by."""
    return tuple(KindRef(kind, max(kinds[kind])) for kind in produces if kind not in KINDS and kinds.get(kind))


def schema_for(kind: str, order: WorkOrder, kinds: Kinds) -> bytes | None:
    """The schema that judges an artifact of a registered kind under this order; None when the order or the board does
    not know it."""
    version = next((ref.version for ref in order.kinds if ref.kind == kind), 0)
    return kinds.get(kind, {}).get(version)
