"""`kokuban eval` with real processes: what is counted, what decides, going on, comparing, gates, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.conftest import CHECK, RIGHT, TEST, WRONG, Said
from console.test_run import children_of, left_behind
from kokuban.console.evaluation import Result, Results, summary
from kokuban.console.evaluation._report import wilson
from models.chat_server import serving
from support.processes import gone, linux_only

Run = Callable[..., subprocess.CompletedProcess[str]]
ONLY_VISIBLE = "def add(a, b):\n    return 5\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """One task: the visible check tries one sum, the hidden one another."""
    task = {
        "id": "adds", "kind": "code", "goal": "Mend add", "writes": "calc.py",
        "files": {"calc.py": WRONG, "test_calc.py": TEST}, "checks": [CHECK],
        "hidden": {"files": {"test_more.py": TEST.replace("(2, 3), 5", "(20, 30), 50")},
                   "checks": ["python3 -m unittest -q test_more"]},
        "solution": RIGHT,
    }  # fmt: skip
    (tmp_path / "suite.jsonl").write_text(json.dumps(task) + "\n")
    return tmp_path / "suite.jsonl"


@pytest.fixture
def says(tmp_path: Path) -> Callable[..., str]:
    """A model whose crew writes `crew`, and whose single calls say each of `single` in turn."""

    def write(crew: str, *single: str) -> str:
        plan = {"steps": [{"id": "fix", "role": "coder", "goal": "Make add give the sum", "needs": []}]}
        edit = {"path": "calc.py", "content": crew}
        action = {"thought": "because", "tool": "write_file", "arguments": edit}
        replies: list[dict[str, Any]] = [
            {"when": {"role": "planner"}, "reply": {"content": plan}},
            {"when": {"role": "coder"}, "reply": {"content": action}},
        ]
        for turn, code in enumerate(single, 1):
            reply = {"content": f"Here it is:\n```python\n{code}```\n"}
            replies.append({"when": {"role": "single", "turn": turn}, "reply": reply, "times": 2})
        (tmp_path / "script.json").write_text(json.dumps({"replies": replies}))
        return f"scripted:{tmp_path / 'script.json'}"

    return write


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_three_arms_by_what_nobody_sees_and_going_on(
    tmp_path: Path, kokuban: Run, suite: Path, says: Callable[..., str]
) -> None:
    file = tmp_path / "r.jsonl"
    words = ("eval", suite, "--baseline", "--results", file, "--json")
    run = kokuban(*words, "--model", says(RIGHT, ONLY_VISIBLE, ONLY_VISIBLE), "--gate", "pass>=1")
    assert run.returncode == 0, run.stderr
    arms = json.loads(run.stdout)["arms"]
    assert {arm: of["passed"] for arm, of in arms.items()} == {"crew": 1, "single": 0, "best-of-n": 0}
    crew, single, best = lines(file)
    assert crew["steps"] == 5
    assert crew["tokens"] > single["tokens"] > 0
    assert (single["tries"], best["ended"]) == (1, "chosen by the checks")  # which the wrong answer passes
    whole = file.read_bytes()
    kept = whole[: whole.rindex(b'{"task"')]
    file.write_bytes(kept + whole[len(kept) : -9])  # killed as it wrote the last one
    again = kokuban(*words, "--model", says(WRONG, WRONG, RIGHT), "--gate", "best-of-n.pass>=1", "--gate", "pass>=1")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("adds ") == 1  # the last arm only
    assert file.read_bytes().startswith(kept)
    assert [one["passed"] for one in lines(file)] == [True, False, True]


def test_a_task_that_does_worse_is_named_and_fails_the_gate(
    tmp_path: Path, kokuban: Run, suite: Path, says: Callable[..., str]
) -> None:
    before = Results(tmp_path / "before.jsonl")
    before.add(Result("adds", "code", 0, "crew", True, 1, 1, 1.0))
    run = kokuban(
        "eval", suite, "--model", says(ONLY_VISIBLE), "--compare", tmp_path / "before.jsonl", "--gate", "no-regression"
    )
    assert run.returncode == 1, run.stderr
    assert "better: none; worse: adds" in run.stdout
    assert "gate: no-regression does not hold" in run.stderr
    assert "| crew | all | 0 of 1 | 0% (0% to 79%) |" in run.stdout


@linux_only
@pytest.mark.anyio
async def test_asked_to_end_it_ends(tmp_path: Path, started: Callable[..., subprocess.Popen[str]], suite: Path) -> None:
    asked = asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(600)

    async with serving(never) as chat:
        process = started(
            "eval", suite, "--model", "openai-compatible:m", "--base-url", chat.url, "--results", "r.jsonl"
        )
        await asyncio.wait_for(asked.wait(), 30)
        children = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        _, err = await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 130, err
    assert "goes on behind what is in r.jsonl" in err
    assert len(children) == 7
    assert all(gone(child) for child in children)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--gate", "single.pass>=0.5"], "there is no arm single"),
        (["--gate", "no-regression"], "needs --compare"),
        (["--gate", "pass=1"], "neither pass>=RATE"),
        (["--compare", "none.jsonl"], "there is no file none.jsonl"),
        (["--compare", "odd.jsonl"], "odd.jsonl, line 2: it is no result"),
        (["--results", "odd.jsonl"], "odd.jsonl, line 2: it is no result"),
        (["--only", "other"], "other"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(
    tmp_path: Path, here: Callable[..., Said], suite: Path, says: Callable[..., str], more: list[str], named: str
) -> None:
    Results(tmp_path / "odd.jsonl").add(Result("adds", "code", 0, "crew", True, 1, 1, 1.0))
    with (tmp_path / "odd.jsonl").open("a") as file:
        file.write('{"task": 3}\n')
    said = here("eval", suite, "--model", says(RIGHT), *more)
    assert (said.code, said.out) == (2, "")
    assert named in said.err


def test_comparing_leaves_the_earlier_results_as_they_are(tmp_path: Path) -> None:
    Results(tmp_path / "r.jsonl").add(Result("a", "code", 0, "crew", True, 1, 1, 1.0))
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"task": "b", "ki')
    before = (tmp_path / "r.jsonl").read_bytes()
    assert len(Results(tmp_path / "r.jsonl").found) == 1
    assert (tmp_path / "r.jsonl").read_bytes() == before


def test_rates_have_the_interval_of_wilson() -> None:
    assert [round(bound, 4) for bound in wilson(9, 11)] == [0.523, 0.9486]  # by hand from his formula
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 6)[0] == 0.0
    results = [Result(f"t{n}", "code", 0, "crew", n < 9, 10 * n, 1, 2.0, micros=n, limited=n == 0) for n in range(11)]
    said = summary(results)["crew"]
    assert (said["runs"], said["passed"], said["tokens"], said["seconds"]) == (11, 9, 50, 2.0)
    assert said["limited"] == round(1 / 11, 3)
    assert said["dollars"] == 5e-6
