"""Writes small.jsonl: 32 functions with tests, 15 questions about documents, 15 plans with constraints.

    python evals/make.py

Each task is meant for a small model: one file, a few lines. What the agents may check is less than what decides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import code_tasks
import plan_tasks
import question_tasks

HERE = Path(__file__).parent


def main() -> None:
    tasks: list[dict[str, Any]] = [*code_tasks.tasks(), *question_tasks.tasks(), *plan_tasks.tasks()]
    lines = [json.dumps(task, ensure_ascii=False) for task in tasks]
    (HERE / "small.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
