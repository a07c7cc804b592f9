"""Reserve the worst, settle the actual; nothing left is nothing (E2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kokuban.blackboard.core import Ledger
from kokuban.blackboard.core.ledger import Shortage, unsettled
from kokuban.schemas import Allotment, Opens, Usage


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


def test_tool_calls_count_from_when_they_are_opened() -> None:
    book = Ledger(Allotment(tool_calls=1))
    assert book.reserve_tool() is None
    assert book.reserve_tool() == "tool_calls"
    book.settle(Usage(tool_calls=1))
    assert book.reserve_tool() == "tool_calls"
    assert Ledger(Allotment(tool_calls=0)).reserve_tool() == "tool_calls"


def test_a_tool_call_that_was_not_made_gives_its_room_back() -> None:
    book = Ledger(Allotment(tool_calls=1))
    assert book.reserve_tool() is None
    book.settle(Usage())
    assert book.reserve_tool() is None


@pytest.mark.parametrize(
    ("micros", "spent", "worst", "short"),
    [
        (None, 0, None, None), (None, 10**9, 10**9, None),
        (100, 0, 100, None), (100, 0, 101, "money"), (100, 60, 41, "money"), (100, 60, 40, None),
        (0, 0, 1, "money"), (0, 0, 0, None), (100, 0, None, "price"), (0, 0, None, "price"), (100, 500, 1, "money"),
    ],
)  # fmt: skip
def test_money_is_reserved_and_an_unknown_price_is_not_zero(
    micros: int | None, spent: int, worst: int | None, short: str | None
) -> None:
    book = Ledger(Allotment(micros=micros), Usage(micros=spent))
    assert book.reserve_model(10, worst) == short
    assert book.left_micros >= 0
    if short is not None:
        assert (book.reserved_tokens, book.reserved_micros) == (0, 0)


def test_more_is_asked_for_in_what_is_short_alone() -> None:
    now, most = Allotment(10, 20, 1_000, 90, 500), Allotment(40, 30, 10_000, 900, 600)
    book = Ledger(now, Usage(900, 0, 10, 20, micros=500))
    assert book.wanted("steps", most) == replace(now, steps=20)
    assert book.wanted("tool_calls", most) == replace(now, tool_calls=30)
    assert book.wanted("tokens", most, worst_tokens=500) == replace(now, tokens=2_000)
    assert book.wanted("tokens", most, worst_tokens=5_000) == replace(now, tokens=5_900)
    assert book.wanted("money", most, worst_micros=90) == replace(now, micros=600)


@pytest.mark.parametrize(
    ("short", "most"),
    [("steps", None), ("steps", Allotment(steps=10)), ("tokens", Allotment(tokens=1_400)), ("price", Allotment())],
)
def test_there_is_nothing_to_ask_for(short: Shortage, most: Allotment | None) -> None:
    book = Ledger(Allotment(10, 20, 1_000, 90), Usage(900, 0, 10, 20))
    assert book.wanted(short, most, worst_tokens=501) is None


def test_money_without_a_limit_above_is_for_the_authority_to_give() -> None:
    book = Ledger(Allotment(micros=100), Usage(micros=90))
    assert book.wanted("money", Allotment(), worst_micros=50) == Allotment(micros=200)
    assert book.wanted("money", Allotment(), worst_micros=500) == Allotment(micros=590)


@given(
    st.builds(Allotment, st.integers(0, 50), st.integers(0, 50), st.integers(0, 500), st.just(9), st.integers(0, 500)),
    st.builds(Allotment, st.integers(0, 50), st.integers(0, 50), st.integers(0, 500), st.just(9), st.integers(0, 500)),
    st.integers(1, 600),
)
def test_what_is_asked_for_is_within_what_may_be_had_and_enough(now: Allotment, most: Allotment, worst: int) -> None:
    book = Ledger(now, Usage(30, 20, 3, 4, micros=25))
    short = book.reserve_model(worst, worst) or book.reserve_tool()
    if short is None:
        return
    asked = book.wanted(short, most, worst_tokens=worst, worst_micros=worst)
    if asked is None:
        return
    for name in ("steps", "tool_calls", "tokens", "micros"):
        assert getattr(asked, name) in (getattr(now, name), min(getattr(asked, name), getattr(most, name)))
        assert getattr(asked, name) >= getattr(now, name)
    book.allotment = asked
    assert (book.reserve_tool() if short == "tool_calls" else book.reserve_model(worst, worst)) != short


def test_an_open_call_is_booked_at_all_that_was_reserved_for_it() -> None:
    model, tool = Opens(3, "model", reserved_tokens=700, reserved_micros=90), Opens(4, "tool", "look")
    assert unsettled(model) == Usage(input_tokens=700, model_calls=1, estimated=True, micros=90)
    assert unsettled(tool) == Usage(tool_calls=1, estimated=True)


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
