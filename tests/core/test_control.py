"""Records about the board as a whole, and people's words, that say something they may not."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from core import contents
from core.folding import changes_nothing, claimed, plain
from core.history import begun, folded, result_of
from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Intake,
    KindRef,
    RegisteredKind,
    RegisteredRole,
    WorkOrder,
    subjects,
)
from kokuban.schemas.memory import Judgement
from kokuban.supervisor import Allow

ROLE = 'role = "writer"'


@pytest.mark.parametrize(
    ("subject", "kind", "body"),
    [
        (subjects.contract("other"), "ctl.role", RegisteredRole("writer", ROLE)),
        (subjects.kind("note", 2), "ctl.kind", RegisteredKind("note", 1, Raw(b"{}"))),
        (subjects.INTAKE, "ctl.limits", BoardLimits()),
        (subjects.LIMITS, "ctl.intake", Intake(False)),
        ("kb.ctl.pause", "ctl.snapshot", Intake(False)),
    ],
)
def test_what_is_said_in_another_place_counts_for_nothing(subject: str, kind: str, body: object) -> None:
    history = begun()
    applied = history.write(subject, body, kind, task=None)  # type: ignore[arg-type]
    changes_nothing(history, applied, applied.ignored)
    assert applied.ignored


def test_what_teams_remember_changes_no_board_and_is_no_mistake() -> None:
    history = begun()
    subject = subjects.memory("acme", "a" * 24, "judged", "person-ann")
    applied = history.write(subject, Judgement("approved", contents.NOTHING), "memory.judged", task=None)
    assert (applied.task, applied.ignored) == (None, "")
    assert plain(history.board) == plain(folded(history.messages[:-1]))


def test_the_last_limits_and_the_last_word_on_intake_count() -> None:
    history = begun()
    for most in (1, 2):
        history.write(subjects.LIMITS, BoardLimits(roles={"coder": most}), "ctl.limits", task=None)
        history.write(subjects.INTAKE, Intake(most == 2, most), "ctl.intake", task=None)
    assert history.board.limits.roles == {"coder": 2}
    assert history.board.intake == Intake(True, 2)


@pytest.mark.parametrize(("op", "text"), [("inject", ""), ("drop", "")])
def test_an_empty_fact_and_a_drop_of_a_living_task_are_nothing(op: str, text: str) -> None:
    history = begun()
    changes_nothing(history, history.say(op, text), f"{op}: nothing to do")


def test_a_task_is_cancelled_once_and_keeps_so_many_facts() -> None:
    history = begun()
    history.say("cancel")
    changes_nothing(history, history.say("cancel", "again"), "cancel: nothing to do")
    assert history.board.tasks["t-1"].cancel == "no reason was given"
    for n in range(64):
        assert not history.say("inject", f"fact {n}").ignored
    changes_nothing(history, history.say("inject", "one more"), "inject: nothing to do")


def test_the_same_content_cannot_be_two_kinds_of_artifact() -> None:
    """A verdict names a digest: it must mean one thing."""
    history = begun()
    schema = Raw(b'{"type":"object","additionalProperties":true}')
    made = history.write(subjects.kind("note", 1), RegisteredKind("note", 1, schema), "ctl.kind", task=None)
    assert not made.ignored
    history.perform("look", "researcher", ("it", contents.finding()))
    order = WorkOrder(0, history.spec_seq, "note it", ("note",), kinds=(KindRef("note", 1),))
    history.order("again", "researcher", order=order)
    history.claim("again")
    same = replace(result_of(("it", contents.finding())), kind="note")
    assert history.done("again", results=[same]).refused == ("note 'it': the same content was admitted as 'finding'",)


def test_a_grant_that_nobody_asked_for_and_a_line_after_the_register_moved_are_nothing() -> None:
    history = claimed()
    fence = history.registers["look"].fence
    for claim in (fence, fence + 1):
        changes_nothing(history, history.decided(Allow("look", "researcher", claim, Allotment())), "nobody asked")
    history.put(subjects.register("t-1", "researcher", "look"), b"junk")
    changes_nothing(history, history.journal("look"), "the register has moved")
