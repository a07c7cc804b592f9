"""A board as bytes and back: nothing is lost, at any point of any history."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from core import golden
from core.golden_people import CALL
from kokuban.blackboard.core import Board, fold, snapshot


@pytest.mark.parametrize("name", golden.MAKERS)
@pytest.mark.parametrize("slim", [False, True])
def test_a_board_comes_back_as_it_was_and_folds_on(name: str, slim: bool) -> None:
    messages, board = golden.MAKERS[name]().messages, Board(slim=slim)
    for message in messages:
        data = snapshot.dump(board)
        again = snapshot.load(data)
        assert again == board
        assert snapshot.dump(again) == data
        for key, step in again.under_way.items():
            assert step is again.tasks[key[0]].steps[key[1]]
        assert fold(again, message) == fold(board, message)
        assert again == board


def test_bytes_inside_a_call_are_kept() -> None:
    history = golden.MAKERS["people"]()
    board = Board()
    for message in history.messages[:7]:
        fold(board, message)
    step = snapshot.load(snapshot.dump(board)).tasks["t-1"].steps["ship"]
    assert step.opened is not None
    assert bytes(step.opened.arguments) == bytes(CALL.arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'[{"t-1":[]}]'])
def test_other_bytes_are_no_board(data: bytes) -> None:
    with pytest.raises(snapshot.BadSnapshot):
        snapshot.load(data)


def test_another_form_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(slots=True)
    class LaterBoard(Board):
        colours: dict[str, Any] = field(default_factory=dict)

    ours = snapshot.shapes()
    monkeypatch.setattr(snapshot, "Board", LaterBoard)
    assert snapshot.shapes.__wrapped__() != ours


def board_of(name: str) -> Board:
    board = Board()
    for message in golden.MAKERS[name]().messages[:20]:
        fold(board, message)
    return board


def test_two_folds_are_compared_by_what_decisions_rest_on() -> None:
    ours = board_of("done")
    assert ours.tasks["t-1"].final is None
    assert snapshot.differences(ours, copy.deepcopy(ours)) == []
    other = copy.deepcopy(ours)
    other.tasks["t-1"].children.append("t-9")  # what is archived around it may differ
    other.ignored += 1
    assert snapshot.differences(ours, other) == []
    other.tasks["t-1"].facts.append("another")
    assert snapshot.differences(ours, other) == ["task t-1 is not the same"]
    other = copy.deepcopy(ours)
    other.epochs[1] = 99
    assert snapshot.differences(ours, other) == ["epochs"]
    other = copy.deepcopy(ours)
    del other.tasks["t-1"]
    assert snapshot.differences(ours, other) == ["task t-1 is there in one only"]
    finished = Board()
    for message in golden.MAKERS["done"]().messages:
        fold(finished, message)
    other = copy.deepcopy(finished)
    other.tasks["t-1"].final_seq += 1
    assert snapshot.differences(finished, other) == ["task t-1 has another end"]
    assert snapshot.differences(finished, Board(epochs=finished.epochs)) == []  # forgotten by one of them
