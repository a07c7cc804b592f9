"""Programs as people have them, in a whole run: a small one of ours, and two from the package index, unmodified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.team import CHECK, plan, script, workspace

HERE = Path(__file__).absolute().parent
EXAMPLES = HERE.parents[1] / "examples"
MINI = os.environ.get("KOKUBAN_TEST_MINI") or shutil.which("mini")
"""mini-SWE-agent's program (`pip install mini-swe-agent` in a place of its own)."""
LLM = os.environ.get("KOKUBAN_TEST_LLM") or shutil.which("llm")
"""The program of the llm command line tool, installed likewise."""
pytestmark = pytest.mark.timeout(120)


def run(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
    return subprocess.run(
        [sys.executable, "-m", "kokuban.console.main", "run", *map(str, words), "--json"],
        cwd=tmp_path, env=environment | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_a_run_whose_coder_is_a_program(tmp_path: Path) -> None:
    fixed = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a + a\n"
    model = script(
        tmp_path / "s.json", plan(("fix", "coder", ())),
        {"when": {"role": "coder", "contains": "What is to be changed?"}, "reply": {"content": "the signs"}},
        {"when": {"role": "coder"}, "reply": {"content": fixed}},
    )  # fmt: skip
    done = run(
        tmp_path, "Fix both", "--workspace", workspace(tmp_path / "ws"), "--check", CHECK, "--model", model,
        "--exec", f"coder={sys.executable} {HERE / 'agent.py'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["state"], outcome["checked"], outcome["usage"]["model_calls"]) == ("done", True, 3)


@pytest.mark.parametrize("said", ["coder", "coder=", "wizard=true", "=true"])
def test_what_is_no_role_with_a_command_is_named(tmp_path: Path, said: str) -> None:
    done = run(tmp_path, "Fix both", "--model", "scripted:s.json", "--exec", said)
    assert done.returncode == 2
    assert "ROLE=COMMAND" in done.stderr


@pytest.mark.skipif(MINI is None, reason="mini-swe-agent is not installed (KOKUBAN_TEST_MINI names its program)")
def test_mini_swe_agent_fixes_a_bug_unmodified(tmp_path: Path) -> None:
    example, foreign = EXAMPLES / "fix-a-bug", EXAMPLES / "foreign-agent"
    done = run(
        tmp_path, (example / "GOAL.txt").read_text().strip(), "--workspace", example / "workspace",
        "--check", "python3 -m unittest discover -s tests -q", "--model", f"scripted:{foreign / 'script.json'}",
        "--exec", f"coder={foreign / 'mini.sh'} {MINI}", "--attempts", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert [change["path"] for change in outcome["changes"]] == ["subshift/cues.py"]
    assert outcome["usage"]["model_calls"] == 4, "the plan, and three turns of the agent"


@pytest.mark.skipif(LLM is None, reason="llm is not installed (KOKUBAN_TEST_LLM names its program)")
def test_the_llm_tool_fixes_a_file_unmodified(tmp_path: Path) -> None:
    fixed = "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a + a\n"
    model = script(
        tmp_path / "s.json", plan(("fix", "coder", ())),
        {"when": {"role": "coder", "contains": "FAIL: double"}, "reply": {"content": f"So:\n```python\n{fixed}```\n"}},
    )  # fmt: skip
    done = run(
        tmp_path, "Fix both", "--workspace", workspace(tmp_path / "ws"), "--check", CHECK, "--model", model,
        "--exec", f"coder={EXAMPLES / 'foreign-agent' / 'llm.sh'} {LLM} calc.py", "--attempts", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["model_calls"] == 2
