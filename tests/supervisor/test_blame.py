"""Whom a failing merged result goes back to: the step whose files the checks name, if nothing else builds on it."""

from __future__ import annotations

import pytest

from core import contents
from core.history import begun
from kokuban.schemas import FileChange, Patch, digest
from kokuban.supervisor._wants import culprit


def changing(path: str) -> Patch:
    change = FileChange(path, "add", after=digest(path.encode()), text=path)
    return Patch(digest(b""), digest(path.encode()), (change,), f"+{path}")


@pytest.mark.parametrize(
    ("needs", "said", "blamed"),
    [
        ((), 'File "tests/test_roman.py", in test_it\nto_int failed in kit/roman.py', "one"),
        ((), "FAIL: test_subtracting (test_roman.Roman.test_subtracting)", "one"),
        ((), "words.initials is wrong", "two"),
        ((), "nothing is named", "two"),
        ((), "roman and words", "two"),
        (("one",), "roman is wrong, but the second builds on it", "two"),
    ],
)
def test_the_step_that_the_checks_name_is_sent_back(needs: tuple[str, ...], said: str, blamed: str) -> None:
    history = begun()
    plan = contents.plan(("one", "coder", ()), ("two", "coder", needs))
    history.perform("plan", "planner", ("plan", plan))
    history.perform("one", "coder", ("patch", changing("kit/roman.py")))
    history.perform("two", "coder", ("patch", changing("kit/words.py")))
    assert culprit(history.board.tasks["t-1"], plan, ("one", "two"), said) == blamed
