"""The export: whoever changes, drops, moves or adds a record is found out; and the checker runs by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kokuban.blackboard.audit as checker
from audit.faults import FAULTS
from audit.story import SETTINGS, good
from kokuban.blackboard.audit import BadExport, Message, read_lines, write_lines

ABOUT = {"scope": "board", "position": 94}


def exported() -> list[str]:
    odd = Message(500, "kb.other", 1_500.25, b"\xff\x00")
    return list(write_lines([*(line.message() for line in good().lines), odd], ABOUT))


def test_what_was_written_is_read() -> None:
    lines = exported()
    export = read_lines(line + "\n" for line in lines)
    assert export.messages == [line.message() for line in good().lines] + [
        Message(500, "kb.other", 1_500.25, b"\xff\x00")
    ]
    assert (export.scope, export.position) == ("board", 94)
    assert export.head == json.loads(lines[-1])["chain"]


def _edited(lines: list[str]) -> None:
    lines[30] = lines[30].replace("w-", "x-", 1)


def _of_another_time(lines: list[str]) -> None:
    line = json.loads(lines[30])
    lines[30] = json.dumps({**line, "time": line["time"] + 1})


def _about_another_scope(lines: list[str]) -> None:
    lines[0] = lines[0].replace("board", "tasks")


TAMPERINGS: dict[str, Callable[[list[str]], object]] = {
    "a record is changed": _edited,
    "its time is changed": _of_another_time,
    "the first line is changed": _about_another_scope,
    "a record is left out": lambda lines: lines.pop(30),
    "two change places": lambda lines: lines.insert(30, lines.pop(31)),
    "one comes twice": lambda lines: lines.insert(30, lines[30]),
    "the end is cut off": lambda lines: lines.pop(),
    "the last record is cut off": lambda lines: lines.pop(-2),
    "something follows": lambda lines: lines.append(lines[-2]),
    "a line is no JSON": lambda lines: lines.insert(5, "{"),
    "a line is no object": lambda lines: lines.insert(5, "[" * 100_000),
    "it is another file": lambda lines: lines.pop(0),
    "it is empty": lambda lines: lines.clear(),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_changed_export_is_refused(what: str) -> None:
    lines = exported()
    TAMPERINGS[what](lines)
    with pytest.raises(BadExport, match="line"):
        read_lines(lines)


def by_itself(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The checker as its own program, in a Python that cannot import Kokuban."""
    folder = Path(checker.__file__).parent
    command = [sys.executable, "-I", "-S", str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_runs_by_itself(tmp_path: Path) -> None:
    story = good()
    history, effects, settings = (tmp_path / name for name in ("history", "effects", "settings"))
    history.write_text("".join(f"{line}\n" for line in write_lines([x.message() for x in story.lines], ABOUT)))
    effects.write_text("".join(json.dumps(line) + "\n" for line in story.effects))
    settings.write_text(json.dumps({"roles": SETTINGS.roles, "effects": SETTINGS.effects}))
    ran = by_itself(history, "--effects", effects, "--settings", settings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every accepted task has ended" in ran.stdout
    assert "Not proved by this:" in ran.stdout
    without = by_itself(history)
    assert "that needs the log of the other side" in without.stdout

    next(fault for rule, _, fault in FAULTS if rule == "owner")(story)
    history.write_text("".join(f"{line}\n" for line in write_lines([x.message() for x in story.lines], ABOUT)))
    ran = by_itself(history)
    assert ran.returncode == 1
    assert "BROKEN" in ran.stdout
    assert "owner at" in ran.stdout


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    ran = by_itself(tmp_path / "nothing")
    assert ran.returncode == 2
    assert "nothing" in ran.stderr
