"""What people read and run: the README's Python, the bundled examples and their recordings."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/example.toml"))


def test_the_readmes_python_runs_as_it_stands(
    started: Callable[..., subprocess.Popen[str]], workspace: Path, script: Callable[..., str],
    free_port: Callable[[], int], clean_env: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    port = free_port()
    up = started("up", "--port", port, "--store", tmp_path / "store", "--model", script(), stderr=subprocess.STDOUT)
    assert up.stdout is not None
    for line in up.stdout:
        if f"127.0.0.1:{port}" in line:
            break
    program = code.replace("nats://127.0.0.1:4222", f"nats://127.0.0.1:{port}")
    secret = tmp_path / "store" / "credentials" / "default" / "client.nk"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=workspace, env=clean_env | {"KOKUBAN_CREDENTIALS": str(secret)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "every check passed on the merged result" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_recording_of_an_example_is_not_stale(
    example: Path, kokuban: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = kokuban("demo", "--example", example.name)
    assert done.returncode == 0, done.stderr
    assert "recorded session of a real model" in done.stderr


def test_one_changed_byte_is_a_miss_that_says_so(
    tmp_path: Path, kokuban: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    example = ROOT / "examples" / "fix-a-bug"
    goal = (example / "GOAL.txt").read_text().strip()
    arguments = ["--workspace", example / "workspace", "--check", "python3 -m unittest discover -s tests -q"]
    done = kokuban("run", goal + "!", *arguments, "--model", f"recorded:{example / 'recording'}")
    assert done.returncode == 1
    assert "goal" in done.stdout + done.stderr
    assert "make record" in done.stdout + done.stderr
