"""Arguments become an object or a reason, never an exception (A4, C5, C8)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.models import Problem, parse_arguments


@pytest.mark.parametrize("raw", [None, "", "  \n\t", "null", " null ", "{}", {}])
def test_nothing_is_an_empty_object(raw: object) -> None:
    assert parse_arguments(raw) == {}


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        ({"a": 1}, {"a": 1}),
        (' {"a": [1, {"b": null}]} ', {"a": [1, {"b": None}]}),
        ('"{\\"a\\":1}"', {"a": 1}),
        ('{"limit":"many"}', {"limit": "many"}),
        ('{"id":1234567890123456789}', {"id": 1234567890123456789}),
        ('{"text":"[[[[{{{{ \\" \\\\"}', {"text": '[[[[{{{{ " \\'}),
        ('{"smile":"\\ud83d\\ude42"}', {"smile": "🙂"}),
    ],
)
def test_objects_come_out_as_they_are(raw: object, parsed: dict[str, Any]) -> None:
    assert parse_arguments(raw) == parsed


TWICE = json.dumps(json.dumps(json.dumps({"a": 1})))


@pytest.mark.parametrize(
    "raw",
    [
        "[]", "[1]", "1", "true", "false", '"text"', '""', '"null"', '"[]"', '"{"', TWICE, [], [1], 1, 1.5, True, b"{}",
        object(), {1: object()}, '{"a":1} ok', 'ok {"a":1}', '{"a":1}{"a":1}', '{"a":1', "{'a':1}", '{"a":1,}',
        '```json\n{"a":1}\n```', '{"path":"a","content":"lor', '{"x":"a\nb"}',
    ],
)  # fmt: skip
def test_all_else_is_a_reason(raw: object) -> None:
    problem = parse_arguments(raw)
    assert isinstance(problem, Problem)
    assert "arguments" in problem.reason
    assert len(problem.reason) < 300


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("[" * 100_000, "nested"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested"),
        (json.dumps('{"a":' * 500 + "1" + "}" * 500), "nested"),
        ('{"n":' + "9" * 5000 + "}", "limit"),
        ('{"x":NaN}', "NaN"),
        ('{"x":[-Infinity]}', "Infinity"),
        ('{"x":1e999}', "too large"),
        ('{"x":-1e999}', "too large"),
        ({"x": float("nan")}, "JSON"),
        ({"x": float("inf")}, "JSON"),
        ('{"a":1,"a":1}', "twice"),
        ('{"o":{"k":1,"k":2}}', "twice"),
        (json.dumps('{"a":1,"a":2}'), "twice"),
        ('{"x":"\\ud800"}', "surrogate"),
        ('{"\\udfff":1}', "surrogate"),
        ('{"x":"' + "a" * (1 << 20) + '"}', "longer"),
    ],
)
def test_hostile_arguments_are_a_reason(raw: object, words: str) -> None:
    problem = parse_arguments(raw)
    assert isinstance(problem, Problem)
    assert words in problem.reason
    assert len(problem.reason) < 300


def test_a_self_containing_object_is_a_reason() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert isinstance(parse_arguments(loop), Problem)


def test_64_levels_are_allowed_and_an_unclosed_string_is_quick() -> None:
    assert isinstance(parse_arguments('{"a":' * 64 + "1" + "}" * 64), dict)
    assert isinstance(parse_arguments('{"a":"' + '\\"' * 500_000), Problem)


@given(st.text(alphabet='{}[]":,\\ 0aeEnul-+.\ud800', max_size=40))
def test_no_text_makes_it_raise(raw: str) -> None:
    assert isinstance(parse_arguments(raw), dict | Problem)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_every_object_comes_through_plain_and_encoded_twice(value: dict[str, Any]) -> None:
    assert parse_arguments(json.dumps(value)) == value
    assert parse_arguments(json.dumps(json.dumps(value))) == value
    assert parse_arguments(value) == value
