"""Running the task's checks for the model: real commands, on copies, with output fit to record."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kokuban.agents.tools import RUN_CHECKS, Arguments, Registry, ToolContext, execute, run_checks_on
from kokuban.blackboard.workspace import scan

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]


async def run_checks(context: ToolContext) -> tuple[str, bool]:
    judged = Registry([RUN_CHECKS]).validate("run_checks", {})
    assert isinstance(judged, Arguments)
    seen = await execute(judged, context)
    return seen.text, seen.ok


TEST = """
import unittest, pkg
class T(unittest.TestCase):
    def test_one(self):
        self.assertEqual(pkg.one(), 1)
"""


async def test_a_real_failing_test_is_shown_and_the_same_every_time(context: Make) -> None:
    files = {"pkg.py": "def one():\n    return 2\n", "tests/test_pkg.py": TEST}
    here = context(files, checks=(f"{sys.executable} -m unittest discover -s tests",))
    text, ok = await run_checks(here)
    assert ok
    assert "AssertionError: 2 != 1" in text
    assert 'File "./tests/test_pkg.py", line 5' in text
    assert "Ran 1 test in N s" in text
    assert text.endswith("1 of 1 check failed.")
    assert "failed with exit code 1" in text
    assert str(here.home) not in text
    assert await run_checks(here) == (text, True)
    (here.checkout / "pkg.py").write_text("def one():\n    return 1\n")
    assert (await run_checks(here))[0].endswith("All checks passed (1 check).")


async def test_what_checks_write_reaches_neither_the_work_nor_each_other(context: Make) -> None:
    here = context(
        checks=("touch made && rm README.md && ln -s / link", "test ! -e made && test -e README.md", "touch $HOME/x")
    )
    before = scan(here.checkout)
    text, _ = await run_checks(here)
    assert text.endswith("All checks passed (3 checks).")
    assert scan(here.checkout) == before
    assert list(here.home.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "shown", "options"),
    [
        ("no-such-check", "failed with exit code 127", {}),
        ("sleep 60", "did not end in time and was killed", {"check_seconds": 0.3}),
        ("kill -9 $$", "was killed by signal 9", {}),
        ("sleep 60 & exit 0", "passed with exit code 0 (it left processes running, which were killed)", {}),
        ("head -c 10000000 /dev/zero | tr '\\0' x; exit 1", "10,000,000 bytes in all", {}),
        ("true", "(no output)", {}),
    ],
)
async def test_every_way_a_check_can_end_is_named(
    context: Make, command: str, shown: str, options: dict[str, Any]
) -> None:
    text, _ = await run_checks(context(checks=(command,), **options))
    assert shown in text
    assert len(text.encode()) < 20_000


async def test_a_task_without_checks_says_so(context: Make) -> None:
    text, ok = await run_checks(context())
    assert not ok
    assert "no checks" in text


async def test_a_checkout_that_cannot_be_read_is_explained(context: Make) -> None:
    here = context(checks=("true",))
    (here.checkout / "link").symlink_to("/etc/passwd")
    text, ok = await run_checks(here)
    assert not ok
    assert "link" in text


async def test_checks_see_no_keys_but_what_is_given(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    here = context(checks=("env",), env_extra={"GIVEN": "yes"})
    (run,) = await run_checks_on(here.base, here)
    assert run.passed
    assert "secret" not in run.output
    assert "GIVEN=yes" in run.output
    assert os.environ["OPENAI_API_KEY"] == "secret"
