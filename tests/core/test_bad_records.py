"""What is stored but is no record here: wrong envelopes, junk bytes, writes after the end, replays."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from core.folding import FINDING, changes_nothing, claimed, ordered
from core.history import folded, result_of
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.schemas import (
    Done,
    Final,
    Released,
    Settles,
    Usage,
    digest,
    seal,
    subjects,
)


@pytest.mark.parametrize("fields", [{"task": "t-2"}, {"step": "other"}, {"role": "coder"}, {"role": None}])
def test_subject_and_envelope_agree(fields: dict[str, str | None]) -> None:
    history = ordered()
    applied = history.claim("look", **fields)  # type: ignore[arg-type]
    changes_nothing(history, applied, "disagree")


@pytest.mark.parametrize("kind", ["step.order", "task.final", "artifact", "step.journal", "task.spec", "ctl.epoch"])
def test_a_type_belongs_under_its_subject(kind: str) -> None:
    history = claimed()
    subject = subjects.register("t-1", "researcher", "look")
    wrong = history.write(subject, Done(()), kind, step="look", role="researcher", fence=history.fence)
    changes_nothing(history, wrong, "disagree")


def test_the_end_is_the_end() -> None:
    history = claimed()
    history.order("other", "coder")
    history.final()
    task = history.board.tasks["t-1"]
    assert {step.status for step in task.steps.values()} == {"revoked"}
    assert +history.board.running == {}
    lates: list[Callable[[], Applied]] = [
        lambda: history.done("look", FINDING),
        lambda: history.order("third", "coder"),
        lambda: history.journal("look", settles=Settles(1, Usage(5))),
        lambda: history.final(Final("done", "all is well")),
        lambda: history.release("look"),
    ]
    for late in lates:
        changes_nothing(history, late(), "after the end")
    assert task.final == Final("failed", "it cannot be done")


def bad_bytes() -> dict[str, bytes]:
    good = seal(Released("silent", "gone"), id="x", type="step.released", task="t-1", step="look", role="researcher")
    body = b'{"why":"silent","reason":"gone"}'

    def with_body(raw: bytes) -> bytes:
        return good.replace(body, raw).replace(digest(body).encode(), digest(raw).encode())

    assert body in good
    return {
        "empty": b"",
        "text": b"hello",
        "cut": good[:-1],
        "tampered": good.replace(b"gone", b"gine"),
        "newer": good.replace(b'"id":"x"', b'"id":"x","version":2,"novel":[]'),
        "unknown field": good.replace(b'"id":"x"', b'"id":"x","novel":1'),
        "unknown type": good.replace(b"step.released", b"step.relieved"),
        "deep": b"[" * 100_000,
        "deep body": with_body(b'{"why":' + b"[" * 400 + b"]" * 400 + b"}"),
        "not UTF-8": with_body(b'{"why":"silent","reason":"\xff"}'),
        "not UTF-8 in a key": with_body(b'{"\xff":1}'),
        "surrogate": with_body(b'{"why":"silent","reason":"\\ud800"}'),
        "huge integer": with_body(b'{"why":"silent","reason":' + b"9" * 5_000 + b"}"),
        "huge float": with_body(b'{"why":1e999,"reason":"x"}'),
        "NaN": with_body(b'{"why":NaN,"reason":"x"}'),
        "null": with_body(b"null"),
        "wrong shape": with_body(b'{"why":"silent"}'),
        "wrong value": with_body(b'{"why":"bored","reason":"x"}'),
    }


@pytest.mark.parametrize("name", list(bad_bytes()))
def test_bytes_that_are_no_record_only_move_the_register(name: str) -> None:
    history = claimed()
    subject = subjects.register("t-1", "researcher", "look")
    changes_nothing(history, history.put(subject, bad_bytes()[name]), "")
    step = history.board.tasks["t-1"].steps["look"]
    assert (step.status, step.reg, step.moved) == ("claimed", history.last, True)


def test_a_result_of_any_depth_or_size_is_refused_not_fatal() -> None:
    deep = b'{"statement":' + b"[" * 110 + b"]" * 110 + b',"citations":[]}'
    long = b'{"statement":"' + b"x" * 100_000 + b'","citations":[]}'
    for raw in (deep, long, b'{"statement":' + b"9" * 5_000 + b"}", b'{"statement":1e999}', b"7"):
        history = claimed()
        result = msgspec.structs.replace(result_of(FINDING), body=msgspec.Raw(raw), digest=digest(raw))
        applied = history.done("look", results=[result])
        assert applied.refused
        assert all(reason.startswith("finding") and len(reason) < 1_000 for reason in applied.refused)


def test_the_fold_of_a_history_does_not_depend_on_how_it_was_read() -> None:
    history = claimed()
    history.done("look", FINDING)
    history.final()
    board = Board()
    for position, message in enumerate(history.messages):
        for again in history.messages[max(0, position - 2) : position + 1]:
            fold(board, again)
        assert board.last_seq == message.seq
    assert board == history.board == folded(history.messages)


def test_gaps_in_the_stream_are_no_fault() -> None:
    """Deleted messages leave gaps; sequences only grow."""
    history = claimed()
    shifted = [Stored(m.seq, m.subject, m.time, m.data) for m in history.messages if m.subject != subjects.LEASE]
    assert folded(shifted).tasks == history.board.tasks
