"""export and audit: a task's records in a file that tells of every change, and the proof that they keep the rules."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console import _errors
from kokuban.console._options import PATH, credentials_of, nats_option
from kokuban.console._task_commands import execute
from kokuban.console._terminal import json_line, put, tell

if TYPE_CHECKING:
    from kokuban.blackboard.audit import Export


@click.command(epilog="Example: kokuban export t-1f2e3d4c5b6a --out task.jsonl")
@click.argument("task", required=False)
@click.option("--out", type=PATH, required=True, metavar="FILE", help="Where to write it; - is standard output.")
@nats_option
def export(task: str | None, out: Path, nats: str | None) -> None:
    """Write every record of TASK, of all tasks below it and of the board itself to a file, or the whole board without.

    One JSON object a line, each with a hash over all before it. The last hash is printed: keep it apart from the file.
    """
    execute(_export(task, out, nats))


async def _export(task: str | None, out: Path, nats: str | None) -> None:
    from kokuban.blackboard.audit import read_lines

    if str(out) != "-":
        _check_out(out)
    lines = await _lines(task, nats)
    if str(out) == "-":
        for line in lines:
            put(line)
    else:
        partial = out.with_name(f"{out.name}.partial")
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
    export = read_lines(lines)
    tell(f"{len(export.messages)} records up to {export.position}; last hash {export.head}")


def _check_out(out: Path) -> None:
    """Raise a usage error for what is no place for a file, before anything is asked of a server."""
    if out.is_dir():
        raise click.UsageError(f"out: {out} is a folder; name a file")
    if not out.parent.is_dir():
        raise click.UsageError(f"out: there is no folder {out.parent}")
    if not os.access(out.parent, os.W_OK):
        raise click.UsageError(f"out: nothing may be written to {out.parent}")


async def _lines(task: str | None, nats: str | None) -> list[str]:
    from kokuban.blackboard._history import history_of
    from kokuban.blackboard.audit import write_lines
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus

    credentials = credentials_of("watcher", nats)
    async with await Bus.connect(nats or DEFAULT_URL, name="kokuban export", credentials=credentials) as bus:
        position = await bus.patiently(bus.last_seq)
        found = await history_of(bus, task)
    about = {"scope": "task" if task else "board", "task": task, "position": max(position, *(m.seq for m in found), 0)}
    return list(write_lines(found, about))


@click.command(epilog="Example: kokuban audit task.jsonl --unfinished")
@click.argument("what", metavar="TASK|FILE")
@click.option("--effects", type=PATH, metavar="FILE", help="The log of the tools' other side, a JSON object a line.")
@click.option("--settings", type=PATH, metavar="FILE", help="What the stream does not say, a JSON object.")
@click.option("--unfinished", is_flag=True, help="Tasks may be under way still.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@nats_option
def audit(
    what: str, effects: Path | None, settings: Path | None, unfinished: bool, as_json: bool, nats: str | None
) -> int:
    """Check a TASK on the board, or an exported FILE without any server: what its records prove, and what they do not.

    The checker shares no code with what it checks, and runs by itself, too: it is the folder `audit` in
    `kokuban.blackboard`. Exit code 0: no rule is broken, 1: one is.
    """
    return execute(_audit(what, effects, settings, unfinished, as_json, nats))


async def _audit(
    what: str, effects: Path | None, settings: Path | None, unfinished: bool, as_json: bool, nats: str | None
) -> int:
    from kokuban.blackboard.audit import BadExport, check, describe, read_lines

    try:
        if Path(what).exists():
            export = _from_file(Path(what))
        elif Path(what).name != what or "." in what:
            raise click.UsageError(f"audit: there is no file {what}")
        else:
            export = read_lines(await _lines(what, nats))
    except BadExport as error:
        tell(f"BROKEN: {what}: {error}")
        return _errors.TASK_FAILED
    given: dict[str, Any] = _read("settings", settings, json.loads) if settings else {}
    log = _read("effects", effects, lambda text: [json.loads(line) for line in text.splitlines() if line.strip()])
    try:
        report = check(export, given, effects=log, unfinished=unfinished)
    except TypeError as error:
        raise click.UsageError(f"settings: {error}") from error
    if as_json:
        put(json_line(_as_json(report, export)))
    else:
        for line in describe(report, export):
            put(line)
    sys.stdout.flush()
    return _errors.TASK_FAILED if report.violations else _errors.DONE


def _from_file(path: Path) -> Export:
    from kokuban.blackboard.audit import read_lines

    try:
        with path.open("rb") as file:
            return read_lines(file)
    except OSError as error:
        raise click.UsageError(f"file: {path} cannot be read: {error.strerror or error}") from error


def _read(field: str, path: Path | None, parse: Any) -> Any:
    if path is None:
        return None
    try:
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{field}: {path}: {error}") from error


def _as_json(report: Any, export: Export) -> bytes:
    found = {
        "records": len(export.messages), "position": export.position, "head": export.head,
        "violations": [{"rule": v.rule, "seq": v.seq, "text": v.text} for v in report.violations],
        "proved": report.proved, "unproven": report.unproven, "counts": report.counts, "notes": report.notes,
    }  # fmt: skip
    return json.dumps(found, ensure_ascii=False).encode()
