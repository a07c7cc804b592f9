"""The exact text of the parts of JSON: what is cut out is what stands there, and what is no JSON is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.blackboard.audit._slices import BadJson, elements, members, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SPACES = st.sampled_from(["", " ", "\n", "\t \r\n"])


@given(st.dictionaries(st.text(), VALUES, max_size=5), SPACES, st.booleans())
def test_members_are_cut_out_as_they_stand(value: dict[str, Any], space: str, plain: bool) -> None:
    parts = {name: json.dumps(one, ensure_ascii=plain) for name, one in value.items()}
    names = {name: json.dumps(name, ensure_ascii=plain) for name in value}
    inside = f"{space},{space}".join(f"{names[n]}{space}:{space}{text}" for n, text in parts.items())
    assert members(f"{space}{{{space}{inside}{space}}}{space}") == parts


@given(st.lists(VALUES, max_size=5), SPACES)
def test_elements_are_cut_out_as_they_stand(value: list[Any], space: str) -> None:
    parts = [json.dumps(one) for one in value]
    assert elements(f"{space}[{space}{f'{space},{space}'.join(parts)}{space}]{space}") == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"a":1',
        '{"a":1,}',
        '{"a" 1}',
        '{"a":1}}',
        '{"a":1,"a":2}',
        "{1:2}",
        '{"a":NaN}',
        '{"a":' + "[" * 100_000,
    ],
)
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadJson):
        members(text)


@pytest.mark.parametrize("text", ["", "[", "{}", "[1,]", "[1 2]", "[1]]", "[Infinity]"])
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(BadJson):
        elements(text)


@pytest.mark.parametrize("text", ["", "1 2", "nul", '"\n"'])
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(BadJson):
        parse(text)
