"""The processes of a crew as the launcher's children: a supervisor, and one worker per role."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kokuban.console._models import ModelChoice, is_key

if TYPE_CHECKING:
    from kokuban.console.launcher import Child


exec_option = click.option(
    "--exec", "commands", multiple=True, metavar="ROLE=COMMAND",
    help="A program that does the work of this role, instead of our own (see docs/exec.md).",
)  # fmt: skip


def commands_of(given: Sequence[str], roles: Sequence[str]) -> dict[str, str]:
    """Role to command. Raises a usage error for what is no such pair, or for a role that is not started."""
    found: dict[str, str] = {}
    for text in given:
        role, _, command = text.partition("=")
        if role not in roles or not command.strip():
            raise click.UsageError(f"exec: {text!r} is not ROLE=COMMAND, ROLE one of {', '.join(roles)}")
        found[role] = command
    return found


def children(
    roles: Sequence[str],
    *,
    url: str,
    folder: Path,
    model: ModelChoice | None,
    concurrency: int | None = None,
    drain_seconds: float,
    credentials: Path | None = None,
    approve_tools: Sequence[str] = (),
    policy: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> list[Child]:
    """What to start for `roles`. Logs go to `folder`/logs, homes below `folder`/homes. The URL and the model travel in
    the environment: an address may hold a password, and keys reach only the roles that ask a model. Of the folder
    `credentials` each is told its own file only. A person must approve
    each call of `approve_tools`; `policy` is the file that decides about the others; `commands`
    are the programs that do the work of some roles."""
    from kokuban.console.launcher import Child
    from kokuban.schemas.contracts import builtin_crew

    # -P: nothing in the folder that a person happens to stand in is imported.
    kokuban = [sys.executable, "-P", "-m", "kokuban.console.main"]
    hidden = {"KOKUBAN_MODEL", "KOKUBAN_BASE_URL", "KOKUBAN_CREDENTIALS"}
    keys = {name: value for name, value in os.environ.items() if is_key(name)}
    plain = {name: value for name, value in os.environ.items() if name not in hidden and name not in keys}
    plain["KOKUBAN_NATS_URL"] = url

    def secret(user: str) -> dict[str, str]:
        return {"KOKUBAN_CREDENTIALS": str(credentials.absolute() / f"{user}.nk")} if credentials else {}

    crew = [
        Child("supervisor", [*kokuban, "supervisor"], plain | secret("supervisor"), folder / "logs" / "supervisor.log")
    ]
    for role in roles:
        arguments = ["worker", role, "--home", str(folder / "homes" / role), "--drain-seconds", f"{drain_seconds:g}"]
        environment = plain | secret(f"role-{role}")
        if approve_tools:
            environment["KOKUBAN_APPROVE_TOOLS"] = " ".join(approve_tools)
        if policy is not None:
            environment["KOKUBAN_POLICY"] = str(policy.expanduser().absolute())
        if commands and role in commands:
            arguments += ["--exec", commands[role]]
        if concurrency is not None:
            arguments += ["--concurrency", str(concurrency)]
        if builtin_crew()[role].model and model is not None:
            mine = model.for_role(role)
            arguments += mine.arguments()
            environment = environment | keys | mine.environment()
        crew.append(Child(role, [*kokuban, *arguments], environment, folder / "logs" / f"{role}.log"))
    return crew


def last_line(log: Path) -> str:
    """The last line that a process logged, '' when there is none: most often why it ended."""
    try:
        lines = log.read_bytes()[-4_096:].decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
