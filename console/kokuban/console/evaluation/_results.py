"""Results, one a line, written as they come: whoever starts again goes on behind the last whole line."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Result(msgspec.Struct, frozen=True):
    """One task done once by one arm. `tokens` and `micros` (millionths of a dollar, None: no price known) are what it
    cost, `calls` the model calls, `steps` the steps of a crew, `seconds` the wall clock; `limited` says that a budget
    or a time limit ended it; `ended` how it ended."""

    task: str
    kind: str
    repeat: int
    arm: str
    passed: bool
    tokens: int
    calls: int
    seconds: float
    micros: int | None = None
    steps: int = 0
    limited: bool = False
    ended: str = ""
    tries: int = 1

    @property
    def key(self) -> tuple[str, int, str]:
        return self.task, self.repeat, self.arm


class Results:
    """The results of one run, in a file."""

    def __init__(self, path: Path) -> None:
        """Raises `ValueError`, naming the line, for a file of something else."""
        self._path, self._end = path, 0
        self.found: dict[tuple[str, int, str], Result] = {}
        if path.exists():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]  # a line that was cut off by a crash is done again
            for number, line in enumerate(whole.splitlines(), 1):
                try:
                    result = msgspec.json.decode(line, type=Result)
                except msgspec.DecodeError as error:
                    raise ValueError(f"{path}, line {number}: it is no result ({error}); name another file") from error
                self.found[result.key] = result
            self._end = len(whole)

    def add(self, result: Result) -> None:
        """Append, and be sure that it is there."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.truncate(self._end)
            self._end += file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.found[result.key] = result
