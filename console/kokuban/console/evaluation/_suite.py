"""A suite: one task a line of JSON."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec

from kokuban.blackboard.workspace import File

Id = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")]
Files = dict[str, str]


class InvalidSuite(ValueError):
    """A suite that cannot be used; the message names the line and what is wrong."""


class Hidden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides: files put beside the result, and commands that must all end with 0. Nobody who works on the task
    sees either."""

    files: Files
    checks: tuple[str, ...]


class EvalTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`files` is the workspace, `sources` the documents, `checks` what the agents may run, `writes` the file that the
    result is in (a single call is asked for exactly that one)."""

    id: Id
    kind: str
    goal: str
    writes: str
    hidden: Hidden
    files: Files = {}
    sources: Files = {}
    checks: tuple[str, ...] = ()
    solution: str | None = None

    @property
    def workspace(self) -> dict[str, File]:
        return tree(self.files)


def tree(files: Files) -> dict[str, File]:
    """Texts as a tree."""
    return {path: File(text.encode(), False) for path, text in sorted(files.items())}


def load(path: Path, only: Collection[str] = ()) -> list[EvalTask]:
    """The tasks of a suite, in its order; of `only` those. Raises `InvalidSuite`."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSuite(
            f"suite: {path} cannot be read ({type(error).__name__}); name a file of JSON lines"
        ) from error
    tasks: dict[str, EvalTask] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = msgspec.json.decode(line, type=EvalTask)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSuite(f"{path}, line {number}: {error}") from error
        if task.id in tasks:
            raise InvalidSuite(f"{path}, line {number}: id: there is a task {task.id!r} already")
        if not task.hidden.checks:
            raise InvalidSuite(f"{path}, line {number}: hidden.checks: none, so anything would pass; give a command")
        tasks[task.id] = task
    unknown = sorted(set(only) - tasks.keys())
    if unknown:
        raise InvalidSuite(f"only: there is no task {unknown[0]!r} in {path}")
    if not tasks:
        raise InvalidSuite(f"suite: {path} holds no task")
    return [task for task in tasks.values() if not only or task.id in only]
