"""run and demo, from goal to deliverable: a server and six processes of their own each time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kokuban.blackboard import InvalidTask
from kokuban.console._options import TaskRequest
from kokuban.console._run import _about, _example, _example_task
from support.processes import gone, linux_only

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
CHECK = "python3 -m unittest -q"

pytestmark = pytest.mark.timeout(180)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def left_behind(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "temporary")


def lines_until(process: subprocess.Popen[str], words: str) -> Iterator[str]:
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if words in line:
            return
    raise AssertionError(f"it ended before it said {words!r}")


def test_a_task_done(tmp_path: Path, kokuban: Run, workspace: Path, script: Callable[..., str]) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('a stranger was imported')")
    before = (workspace / "calc.py").read_text()
    run = kokuban(
        "run", "Fix add", "--workspace", workspace, "--check", CHECK, "--model", script(), "--out", "out", "--json",
        env={"FORCE_COLOR": "1", "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    outcome = json.loads(run.stdout)
    assert (outcome["state"], outcome["checked"]) == ("done", True)
    assert outcome["changes"] == [{"path": "calc.py", "op": "modify", "after": outcome["changes"][0]["after"]}]
    assert [source["kind"] for source in outcome["parts"][0]["sources"]] == ["patch"]
    assert outcome["checks"] == [{"command": CHECK, "exit_code": 0, "timed_out": False}]
    assert outcome["usage"]["model_calls"] == 2
    kinds = [kind for kind in ("plan/", "patch/", "verdict/", "deliverable/") if f"artifact  {kind}" in run.stderr]
    assert kinds == ["plan/", "patch/", "verdict/", "deliverable/"]
    assert "\x1b" not in run.stderr + run.stdout
    assert "a + b" in (tmp_path / "out" / "files" / "calc.py").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "files",
        "changes.diff",
        "report.md",
        "manifest.json",
    }
    assert (workspace / "calc.py").read_text() == before
    assert left_behind(tmp_path) == []


def test_a_task_failed(tmp_path: Path, kokuban: Run, workspace: Path, script: Callable[..., str]) -> None:
    model = script("def add(a, b):\n    return a * b\n", times=1)
    run = kokuban(
        "run", "Fix add", "--workspace", workspace, "--check", CHECK, "--model", model, "--attempts", "1",
        "--out", "out", "--store", "store",
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert run.stdout.startswith("failed: ")
    assert "used: " in run.stdout
    assert not (tmp_path / "out").exists()
    assert "Nothing was written" in run.stderr
    assert (tmp_path / "store" / "logs" / "coder.log").read_text().count(" level=info ") > 0
    assert os.listdir(tmp_path / "store" / "homes" / "coder") == []


@linux_only
def test_ctrl_c_ends_everything(tmp_path: Path, started: Start, workspace: Path, script: Callable[..., str]) -> None:
    options = ("--workspace", workspace, "--check", CHECK, "--model", script(delay_seconds=600))
    process = started("run", "Fix add", *options)
    list(lines_until(process, "coder/fix  claimed"))
    children = children_of(process.pid)
    assert len(children) == 7
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert all(gone(child) for child in children)
    assert left_behind(tmp_path) == []


@linux_only
def test_a_run_that_takes_too_long_or_is_not_looked_at(
    tmp_path: Path, started: Start, workspace: Path, script: Callable[..., str]
) -> None:
    process = started(
        "run", "Fix add", "--workspace", workspace, "--model", script(delay_seconds=600), "--timeout", "4"
    )
    assert process.stderr is not None
    process.stderr.close()  # whoever watched is gone: the run goes on, to its own end
    assert process.wait(40) == 4
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("name", ["fix-a-bug", "add-a-feature"])
def test_the_bundled_examples_are_sound(name: str) -> None:
    request = _example_task(_example(name))
    assert request.checks
    asyncio.run(request.validate(checks_run_here=True))


def test_what_a_recording_says_about_itself(tmp_path: Path) -> None:
    assert "recorded session of a real model" in _about(tmp_path)
    (tmp_path / "ABOUT.toml").write_text('model = "tiny-1"\nrecorded = 2026-01-02\nwith = "a server"\n')
    for words in ("tiny-1", "2026-01-02", "a server", "No model is configured"):
        assert words in _about(tmp_path)


@pytest.mark.parametrize(
    "check",
    [
        "true", "test -f x", "[ -f x ]", "cd sub && make", "if true; then true; fi", "! false", "A=1 no-such-program",
        '"$PYTHON" -m unittest', "(no-such-program)", "sh ./made-later.sh", "./check.sh", "bin/check.sh --all",
        sys.executable, "python3 -m unittest", "echo 'no-such-program'",
    ],
)  # fmt: skip
def test_a_check_that_a_shell_can_start_is_let_through(check: str, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "bin").mkdir(parents=True)
    for path in ("check.sh", "bin/check.sh"):
        (workspace / path).write_text("#!/bin/sh\n")
        (workspace / path).chmod(0o755)
    asyncio.run(TaskRequest(goal="x", workspace=workspace, checks=(check,)).validate(checks_run_here=True))


@pytest.mark.parametrize("check", ["no-such-program", "./missing.sh", "../out.sh", "bin", "/no/such", "no.such/one -v"])
def test_a_check_whose_program_is_not_there_is_named(check: str, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "bin").mkdir(parents=True)
    request = TaskRequest(goal="x", workspace=workspace, checks=("true", check))
    with pytest.raises(InvalidTask, match="check: ") as caught:
        asyncio.run(request.validate(checks_run_here=True))
    assert check.split()[0] in str(caught.value)
    asyncio.run(request.validate(checks_run_here=False))  # another machine may have it
