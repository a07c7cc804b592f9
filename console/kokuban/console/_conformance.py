"""conformance: whether a program keeps the rules of a role's worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kokuban.console import _errors
from kokuban.console._options import PATH, json_option
from kokuban.console._terminal import Paint, clean, json_line, one_line, put, tell

if TYPE_CHECKING:
    from kokuban.console.conformance import RoleFolder


@click.command(epilog="Example: kokuban conformance indexer --folder examples/custom-role --exec 'node indexer.mjs'")
@click.argument("role")
@click.option(
    "--exec", "command", metavar="COMMAND",
    help="The program, in any language; it finds the board in KOKUBAN_NATS_URL and its role in KOKUBAN_ROLE.",
)  # fmt: skip
@click.option("--program", metavar="MODULE:CLASS", help="The program, as a Python class.")
@click.option(
    "--folder", type=PATH, default=Path("."), show_default=True, metavar="DIR",
    help="Holds ROLE.toml, kinds/*.json, samples/KIND.json of what it consumes, samples/sources/, samples/workspace/.",
)  # fmt: skip
@click.option(
    "--protected", is_flag=True,
    help="On a server that asks for credentials: the program finds its role's in KOKUBAN_CREDENTIALS.",
)  # fmt: skip
@json_option
def conformance(
    role: str, command: str | None, program: str | None, folder: Path, protected: bool, as_json: bool
) -> int:
    """Run a program of ROLE against a server of its own and a scripted leader, and say which rules it keeps.

    Takes half a minute. Exit code 0: it keeps them all, 1: not all, 2: the folder or an option is wrong.
    """
    import asyncio
    import tempfile

    from kokuban.console._logging import configure_logging
    from kokuban.console.conformance import BadFolder, read_folder
    from kokuban.schemas.contracts import InvalidContract

    configure_logging()
    try:
        found = read_folder(folder.absolute(), role)
    except (BadFolder, InvalidContract, OSError) as error:
        raise click.UsageError(clean(str(error))) from error
    words = _command(role, command, program, folder.absolute())
    with tempfile.TemporaryDirectory(prefix="kokuban-", ignore_cleanup_errors=True) as home:
        return asyncio.run(_examine(found, words, folder.absolute(), Path(home), as_json, protected))


def _command(role: str, command: str | None, program: str | None, folder: Path) -> list[str]:
    import shlex

    if (command is None) == (program is None):
        raise click.UsageError("exec, program: give one of the two")
    if program is not None:
        from kokuban.console._programs import load_program

        load_program(program, folder)  # one that is not there is wrong usage, and breaks no rule
        worker = [sys.executable, "-m", "kokuban.console.main", "worker", role, "--program", program]
        return [*worker, "--concurrency", "1"]
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise click.UsageError(f"exec: {error}") from error
    if not words:
        raise click.UsageError("exec: it is empty; give a command such as 'node indexer.mjs'")
    return words


async def _examine(
    folder: RoleFolder, command: list[str], place: Path, home: Path, as_json: bool, protected: bool
) -> int:
    from contextlib import aclosing

    import msgspec

    from kokuban.console.conformance import CHECKS, examine

    paint = Paint(sys.stdout)
    kept = seen = 0
    try:
        async with aclosing(examine(folder, command, place, home, protected=protected)) as outcomes:
            async for outcome in outcomes:
                kept, seen = kept + outcome.passed, seen + 1
                if as_json:
                    put(json_line(msgspec.json.encode(outcome._asdict())))
                    continue
                word = paint("pass", "green") if outcome.passed else paint("FAIL", "red")
                put(f"{word}  {outcome.rule}\n      {one_line(outcome.seen, 1_500)}")
    except FileNotFoundError as error:
        raise click.UsageError(f"exec: there is no program {error.filename!r}") from error
    total = len(CHECKS)
    rest = f"; the program had ended, so {total - seen} were not looked at" if seen < total else ""
    tell(f"{folder.contract.role}: {kept} of {total} rules kept{rest}")
    return _errors.DONE if kept == total else _errors.TASK_FAILED
