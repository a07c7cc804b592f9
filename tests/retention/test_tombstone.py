"""The tombstone in the fold: whoever reads a task before, while or after it is archived comes to the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import contents, golden
from core.history import History, begun, folded
from kokuban.blackboard.core import Board, Stored, fold, snapshot
from kokuban.schemas import Tombstone, Usage, subjects

SPENT = Usage(7, 3, 1)


def over(**spec: object) -> History:
    """A task that ended while a step was claimed."""
    history = begun(**spec)
    history.order("look", "researcher")
    history.claim("look")
    history.final()
    return history


def stone(history: History, keep_seconds: int = 0, **fields: object) -> Tombstone:
    task = history.board.tasks["t-1"]
    assert task.final is not None
    known = {"state": task.final.state, "reason": "over", "spec": task.spec_seq, "final": task.final_seq}
    return Tombstone(**{**known, "tenant": task.tenant, "usage": task.usage, "keep_seconds": keep_seconds, **fields})  # type: ignore[arg-type]


def bury(history: History, body: Tombstone | None = None, **fields: object) -> str:
    """Write the tombstone; returns why it counts for nothing."""
    given = {"fence": history.fence, "type": "task.tombstone", **fields}
    return history.write(subjects.buried("t-1"), body or stone(history), str(given.pop("type")), **given).ignored


def after(board: Board, messages: Sequence[Stored]) -> Board:
    for message in messages:
        fold(board, message)
    return board


@pytest.mark.parametrize("name", ["done", "failed"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_every_reader_of_an_archived_task_knows_the_same(name: str, data: st.DataObject) -> None:
    """Records are deleted one by one in ascending order, the spec last. A reader may be anywhere when that begins, and
    deleting may have come to any point when it reads on."""
    history = golden.MAKERS[name]()
    whole = [message for message in history.messages if subjects.parse(message.subject) is None]
    task = [message for message in history.messages if subjects.parse(message.subject) is not None]
    assert bury(history) == ""
    tombstone = history.messages[-1]
    deletions = [*(m.seq for m in task if m.seq != history.spec_seq), history.spec_seq]
    gone = set(deletions[: data.draw(st.integers(0, len(deletions)))])
    start = data.draw(st.integers(0, len(history.messages)))
    slim = data.draw(st.booleans())
    reader = folded(history.messages[:start]) if not slim else after(Board(slim=True), history.messages[:start])
    after(reader, [message for message in history.messages[start:] if message.seq not in gone])
    nothing_left = after(Board(slim=slim), sorted([*whole, tombstone]))
    assert reader.tasks == nothing_left.tasks
    assert reader.spent == nothing_left.spent
    assert +reader.running == {}
    assert reader.under_way == {}


def test_a_reader_who_missed_the_end_believes_the_tombstone() -> None:
    history = over()
    assert history.messages[-1].subject == subjects.final("t-1")
    bury(history)
    board = folded([*history.messages[:-2], history.messages[-1]])  # it was asleep while the end was deleted
    task = board.tasks["t-1"]
    assert task.final is not None
    assert (task.final.state, task.steps) == ("failed", {})
    assert +board.running == {}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fence": 1}, "epoch 1 is not the leader's"),
        ({"fence": 0}, "epoch 0 is not the leader's"),
        ({"task": "t-2"}, "disagree"),
        ({"type": "task.final"}, "disagree"),
    ],
)
def test_only_the_leader_buries(fields: dict[str, object], why: str) -> None:
    history = over()
    assert why in bury(history, **fields)
    assert history.board.tasks["t-1"].tombstone is None


@pytest.mark.parametrize("filtered", [False, True])
def test_a_tombstone_on_the_specs_subject_buries_nobody(filtered: bool) -> None:
    """Clients may write there. Not a task under way, with the epoch in force; not an ended one; it changes nothing."""
    history = begun()
    history.order("look", "researcher")
    history.claim("look")
    forged = Tombstone("done", "mine", history.spec_seq, 7, "default")
    before = folded(history.messages, filtered=filtered)
    applied = history.write(subjects.spec("t-1"), forged, "task.tombstone", fence=history.fence)
    assert applied.ignored == "keeps the key of an archived task"
    after_it = folded(history.messages, filtered=filtered)
    assert after_it.ignored == before.ignored + 1
    before.ignored, before.last_seq = after_it.ignored, after_it.last_seq
    assert after_it == before
    assert history.done("look", ("fact", contents.finding())).ignored == ""
    history.final()
    honest = stone(history)
    history.write(subjects.spec("t-1"), honest, "task.tombstone", fence=history.fence)
    assert history.board.tasks["t-1"].tombstone is None
    assert bury(history, honest) == ""
    stood = str(history.board.tasks["t-1"])
    history.write(subjects.spec("t-1"), honest, "task.tombstone", fence=history.fence)
    assert str(history.board.tasks["t-1"]) == stood


@pytest.mark.parametrize("fields", [{"state": "done"}, {"final": 3}, {"spec": 2}])
def test_a_tombstone_must_be_of_this_end(fields: dict[str, object]) -> None:
    history = over()
    assert bury(history, stone(history, **fields)) == "the tombstone is of another end"


def test_a_tombstone_stands_below_the_task_above_it_for_who_comes_late_too() -> None:
    """The records of the lower task are gone; what it was and what it cost is found from the upper one all the same."""
    upper = History("t-0")
    upper.lead()
    upper.spec()
    lower = History("t-1", stream=upper.stream)
    lower.lead()
    lower.spec(parent="t-0")
    lower.order("look", "researcher")
    lower.claim("look")
    lower.done("look", ("fact", contents.finding()), usage=SPENT)
    lower.final()
    assert bury(lower, parent="t-0") == ""
    *rest, tombstone = upper.messages
    late = folded([*(message for message in rest if ".t-1." not in message.subject), tombstone])
    assert late.tasks["t-1"].spec_seq == lower.spec_seq
    for board in (upper.board, late):
        assert board.tasks["t-0"].children == ["t-1"]
        assert board.tasks["t-0"].tree_usage.tokens == SPENT.tokens
    assert late.tasks == upper.board.tasks


def test_two_readers_of_an_archived_task_are_compared_by_its_end() -> None:
    history = begun()
    nothing = folded([message for message in history.messages if ".t-1." not in message.subject])
    for one, other in ((history.board, nothing), (nothing, history.board)):
        assert snapshot.differences(one, other) == ["task t-1 is there in one only"]
    history.final()
    honest = stone(history)
    bury(history, honest)
    late = after(nothing, history.messages[-1:])
    assert snapshot.differences(history.board, late) == []
    assert snapshot.differences(history.board, Board(epochs=late.epochs)) == [], "forgotten by one of them"
    stranger = begun()
    stranger.last = history.last - 1
    stranger.board.tasks.clear()  # it never saw the task, and is told of another end
    assert bury(stranger, Tombstone("done", "over", honest.spec, honest.final, "default")) == ""
    assert snapshot.differences(history.board, stranger.board) == ["task t-1 has another end"]


def test_a_task_is_buried_once() -> None:
    history = over()
    bury(history)
    assert bury(history, stone(history)) == "it has a tombstone"


def test_what_comes_late_counts_for_nothing() -> None:
    history = over(goal="mend it")
    bury(history)
    stood = history.board.tasks["t-1"]
    before = str(stood)
    assert history.claim("look").ignored == "after the end"
    assert history.done("look", ("fact", contents.finding())).ignored == "after the end"
    assert history.order("look", "researcher").ignored == "after the end"
    assert history.final().ignored == "after the end"
    assert history.spec(contents.spec("mend it")).ignored == "the task exists"
    assert str(history.board.tasks["t-1"]) == before


def test_a_key_is_free_once_its_tombstone_has_had_its_time() -> None:
    history = over()
    bury(history, stone(history, keep_seconds=5))
    for _ in range(4):
        assert history.spec(contents.spec("again")).ignored == "the task exists"  # a second passes with each record
    assert history.spec(contents.spec("again")).ignored == ""
    task = history.board.tasks["t-1"]
    assert (task.final, task.tombstone, task.spec.goal) == (None, None, "again")


def test_old_tombstones_are_forgotten_and_with_them_their_cost() -> None:
    board = Board()
    for name in ("t-1", "t-2"):
        history = History(name, board=board)
        history.last = board.last_seq
        history.lead()
        history.spec()
        history.perform("look", "researcher", ("fact", contents.finding()))
        history.final()
        task = board.tasks[name]
        body = Tombstone("failed", "over", task.spec_seq, task.final_seq, "default", usage=SPENT, keep_seconds=5)
        history.write(subjects.buried(name), body, "task.tombstone", fence=history.fence)
    assert list(board.tasks) == ["t-2"]
    assert board.spent == {"default": board.tasks["t-2"].usage}


def test_a_tombstone_that_somebody_waits_for_is_not_forgotten() -> None:
    board = Board()
    for name, after_ in (("t-1", ()), ("t-2", ("t-1",)), ("t-3", ())):
        history = History(name, board=board)
        history.last = board.last_seq
        history.lead()
        history.spec(contents.spec(after=after_))
        if name != "t-2":
            history.final()
            task = board.tasks[name]
            body = Tombstone("done", "over", task.spec_seq, task.final_seq, "default", keep_seconds=1)
            task.final = None  # as one who missed its end
            history.write(subjects.buried(name), body, "task.tombstone", fence=history.fence)
    assert set(board.tasks) == {"t-1", "t-2", "t-3"}


def test_a_slim_board_keeps_who_it_was_how_it_ended_and_what_it_cost() -> None:
    history = golden.MAKERS["done"]()
    full, slim = history.board.tasks["t-1"], after(Board(slim=True), history.messages).tasks["t-1"]
    assert full.final is not None
    assert slim.final is not None
    assert (slim.steps, slim.artifacts, slim.verdicts, slim.plan, slim.registers) == ({}, {}, {}, None, {})
    assert (slim.final.state, slim.final_seq, slim.usage, slim.tree_usage) == (
        full.final.state, full.final_seq, full.usage, full.tree_usage,
    )  # fmt: skip


def test_no_task_stands_above_itself() -> None:
    """Nobody checks what a client names as its task's parent: a circle would hang whoever adds up what was spent."""
    board = Board()
    for name, parent in (("t-1", "t-1"), ("t-2", "t-3"), ("t-3", "t-4"), ("t-4", "t-2")):
        history = History(name, board=board)
        history.last = board.last_seq
        history.lead()
        history.spec(parent=parent)
        history.perform("look", "researcher", ("fact", contents.finding()))
    assert {task.id: task.parent for task in board.tasks.values()} == {
        "t-1": None, "t-2": "t-3", "t-3": "t-4", "t-4": None,
    }  # fmt: skip
