"""kinds and roles: what users register on a board beside what is built in."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kokuban.console import _errors
from kokuban.console._options import PATH, credentials_of, json_option, nats_option
from kokuban.console._terminal import clean, json_line, one_line, put

if TYPE_CHECKING:
    from kokuban.blackboard.registered import Registered
    from kokuban.blackboard.wire import Bus
    from kokuban.schemas.contracts import Contract

T = TypeVar("T")
_MOST_BYTES = 256 * 1024


@click.group(cls=_errors.Group, name="kinds")
def kinds() -> None:
    """Artifact kinds: register a JSON Schema, see what is there."""


@click.group(cls=_errors.Group, name="roles")
def roles() -> None:
    """Roles: register a contract, see what is there."""


@kinds.command("add", epilog="Example: kokuban kinds add glossary.json")
@click.argument("file", type=PATH)
@click.option("--name", metavar="KIND", help="The kind's name (default: that of the file, without .json).")
@nats_option
def add_kind(file: Path, name: str | None, nats: str | None) -> None:
    """Register the JSON Schema (2020-12) in FILE as an artifact kind, or as its next version.

    A new version must accept everything that the last one accepted; otherwise it is refused, with the reason.
    """
    schema = _read(file)

    async def register(bus: Bus) -> None:
        from kokuban.blackboard.registered import register_kind

        kind = name or file.name.removesuffix(".json")
        version, new = await register_kind(bus, kind, schema, principal=_principal())
        put(f"{kind} version {version}" if new else f"{kind} version {version} (it was there)")

    _run(nats, register, user="admin")


@kinds.command("list", epilog="Example: kokuban kinds list --json")
@json_option
@nats_option
def list_kinds(as_json: bool, nats: str | None) -> None:
    """Show all kinds, built in and registered, a line each."""
    from kokuban.schemas import KINDS

    there = _run(nats, _load)
    for kind in KINDS:
        _line(as_json, {"kind": kind, "built_in": True}, f"{kind}  built in")
    for kind, versions in there.kinds.items():
        text = f"{kind}  version {max(versions)}" + (f" (of {len(versions)})" if len(versions) > 1 else "")
        _line(as_json, {"kind": kind, "built_in": False, "versions": sorted(versions)}, text)


@kinds.command("show", epilog="Example: kokuban kinds show glossary --version 1")
@click.argument("kind")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Which one (default: the last).")
@nats_option
def show_kind(kind: str, version: int | None, nats: str | None) -> None:
    """Print the JSON Schema of KIND."""
    import json

    from kokuban.schemas import KINDS
    from kokuban.schemas.kinds import schema_of

    if kind in KINDS:
        schema: Any = schema_of(kind)
    else:
        versions = _run(nats, _load).kinds.get(kind)
        if not versions:
            raise click.UsageError(f"kind: there is no {kind!r}; kokuban kinds list shows what there is")
        if version is not None and version not in versions:
            there = ", ".join(map(str, sorted(versions)))
            raise click.UsageError(f"version: {kind} has no version {version}; it has {there}")
        schema = json.loads(versions[version or max(versions)])
    put(json.dumps(schema, indent=1, ensure_ascii=True))


@roles.command("add", epilog="Example: kokuban roles add translator.toml")
@click.argument("file", type=PATH)
@nats_option
def add_role(file: Path, nats: str | None) -> None:
    """Register the role whose contract is in FILE, or replace its contract.

    The supervisor that leads offers work to it from the next decision on; start a worker for it, in any language.
    """
    try:
        text = _read(file).decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"file: {file} is not UTF-8 text: {error}") from error

    async def register(bus: Bus) -> None:
        from kokuban.blackboard.registered import register_role

        role, new = await register_role(bus, text, principal=_principal())
        put(role if new else f"{role} (it was there)")

    _run(nats, register, user="admin")


@roles.command("list", epilog="Example: kokuban roles list --json")
@json_option
@nats_option
def list_roles(as_json: bool, nats: str | None) -> None:
    """Show all roles, built in and registered, a line each."""
    from kokuban.schemas.contracts import builtin_crew

    for role, contract in _contracts(_run(nats, _load)).items():
        built_in = role in builtin_crew()
        value = {"role": role, "built_in": built_in, **contract.model_dump(mode="json", exclude={"role"})}
        runs = f"by {', '.join(contract.triggers)}" if contract.triggers else ""
        gives = f"{', '.join(contract.consumes) or 'nothing'} -> {', '.join(contract.produces)}"
        origin = "built in" if built_in else "registered"
        _line(as_json, value, f"{role}  {origin}  {contract.when} {runs} {gives}  {contract.summary}")


@roles.command("show", epilog="Example: kokuban roles show translator")
@click.argument("role")
@nats_option
def show_role(role: str, nats: str | None) -> None:
    """Print the contract of ROLE, as TOML."""
    import importlib.resources

    from kokuban.schemas.contracts import builtin_crew

    if role in builtin_crew():
        text = importlib.resources.files("kokuban.schemas").joinpath(f"roles/{role}.toml").read_text("utf-8")
    else:
        found = _run(nats, _load).roles.get(role)
        if found is None:
            raise click.UsageError(f"role: there is no {role!r}; kokuban roles list shows what there is")
        text = found
    put(clean(text).rstrip("\n"))


def _contracts(there: Registered) -> dict[str, Contract]:
    from kokuban.blackboard.core.registry import crew_of
    from kokuban.schemas.contracts import builtin_crew

    return dict(crew_of(builtin_crew(), there.roles, there.kinds))


def _line(as_json: bool, value: dict[str, Any], text: str) -> None:
    import json

    put(json_line(json.dumps(value).encode()) if as_json else one_line(text, 400))


def _read(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise click.UsageError(f"file: {file} is no file")
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise click.UsageError(f"file: {file} has {size} bytes; at most {_MOST_BYTES}")
        return file.read_bytes()
    except OSError as error:
        raise click.UsageError(f"file: {file} cannot be read: {error.strerror or error}") from error


def _principal() -> str:
    return os.environ.get("KOKUBAN_PRINCIPAL", "local")


async def _load(bus: Bus) -> Registered:
    from kokuban.blackboard.registered import load

    return await load(bus)


def _run(nats: str | None, work: Callable[[Bus], Awaitable[T]], *, user: str = "client") -> T:
    """Do this with a connection to the board. What cannot be registered is wrong input."""
    import asyncio

    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.registered import NotRegistered
    from kokuban.blackboard.wire import Bus, ensure_board
    from kokuban.console._logging import configure_logging
    from kokuban.schemas.contracts import InvalidContract

    async def connected() -> T:
        secret = credentials_of(user, nats)
        async with await Bus.connect(nats or DEFAULT_URL, name="kokuban registry", credentials=secret) as bus:
            await ensure_board(bus)
            return await work(bus)

    configure_logging()
    try:
        return asyncio.run(connected())
    except (NotRegistered, InvalidContract) as error:
        raise click.UsageError(clean(str(error))) from error
