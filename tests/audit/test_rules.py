"""Every rule of the history checker can fail: a good history is broken in one place, and the rule says so."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import kokuban.blackboard.audit as checker
from audit import end_faults, more_faults
from audit.faults import FAULTS, Fault, again, bury, drop
from audit.story import AGAIN, CHILD, DOUBT, LATE, SETTINGS, Story, find, good
from kokuban.blackboard.audit import RULES, Report, audit

assert end_faults.__doc__  # their faults are in the list, too
assert more_faults.__doc__


def checked(story: Story) -> Report:
    return audit([line.message() for line in story.lines], SETTINGS, effects=story.effects)


def test_a_good_history_breaks_no_rule() -> None:
    report = checked(good())
    assert report.violations == ()
    assert report.proved == tuple(RULES.values())
    assert report.counts["effects exactly once"] == 3
    assert report.counts["effects in doubt"] == 1
    assert list(report.notes) == [
        "somebody sealed a step of a task of which no end was begun: the register moved, and that is all",
        "a past leader took a step back: the register moved, and that is all",
    ]


@pytest.mark.parametrize(("rule", "fault"), [pytest.param(r, f, id=f"{r}:{name}") for r, name, f in FAULTS])
def test_a_broken_history_breaks_its_rule(rule: str, fault: Fault) -> None:
    story = good()
    fault(story)
    report = checked(story)
    assert rule in {violation.rule for violation in report.violations}, report.violations
    assert RULES[rule] not in report.proved


def test_a_tombstone_that_tells_of_the_tasks_own_end_is_right() -> None:
    story = good()
    bury(story, LATE)
    again(story, story.lines[-1], fence=0).subject = f"kb.task.{LATE}.spec"  # keeps the key
    again(story, find(story.lines, "task.spec", LATE))  # once both have had their time
    again(story, find(story.lines, "task.final", LATE), worker="sup-2")
    report = checked(story)
    assert report.violations == ()
    assert not any("tombstone" in note for note in report.notes)


def test_a_tombstone_on_the_specs_subject_is_only_odd() -> None:
    """A client may have written it: nothing that comes after it counts less."""
    story = good()
    final = find(story.lines, "task.final", LATE)
    drop(story, final)
    stone = again(story, final)
    stone.subject = f"kb.task.{LATE}.spec"
    stone.env.update(type="task.tombstone", body={"state": "done", "reason": "mine", "spec": 1, "final": 2})
    again(story, final)
    report = checked(story)
    assert report.violations == ()
    assert report.counts == checked(good()).counts | {"records": len(story.lines)}
    assert any("not archived" in note for note in report.notes)


def test_new_work_may_make_an_effect_anew_of_which_it_knows_how_it_ended() -> None:
    story = good()
    first = next(line for line in story.lines if (line.body.get("opens") or {}).get("key") == AGAIN)
    first.body["opens"].update(tool="deploy", effect="other", key=DOUBT)
    request = next(line for line in story.effects if line["key"] == AGAIN)
    request.update(key=DOUBT, honours=False)
    story.effects.remove(request)
    story.effects.append(request)
    report = checked(story)
    assert {violation.rule for violation in report.violations} == set()
    request["applied"] = False
    story.effects.append(request)
    assert "effect-once" in {violation.rule for violation in checked(story).violations}


def test_what_gave_no_result_is_no_purchase() -> None:
    story = good()
    more_faults.a_settled_call_is_bought_again(story)
    assert "replay" in {violation.rule for violation in checked(story).violations}
    for line in story.lines:
        if (line.body.get("settles") or {}).get("call") == 2:
            line.body["settles"].pop("result", None)
    assert "replay" not in {violation.rule for violation in checked(story).violations}


def test_a_seal_of_the_first_release_counts_by_itself() -> None:
    story = good()
    drop(story, find(story.lines, "task.ending", CHILD))
    assert "sealed" in {violation.rule for violation in checked(story).violations}
    for line in story.lines:
        line.env["version"] = 1
    assert checked(story).violations == ()


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
