"""What a coder's tool call changed stays, though the checks were no better after it; a code block does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHECK = "python3 -m unittest -q"
RIGHT = "def add(a, b):\n    return a + b\n"

pytestmark = pytest.mark.timeout(180)


def test_a_file_that_a_tool_call_wrote_is_not_undone(
    tmp_path: Path, kokuban: Callable[..., subprocess.CompletedProcess[str]], workspace: Path
) -> None:
    def block(code: str) -> str:
        return f"This way.\n\n```python\n{code}```\n"

    call = {"name": "write_file", "arguments": {"path": "notes.txt", "content": "agreed\n"}}
    plan = {"steps": [{"id": "fix", "role": "coder", "goal": "Make add give the sum in calc.py", "needs": []}]}
    worse = "def add(a, b):\n    return nothing\n"
    replies: list[dict[str, Any]] = [{"when": {"role": "planner"}, "reply": {"content": plan}}]
    for turn, reply in enumerate(({"calls": [call]}, *[{"content": block(worse)}] * 2, {"content": block(RIGHT)}), 1):
        replies.append({"when": {"role": "coder", "turn": turn}, "reply": reply})
    model = tmp_path / "script.json"
    model.write_text(json.dumps({"replies": replies}))
    run = kokuban(
        "run", "Fix add in calc.py", "--workspace", workspace, "--check", CHECK, "--model", f"scripted:{model}",
        "--out", "out", "--json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(change["path"] for change in json.loads(run.stdout)["changes"]) == ["calc.py", "notes.txt"]
    assert (tmp_path / "out" / "files" / "notes.txt").read_text() == "agreed\n"
