"""Evaluation: tasks with checkable outcomes, done by a crew, by a single call of the same model, and by the best of as
many calls as the crew's tokens buy. Whether a task is solved is decided by checks that nobody who works on it sees."""

from kokuban.console.evaluation._arms import ARMS, Bench, Stopped
from kokuban.console.evaluation._report import Gate, changed, gates_of, summary, table
from kokuban.console.evaluation._results import Result, Results
from kokuban.console.evaluation._suite import EvalTask, InvalidSuite, load

__all__ = [
    "ARMS", "Bench", "EvalTask", "Gate", "InvalidSuite", "Result", "Results", "Stopped", "changed", "gates_of", "load",
    "summary", "table",
]  # fmt: skip
