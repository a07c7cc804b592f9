"""A user's role as a Python class: finding it, and the contract that the board has for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console._options import credentials_of

if TYPE_CHECKING:
    from kokuban.agents import Role
    from kokuban.schemas.contracts import Contract


def load_program(name: str, folder: Path | None = None) -> Role:
    """A new object of the class `module:Class`, looked for in the folder first (None: the current one). Raises a usage
    error that says what is missing."""
    import importlib

    module, _, member = name.partition(":")
    if not module or not member:
        raise click.UsageError(f"program: {name!r} is not MODULE:CLASS, such as glossary:Glossary")
    place = str(folder or os.getcwd())
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise click.UsageError(f"program: {module} imports {error.name}, which is not installed") from error
        raise click.UsageError(f"program: there is no module {module!r} in {place} or installed") from error
    except Exception as error:  # the user's own code
        raise click.UsageError(f"program: module {module!r} cannot be imported: {error!r}") from error
    for part in member.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise click.UsageError(f"program: module {module!r} has no class {member!r}")
    role: Any = found()
    if not callable(getattr(role, "perform", None)):
        raise click.UsageError(f"program: {name} has no method `async def perform(self, work)`")
    return role  # type: ignore[no-any-return]


async def contract_on(nats: str | None, role: str) -> tuple[Contract, dict[str, Any]]:
    """The contract of a role, built in or registered on that board, and the schemas of the registered kinds that it
    gives, in their latest version. Raises a usage error that names the known roles."""
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.core.registry import crew_of
    from kokuban.blackboard.registered import load
    from kokuban.blackboard.wire import Bus, ensure_board
    from kokuban.schemas.contracts import builtin_crew

    secret = credentials_of(f"role-{role}", nats)
    async with await Bus.connect(nats or DEFAULT_URL, name=f"kokuban worker {role}", credentials=secret) as bus:
        await ensure_board(bus)
        there = await load(bus)
    crew = crew_of(builtin_crew(), there.roles, there.kinds)
    if role not in crew:
        raise click.UsageError(
            f"role: there is no {role!r} on this board; the roles are {', '.join(crew)} "
            "(kokuban roles add FILE.toml registers one)"
        )
    given = {kind: there.kinds[kind] for kind in crew[role].produces if kind in there.kinds}
    return crew[role], {kind: json.loads(versions[max(versions)]) for kind, versions in given.items()}
