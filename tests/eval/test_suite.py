"""The suite that comes with the product: each task can be solved, is not solved yet, and hides what decides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kokuban.blackboard.workspace import File
from kokuban.console.evaluation import EvalTask, InvalidSuite, load
from kokuban.console.evaluation._judging import looks_right, solved

EVALS = Path(__file__).parents[2] / "evals"
TASKS = load(EVALS / "small.jsonl")
pytestmark = pytest.mark.anyio


def test_there_are_at_least_sixty_of_three_kinds() -> None:
    kinds = [task.kind for task in TASKS]
    assert len(TASKS) >= 60
    assert {kind: kinds.count(kind) >= 15 for kind in set(kinds)} == {"code": True, "question": True, "plan": True}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
async def test_a_solution_passes_and_the_untouched_workspace_does_not(task: EvalTask) -> None:
    assert task.solution is not None
    given = {**task.workspace, task.writes: File(task.solution.encode(), False)}
    assert await looks_right(task, given)
    assert await solved(task, given)
    assert not await solved(task, task.workspace)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_what_decides_is_not_shown(task: EvalTask) -> None:
    shown = f"{task.goal}{task.files}{task.sources}{task.checks}"
    assert not any(path not in task.files and text in shown for path, text in task.hidden.files.items() if text)
    assert task.hidden.checks != task.checks


def test_changing_a_check_does_not_help() -> None:
    task = TASKS[0]
    test = next(path for path in task.files if path.startswith("tests/test_"))
    assert test in task.hidden.files or "tests.test_hidden" in task.hidden.checks[0]


def test_the_file_is_what_the_script_writes(tmp_path: Path) -> None:
    before = (EVALS / "small.jsonl").read_bytes()
    copy = tmp_path / "evals"
    copy.mkdir()
    for name in ("make.py", "code_tasks.py", "question_tasks.py", "plan_tasks.py"):
        (copy / name).write_bytes((EVALS / name).read_bytes())
    subprocess.run([sys.executable, str(copy / "make.py")], check=True, timeout=60)
    assert (copy / "small.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "line 1"),
        ('{"id": "a"}', "line 1"),
        ("", "no task"),
        ('{"id":"a","kind":"k","goal":"g","writes":"w","hidden":{"files":{},"checks":[]}}', "hidden.checks"),
        ('{"id":"A b","kind":"k","goal":"g","writes":"w","hidden":{"files":{},"checks":["true"]}}', "id"),
        (
            '{"id":"a","kind":"k","goal":"g","writes":"w","hidden":{"files":{},"checks":["true"]}}\n' * 2,
            "line 2: id: there is a task 'a' already",
        ),
    ],
)
def test_a_suite_that_cannot_be_used_is_refused_with_the_line(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidSuite, match=named):
        load(path)


def test_a_task_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidSuite, match="'nothing'"):
        load(EVALS / "small.jsonl", ["nothing"])
