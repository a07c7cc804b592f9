"""What a person asks for, checked before anything is written, and the errors that name what is wrong with it."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from kokuban.blackboard.wire import BusError
from kokuban.blackboard.workspace import File, Tree, scan
from kokuban.schemas import Budget, Intake, TaskSpec, encode, subjects
from kokuban.schemas._base import MAX_COUNT
from kokuban.schemas.kinds import problems

MAX_GOAL = 65_536
NO_CONTENT = "sha256:" + "0" * 64
"""Stands for a workspace that is not stored yet."""
_OTHER = re.compile(r"[^a-z0-9_-]+")


class InvalidRequest(ValueError):
    """What somebody asked for cannot be; the message names the field and the way out. Nothing was written."""


class InvalidTask(InvalidRequest):
    """A task that cannot be submitted; the message names the field and the way out. Nothing was written."""


class KeyInUse(InvalidTask):
    """The key already names a task with other content. Nothing was written."""


class StoreFull(BusError):
    """The board takes no new tasks until finished ones are archived. Nothing was written; running tasks go on."""


class NoSuchTask(LookupError):
    """No task of that id is on the board. Nothing was written."""


class NoSuchGate(NoSuchTask):
    """No gate of that id is in the task. Nothing was written."""


class NoSuchArtifact(NoSuchTask):
    """No admitted artifact of that digest is on the board."""


def check_spec(spec: TaskSpec) -> None:
    """Raise `InvalidTask` for a task that no board would take."""
    if not spec.goal.strip():
        raise InvalidTask("goal: it is empty; say what is to be done")
    if len(spec.goal) > MAX_GOAL:
        raise InvalidTask(
            f"goal: {len(spec.goal):,} characters; at most {MAX_GOAL:,}: put the rest into a --source file"
        )
    if any("\0" in check for check in spec.checks):
        raise InvalidTask("check: it holds a NUL character; give a command line")
    if any(not check.strip() for check in spec.checks):
        raise InvalidTask("check: it is empty; give a command such as 'python -m unittest'")
    for field, names in (("tenant", (spec.tenant,)), ("after", spec.after), ("approve", spec.approve)):
        for name in names:
            subjects.token(name, field)
    for field in Budget.__struct_fields__ if spec.budget is not None else ():
        value = getattr(spec.budget, field)
        if value is not None and not 0 <= value <= MAX_COUNT:
            raise InvalidTask(f"budget.{field}: {value} is outside 0 to {MAX_COUNT}; leave it out for no limit")
    found = problems("task", encode(spec))
    if found:
        raise InvalidTask("; ".join(reason.removeprefix("task.") for reason in found))


def read_sources(paths: Sequence[Path]) -> Tree:
    """Documents as one tree: a folder's files under their relative paths, a single file under its name. Raises
    `InvalidTask` for a missing path or a name that comes twice, `WorkspaceError` for what cannot be read."""
    found: dict[str, File] = {}
    for path in map(Path, paths):
        if path.is_dir():
            tree: Tree = scan(path)
        elif path.is_file():
            tree = {path.name: File(path.read_bytes(), False)}
        else:
            raise InvalidTask(f"source: {path} is neither a file nor a folder; name an existing one")
        twice = sorted(found.keys() & tree.keys())
        if twice:
            raise InvalidTask(f"source: {twice[0]} comes from two of the given paths; rename one")
        found.update(tree)
    return dict(sorted(found.items()))


def task_id(key: str | None) -> str:
    """The id of a new task; the same key gives the same one."""
    return f"t-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else f"t-{secrets.token_hex(6)}"


def retry_id(task: str) -> str:
    """The id under which a dead task is tried again: asking twice is one new task."""
    return f"t-{hashlib.sha256(f'retry of {task}'.encode()).hexdigest()[:16]}"


def full(intake: Intake | None = None) -> StoreFull:
    """The error for a board that takes no new tasks."""
    used = f" ({intake.used_bytes:,} of {intake.limit_bytes:,} bytes)" if intake and intake.limit_bytes else ""
    return StoreFull(
        f"store: it is full{used}, so no new task is taken, and nothing was written. Running tasks go on; try again "
        "when finished ones are archived (kokuban supervisor --keep-finished says when), or give the store more room"
    )


def person_name(name: str | None = None, credential: str | None = None) -> str:
    """Who speaks: `name`, else KOKUBAN_PERSON, else whom the credential speaks for, else this user of the machine, made
    a name. Raises `InvalidName` for a given name that cannot stand in a subject."""
    given = name or os.environ.get("KOKUBAN_PERSON") or credential
    if given:
        return subjects.token(given, "person")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return _OTHER.sub("-", user.lower()).strip("-_")[:64] or "local"
