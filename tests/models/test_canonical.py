"""The length of a request, which every turn asks for, is that of its canonical text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.models import Call, Message, Request, ToolSpec
from kokuban.agents.models._canonical import canonical_bytes, canonical_json, canonical_request

TEXT = st.text(st.characters(), max_size=40)  # half characters (surrogates) among them


def request(text: str, schema: dict[str, Any]) -> Request:
    turn = Message("assistant", text, (Call("c1", "look", text),), extra={"kept": text})
    return Request(messages=(turn,), tools=(ToolSpec("look", text, schema),), max_output_tokens=10)


@given(TEXT, st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none(), max_size=4))
def test_the_length_is_that_of_the_text(text: str, schema: dict[str, Any]) -> None:
    asked = request(text, schema)
    assert canonical_bytes(asked) == len(canonical_json(canonical_request(asked)))


@pytest.mark.parametrize("number", [0.1, -2.5, 1e-5, 5e-324, 1e16, 1.5e300])
def test_an_exponent_counts_for_three_bytes_at_most(number: float) -> None:
    asked = request("", {"minimum": number})
    assert abs(canonical_bytes(asked) - len(canonical_json(canonical_request(asked)))) <= 3
