"""Budgets and durations as people write them."""

from __future__ import annotations

import pytest

from kokuban.console._values import read_budget


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("tokens=5", {"tokens": 5}), ("usd=0", {"micros": 0}), ("usd=2.5", {"micros": 2_500_000}),
        ("usd=0.000001", {"micros": 1}), ("usd=1.10", {"micros": 1_100_000}), ("usd=0.29", {"micros": 290_000}),
        (" steps = 1 , tool-calls=0,seconds=9 ", {"steps": 1, "tool_calls": 0, "seconds": 9}),
        ("tokens=9007199254740991", {"tokens": 2**53 - 1}),
    ],
)  # fmt: skip
def test_a_budget(text: str, fields: dict[str, int]) -> None:
    assert read_budget(text) == fields


@pytest.mark.parametrize(
    "text",
    ["", ",", "tokens", "tokens=", "tokens=1,", "tokens=-1", "tokens=1.5", "tokens=1e3", "tokens=٣", "token=1",
     "tokens=1,tokens=2", "micros=1", "usd=", "usd=.5", "usd=5.", "usd=-1", "usd=1e9", "usd=1e999999999", "usd=nan",
     "usd=inf", "usd=1.0000001", "usd=1_0", "tokens=9007199254740992", "usd=9007199255", "tokens=" + "9" * 5_000],
)  # fmt: skip
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|twice|is too large") as wrong:
        read_budget(text)
    assert len(str(wrong.value)) < 250
