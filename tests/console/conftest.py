"""The command line in processes of its own, a small task to do with it, and a model that knows the answer."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from kokuban.console.main import main
from support.processes import KILL_SECONDS


class Said(NamedTuple):
    """What a command ended with, and said on standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Its output as one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


COMMAND = [sys.executable, "-m", "kokuban.console.main"]
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = """import unittest
from calc import add

class Adding(unittest.TestCase):
    def test_two_and_three(self):
        self.assertEqual(add(2, 3), 5)
"""
CHECK = "python3 -m unittest -q"


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """This environment without anything that configures Kokuban; temporary folders lie below the test's own."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KOKUBAN_", "OPENAI_")) and "COLOR" not in k}
    return kept | {"TMPDIR": str(temporary)}


@pytest.fixture
def kokuban(tmp_path: Path, clean_env: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end: `kokuban("status", "--json", env={…})`."""

    def run(*args: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path, **options}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*COMMAND, *map(str, args)], stdin=subprocess.DEVNULL, timeout=60, env=clean_env | (env or {}), **settings
        )
        return done

    return run


@pytest.fixture
def started(tmp_path: Path, clean_env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command and lets it run; what still runs is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, **options}
        process: subprocess.Popen[str] = subprocess.Popen(
            [*COMMAND, *map(str, args)], stdin=subprocess.DEVNULL, text=True, env=clean_env | (env or {}),
            start_new_session=True, **settings,
        )  # fmt: skip
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=KILL_SECONDS)


@pytest.fixture
def here(
    tmp_path: Path, clean_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Said]]:
    """Runs a command in this process, which is thirty times faster: `here("status", "--json")`."""
    for name in os.environ.keys() - clean_env.keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    handlers = logging.getLogger().handlers[:]

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capsys.readouterr())

    yield run
    logging.getLogger().handlers[:] = handlers
    structlog.reset_defaults()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A package whose test fails."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "calc.py").write_text(WRONG)
    (folder / "test_calc.py").write_text(TEST)
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Writes what `--model` needs for a model that plans one step and rewrites calc.py, to `content`."""

    def write(content: str = RIGHT, **coder: Any) -> str:
        plan = {"steps": [{"id": "fix", "role": "coder", "goal": "Make add give the sum", "needs": []}]}
        edit = {"path": "calc.py", "content": content}
        action = {"thought": "add subtracts", "tool": "write_file", "arguments": edit}
        replies = [
            {"when": {"role": "planner"}, "reply": {"content": plan}},
            {"when": {"role": "coder"}, "reply": {"content": action}, **coder},
        ]
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"replies": replies}))
        return f"scripted:{path}"

    return write
