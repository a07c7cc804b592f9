"""Reserve the worst, settle the actual; nothing left is nothing (E2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.blackboard.core import Ledger
from kokuban.schemas import Allotment, Usage


def test_the_worst_case_is_held_until_it_is_settled() -> None:
    book = Ledger(Allotment(tokens=100))
    assert book.reserve_model(60) is None
    assert book.left_tokens == 40
    assert book.reserve_model(60) == "tokens"
    book.settle(Usage(20, 10, 1))
    assert (book.left_tokens, book.spent) == (70, Usage(20, 10, 1))


@pytest.mark.parametrize(
    ("allotment", "spent", "short"),
    [
        (Allotment(tokens=0), Usage(), "tokens"),
        (Allotment(tokens=10), Usage(10), "tokens"),
        (Allotment(tokens=10), Usage(25), "tokens"),
        (Allotment(steps=0), Usage(), "steps"),
        (Allotment(steps=2), Usage(model_calls=2), "steps"),
        (Allotment(steps=1, tokens=0), Usage(model_calls=1), "steps"),
    ],
)
@pytest.mark.parametrize("worst", [0, 1, 1_000])
def test_nothing_left_is_none_not_unlimited(allotment: Allotment, spent: Usage, short: str, worst: int) -> None:
    book = Ledger(allotment, spent)
    assert book.reserve_model(worst) == short
    assert book.reserved_tokens == 0
    assert book.left_tokens >= 0


def test_tool_calls_are_counted_when_they_end() -> None:
    book = Ledger(Allotment(tool_calls=1))
    assert book.reserve_tool() is None
    book.settle(Usage(tool_calls=1))
    assert book.reserve_tool() == "tool_calls"
    assert Ledger(Allotment(tool_calls=0)).reserve_tool() == "tool_calls"


def test_a_resumed_attempt_starts_with_what_was_spent() -> None:
    assert Ledger(Allotment(tokens=100), Usage(60, 30)).reserve_model(11) == "tokens"
    assert Ledger(Allotment(tokens=100), Usage(60, 30)).reserve_model(10) is None


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), max_size=20))
def test_who_never_spends_more_than_was_reserved_never_overspends(tokens: int, calls: list[tuple[int, float]]) -> None:
    book = Ledger(Allotment(tokens=tokens, steps=10))
    for worst, share in calls:
        if book.reserve_model(worst) is None:
            book.settle(Usage(input_tokens=int(worst * share), model_calls=1))
    assert book.spent.tokens <= tokens
    assert book.spent.model_calls <= 10
