"""Every rule of the history checker can fail: a good history is broken in one place, and the rule says so."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import kokuban.blackboard.audit as checker
from audit import more_faults
from audit.faults import FAULTS, Fault
from audit.story import SETTINGS, Story, good
from kokuban.blackboard.audit import RULES, Report, audit

assert more_faults.__doc__  # its faults are in the list, too


def checked(story: Story) -> Report:
    return audit([line.message() for line in story.lines], SETTINGS, effects=story.effects)


def test_a_good_history_breaks_no_rule() -> None:
    report = checked(good())
    assert report.violations == ()
    assert report.proved == tuple(RULES.values())
    assert report.counts["effects exactly once"] == 2
    assert list(report.notes) == ["a past leader took a step back: the register moved, and that is all"]


@pytest.mark.parametrize(("rule", "fault"), [pytest.param(r, f, id=f"{r}:{name}") for r, name, f in FAULTS])
def test_a_broken_history_breaks_its_rule(rule: str, fault: Fault) -> None:
    story = good()
    fault(story)
    report = checked(story)
    assert rule in {violation.rule for violation in report.violations}, report.violations
    assert RULES[rule] not in report.proved


def test_every_rule_has_been_seen_to_fail() -> None:
    assert {rule for rule, _, _ in FAULTS} == set(RULES)


def test_it_imports_nothing_of_kokubans() -> None:
    for path in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                assert not isinstance(node, ast.ImportFrom) or node.level == 1, path
                continue
            assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names, path
