"""The history checker: proves from stored records alone that a board's history keeps its rules.

It uses Python's standard library and nothing of Kokuban's, so it checks the fold and the servers without sharing their
mistakes. It runs by itself: `python -I audit FILE`, with this folder's path for `audit`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import _calls, _effects, _gates, _money, _owning, _results
from ._export import BadExport, Export, Message, read_lines, write_lines
from ._record import BadRecord, Rec, address, read
from ._rules import (
    NOT_PROVEN,
    NOT_PROVEN_OF_A_TASK,
    NOT_PROVEN_WITHOUT_LOG,
    NOT_PROVEN_WITHOUT_ROLES,
    ONLY_WITH_LOG,
    RULES,
)
from ._state import History, Settings, Violation

__all__ = [
    "RULES",
    "BadExport",
    "Export",
    "Message",
    "Report",
    "Settings",
    "Violation",
    "audit",
    "check",
    "describe",
    "main",
    "read_lines",
    "write_lines",
]


@dataclass(frozen=True)
class Report:
    """What was found. `proved` are the rules that were checked and hold; `unproven` says, in words, what this cannot
    prove; `counts` what was seen; `notes` what is odd and breaks no rule."""

    violations: tuple[Violation, ...]
    proved: tuple[str, ...]
    unproven: tuple[str, ...]
    counts: dict[str, int]
    notes: dict[str, int]


def audit(
    messages: Iterable[Message], settings: Settings | None = None, *, effects: Iterable[dict[str, Any]] | None = None
) -> Report:
    """Check a history, in sequence order. `effects` is the log of the other side of tools, when there is one. Never
    raises on what is stored."""
    settings = settings or Settings()
    h = History(settings)
    last = 0
    for message in messages:
        if message.seq <= last:
            h.wrong("record", message.seq, f"sequence {message.seq} does not follow {last}")
        last = message.seq
        h.count("records")
        _see(h, message)
    for task in h.tasks.values():
        if task.final is None and not task.archived:
            h.count("tasks under way")
            if not settings.unfinished:
                h.wrong("ended", last, f"task {task.id}, accepted at {task.spec.seq}, has not ended")
    if effects is not None:
        _effects.joined(h, effects)
    broken = {violation.rule for violation in h.violations}
    checked = [rule for rule in RULES if effects is not None or rule not in ONLY_WITH_LOG]
    unproven = [*NOT_PROVEN]
    if settings.unfinished:
        checked.remove("ended")
    if not settings.whole_board:
        checked.remove("limit")
        unproven.append(NOT_PROVEN_OF_A_TASK)
    elif not settings.roles:
        unproven.append(NOT_PROVEN_WITHOUT_ROLES)
    if effects is None:
        unproven.append(NOT_PROVEN_WITHOUT_LOG)
    if settings.unfinished:
        unproven.append("how tasks that were under way went on")
    proved = tuple(RULES[rule] for rule in checked if rule not in broken)
    return Report(tuple(h.violations), proved, tuple(unproven), dict(sorted(h.counts.items())), h.notes)


def _see(h: History, message: Message) -> None:
    try:
        rec = read(message)
    except BadRecord as error:
        if address(message.subject) is None and not message.subject.startswith("kb.ctl."):
            h.note("a message that is no record, on a subject that is not ours")
        else:
            h.wrong("record", message.seq, f"{message.subject}: {error}")
        return
    h.last_time = rec.time
    operation = str(rec.envelope["id"])
    if operation in h.operations:
        h.wrong("once", rec.seq, f"operation {operation} ({rec.type}) is stored at {h.operations[operation]} already")
    h.operations.setdefault(operation, rec.seq)
    try:
        _apply(h, message.subject, rec)
    except (TypeError, ValueError, AttributeError, KeyError) as error:  # a shape that no writer of ours gives
        h.wrong("record", rec.seq, f"{rec.type}: its body has not the shape of its type: {error!r}")


def _apply(h: History, subject: str, rec: Rec) -> None:
    if not rec.kind:
        _control(h, subject, rec)
        return
    if rec.kind == "spec":
        _owning.spec(h, rec)
        return
    if rec.kind == "buried":
        _owning.buried(h, rec)
        return
    task = h.tasks.get(rec.task)
    if task is None or task.archived:
        h.note("a record of a task that is not accepted, or is archived; it counts for nothing")
        return
    if rec.kind == "step":
        _owning.register(h, task, rec)
    elif rec.kind == "work":
        _owning.order(h, task, rec)
    elif rec.kind == "ending":
        _owning.ending(h, task, rec)
    elif rec.kind == "final":
        _owning.final(h, task, rec)
    elif rec.kind == "grant":
        _money.granted(h, task, rec)
    elif rec.kind == "gate.request":
        _gates.request(h, task, rec)
    elif rec.kind == "gate.decision":
        _gates.decision(h, task, rec)
    elif task.final is not None:
        h.note("somebody wrote after the task's end; it counts for nothing")
    elif rec.kind == "gate.vote":
        _gates.vote(h, task, rec)
    elif rec.kind == "control":
        if rec.body.get("op") == "cancel" and task.cancel is None:
            task.cancel = rec
    elif rec.kind == "artifact":
        _results.artifact(h, task, rec)
    elif rec.kind == "journal":
        step = task.steps.get(rec.step)
        if _owning.owns(h, task, step, rec) and step is not None:
            if step.reg != step.fence:
                h.wrong("register", rec.seq, f"a journal line of step {task.id}/{step.id} after its register moved")
            _calls.journal(h, task, step, rec)


def _control(h: History, subject: str, rec: Rec) -> None:
    parts = subject.split(".")
    if parts[:3] == ["kb", "ctl", "epoch"] and len(parts) == 4 and parts[3].isdecimal():
        _owning.epoch(h, rec, int(parts[3]))
    elif subject == "kb.ctl.limits":
        _money.limits(h, rec)


def check(
    export: Export,
    given: dict[str, Any],
    *,
    effects: Iterable[dict[str, Any]] | None = None,
    unfinished: bool = False,
) -> Report:
    """Check an export. `given` are fields of `Settings`. Raises `TypeError` for one that is not."""
    settings = Settings(**given)
    whole = export.scope == "board"
    return audit(
        export.messages,
        settings.but(whole_board=whole, unfinished=settings.unfinished or unfinished),
        effects=effects,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """`audit FILE [--effects FILE] [--limits FILE] [--unfinished]`: 0 when no rule is broken, 1 when one is, 2 when the
    file cannot be used."""
    parser = argparse.ArgumentParser(prog="audit", description="Check an exported history of a Kokuban board.")
    parser.add_argument("file", help="what `kokuban export` wrote")
    parser.add_argument("--effects", metavar="FILE", help="the log of the tools' other side, a JSON object a line")
    parser.add_argument(
        "--settings", metavar="FILE", help="what the stream does not say: a JSON object (roles, effects …)"
    )
    parser.add_argument("--unfinished", action="store_true", help="tasks may be under way still")
    options = parser.parse_args(argv)
    try:
        with open(options.file, "rb") as records:
            export = read_lines(records)
        given = {}
        if options.settings:
            with open(options.settings, encoding="utf-8") as text:
                given = dict(json.load(text))
        effects = None
        if options.effects:
            with open(options.effects, encoding="utf-8") as lines:
                effects = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, TypeError) as error:
        print(f"audit: {options.file}: {error}", file=sys.stderr)
        return 2
    try:
        report = check(export, given, effects=effects, unfinished=options.unfinished)
    except TypeError as error:
        print(f"audit: {options.settings}: {error}", file=sys.stderr)
        return 2
    for line in describe(report, export):
        print(line)
    return 1 if report.violations else 0


def describe(report: Report, export: Export) -> list[str]:
    """The report in lines for people."""
    seen = ", ".join(f"{count} {what}" for what, count in report.counts.items())
    lines = [f"{len(export.messages)} records up to {export.position}; last hash {export.head}", f"Seen: {seen}"]
    lines += [f"Note: {text} ({count})" for text, count in report.notes.items()]
    if report.violations:
        lines.append(f"BROKEN, {len(report.violations)} times:")
        lines += [f"  {violation}" for violation in report.violations[:200]]
    lines.append("Proved:")
    lines += [f"  {text}" for text in report.proved]
    lines.append("Not proved by this:")
    lines += [f"  {text}" for text in report.unproven]
    return lines
