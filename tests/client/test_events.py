"""Records told as events: every type has a name and words, and a watcher is told who and until when."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from kokuban.blackboard._events import EVENTS, Event, events_of
from kokuban.blackboard.core import Applied, Stored
from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Control,
    Decision,
    Gate,
    GateRequest,
    Grant,
    Intake,
    Journal,
    Opens,
    Ref,
    RegisteredKind,
    RegisteredRole,
    Snapshot,
    Tombstone,
    Vote,
    Waiting,
    Wire,
    digest,
    encode,
    open_record,
    seal,
    subjects,
)
from kokuban.schemas.envelope import Type

GATE = Gate("fix-1-3", "call", "Post it?", "publish", msgspec.Raw(b"{}"), expires_seconds=60)
BOUND = digest(encode(GATE))
VOTES = subjects.gate_vote("t-1", "coder", "fix-1-3", "ann")


def told(kind: str, body: Wire, subject: str = "kb.task.t-1.step.coder.fix", **fields: object) -> Event:
    """The one event of a record that counted."""
    record = open_record(seal(body, id="op", type=kind, task="t-1", role="coder", worker="w", **fields))
    (event,) = events_of(Applied(None, record), Stored(7, subject, 1_000.0, b""))
    assert (event.seq, event.time) == (7, 1_000.0)
    return event


def test_every_type_of_record_on_the_board_has_a_name() -> None:
    told_apart = {"step.done", "task.control"}  # by what they hold
    elsewhere = {"quota.endpoint", "quota.limits"}  # on a stream of their own
    assert set(get_args(Type)) - told_apart - elsewhere == set(EVENTS)


@pytest.mark.parametrize(
    ("kind", "body", "event", "text"),
    [
        ("step.granted", Grant(5, Allotment(1, 2, 3, 4, 5)), "granted",
         "now 3 tokens, 1 model turns, 2 tool calls, 4 seconds, 5 millionths of a dollar"),
        ("step.journal", Journal(asks=Allotment(1, 2, 3, 4)), "asked",
         "for 3 tokens, 1 model turns, 2 tool calls, 4 seconds"),
        ("step.journal", Journal(opens=Opens(1, "tool", "t", msgspec.Raw(b'{"asks":1}'))), "journal", ""),
        ("ctl.limits", BoardLimits({"coder": 2}), "limits", '{"roles":{"coder":2}}'),
        ("ctl.intake", Intake(True, 5, 10), "intake", "open (5 of 10 bytes)"),
        ("ctl.intake", Intake(False, 9, 10), "intake", "closed: no new tasks are taken (9 of 10 bytes)"),
        ("ctl.kind", RegisteredKind("memo", 2, msgspec.Raw(b"{}")), "kind", "memo, version 2"),
        ("ctl.role", RegisteredRole("critic", "role = 'critic'"), "role", "critic"),
        ("ctl.snapshot", Snapshot(BOUND, 5, "op", "f"), "snapshot", ""),
        ("task.tombstone", Tombstone("failed", "no luck", 1, 2, "default"), "archived", "failed: no luck"),
        ("task.control", Control("cancel", "enough"), "cancel", "enough"),
        ("task.control", Control("inject", "a fact"), "fact", "a fact"),
        ("task.control", Control("drop"), "dropped", ""),
    ],
)  # fmt: skip
def test_names_and_words(kind: str, body: Wire, event: str, text: str) -> None:
    found = told(kind, body)
    assert (found.event, found.text, found.kind) == (event, text, "")


def test_a_gate_comes_whole_with_its_end_and_what_a_vote_is_bound_to() -> None:
    found = told("step.waiting", Waiting(GATE), step="fix", attempt=2)
    assert (found.event, found.gate, found.digest, found.until) == ("waiting", "fix-1-3", BOUND, 1_060.0)
    assert (found.worker, found.step, found.attempt) == ("w", "fix", 2)
    assert found.asks() == GATE
    for_ever = Gate("approve-1", "artifact", "May it count?", subject=Ref("fix", "patch", "p", BOUND, 3))
    found = told("gate.request", GateRequest(for_ever), subjects.gate_request("t-1", "coder", "approve-1"))
    assert (found.event, found.until, found.asks(), found.person) == ("gate", 0.0, for_ever, "")
    with pytest.raises(ValueError, match="carries no artifact"):
        found.artifact()
    with pytest.raises(ValueError, match="asks nothing"):
        told("task.control", Control("drop")).asks()


def test_whose_word_it_is_is_what_the_subject_says() -> None:
    vote = told("gate.vote", Vote("deny", BOUND, "no"), VOTES, principal="eve")
    assert (vote.event, vote.person, vote.gate, vote.digest, vote.text) == ("vote", "ann", "fix-1-3", BOUND, "deny: no")
    control = told("task.control", Control("cancel"), subjects.control("t-1", "bob", "0a"), principal="eve")
    assert (control.event, control.person) == ("cancel", "bob")
    decision = Decision("fix-1-3", "approved", BOUND, ("ann", "bob"), "fine")
    found = told("gate.decision", decision, subjects.gate_decision("t-1", "coder", "fix-1-3"))
    assert (found.event, found.gate, found.text) == ("decision", "fix-1-3", "approved by ann, bob: fine")
    assert told("gate.decision", Decision("g", "expired", BOUND)).text == "expired"
