"""A new version accepts what the old one accepted: shown or refused, never believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kokuban.schemas.kinds import incompatible, problems, problems_of_schema

TEXT, NUMBER, ANY = {"type": "string"}, {"type": "number"}, {"type": ["string", "null"]}
A: dict[str, Any] = {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False}


def prop(**schemas: Any) -> dict[str, Any]:
    return {**A, "properties": {"a": TEXT, **schemas}}


def compare(old: Any, new: Any) -> tuple[str, ...]:
    for schema in (old, new):
        assert problems_of_schema(json.dumps(schema).encode()) == ()
    return incompatible(json.dumps(old).encode(), json.dumps(new).encode())


WIDER: list[tuple[Any, Any]] = [
    (A, A),
    (A, {**A, "title": "another", "description": "x", "x-note": 1, "$id": "urn:x"}),
    (A, prop(b=TEXT)),
    (A, {**A, "required": []}),
    (A, {**A, "properties": {"a": ANY}}),
    (A, {"type": "object"}),
    (A, {}),
    ({"enum": [1, "a"]}, {"enum": ["a", 1, None]}),
    ({"const": "a"}, TEXT),
    ({"type": "integer", "minimum": 1}, {"type": "number", "exclusiveMinimum": 0}),
    ({"type": "number", "exclusiveMaximum": 5}, {"maximum": 5}),
    ({"type": "integer"}, {"type": "integer", "multipleOf": 1}),
    ({"multipleOf": 6}, {"multipleOf": 3}),
    ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 6}),
    ({"type": "string"}, {"type": "string", "minItems": 3, "required": ["a"]}),
    ({"items": TEXT, "maxItems": 3}, {"items": ANY, "maxItems": 9}),
    ({"prefixItems": [TEXT], "items": False}, {"items": TEXT}),
    ({"$defs": {"t": TEXT}, "items": {"$ref": "#/$defs/t"}}, {"items": TEXT}),
    ({"anyOf": [TEXT, {"type": "null"}]}, ANY),
    (TEXT, {"anyOf": [NUMBER, TEXT]}),
    ({"allOf": [TEXT, {"maxLength": 3}]}, {"maxLength": 4}),
    ({"patternProperties": {"^x": TEXT}, "additionalProperties": False}, {"additionalProperties": ANY}),
    ({"not": TEXT, "type": "number"}, {"type": "number"}),
    ({"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}),
    ({"dependentRequired": {"a": ["b"]}}, {}),
    ({"uniqueItems": True}, {"uniqueItems": False}),
]


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_a_wider_schema_is_the_next_version(old: Any, new: Any) -> None:
    assert compare(old, new) == ()


NARROWER: list[tuple[Any, Any, str]] = [
    (A, {**A, "required": ["a", "b"]}, "required: b was not required before"),
    (A, prop(a=NUMBER), "properties.a.type: string was accepted before, now only number"),
    (A, {**A, "properties": {}}, "properties.a: it was accepted before, and nothing is accepted there now"),
    ({}, {"additionalProperties": False}, "additionalProperties: it was accepted before"),
    ({"type": "object"}, {"properties": {"b": TEXT}}, "properties.b: any value was accepted there before"),
    ({}, TEXT, "type: any type was accepted before"),
    ({"type": "number"}, {"type": "integer"}, "type: number was accepted before"),
    ({"enum": [1, "a"]}, {"enum": [1]}, 'schema: "a" was accepted before and is not now'),
    ({"enum": [1]}, {"enum": [True]}, "1 was accepted before"),
    (TEXT, {"enum": ["a"]}, "enum: any other value was accepted before"),
    (TEXT, {**TEXT, "maxLength": 3}, "maxLength: 3 is below the none of before"),
    ({**TEXT, "minLength": 1}, {**TEXT, "minLength": 2}, "minLength: 2 is above the 1 of before"),
    ({"minimum": 1}, {"exclusiveMinimum": 1}, "exclusiveMinimum: 1 is narrower than before"),
    ({"multipleOf": 3}, {"multipleOf": 6}, "multipleOf: 6 was not required before"),
    ({"pattern": "^a"}, {"pattern": "^b"}, "pattern: the pattern is new or another one"),
    ({"items": TEXT}, {"items": TEXT, "maxItems": 2}, "maxItems: 2 is below"),
    ({"items": ANY}, {"items": TEXT}, "items.type: null was accepted before"),
    ({}, {"uniqueItems": True}, "uniqueItems: items could repeat before"),
    ({}, {"not": TEXT}, "not: it is new or changed"),
    ({"oneOf": [TEXT]}, {"oneOf": [TEXT, NUMBER]}, "'anyOf' can be widened"),
    ({"anyOf": [TEXT, NUMBER]}, {"anyOf": [TEXT]}, "anyOf: no alternative accepts all"),
    ({"allOf": [TEXT]}, {"allOf": [TEXT, {"maxLength": 2}]}, "maxLength: 2 is below"),
    ({}, {"propertyNames": {"maxLength": 2}}, "propertyNames"),
    ({}, {"patternProperties": {"^x": TEXT}}, "patternProperties.^x: it is new"),
    ({"if": TEXT, "then": {"maxLength": 3}}, {"if": TEXT, "then": {"maxLength": 2}}, "if: it is new or changed"),
    ({"contains": TEXT}, {"contains": TEXT, "minContains": 2}, "contains: it is new or changed"),
    ({"properties": {"a": {"properties": {"b": TEXT}}}}, {"properties": {"a": {"properties": {"b": NUMBER}}}},
     "properties.a.properties.b.type: string was accepted"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "why"), NARROWER, ids=[why for *_, why in NARROWER])
def test_a_narrower_one_is_refused_by_place(old: Any, new: Any, why: str) -> None:
    assert why in "; ".join(compare(old, new))


def test_alternatives_within_alternatives_end_in_a_refusal() -> None:
    deep: Any = {"enum": ["x"]}
    other: Any = TEXT
    for i in range(12):
        deep = {"anyOf": [{"items": deep}, {"maxItems": i, "items": deep}, {"minItems": i, "items": deep}]}
        other = {"anyOf": [{"items": other, "pattern": "b"}, {"minItems": 99, "items": other}, {"minimum": i}]}
    assert compare(deep, other)


NAMES = st.sampled_from(["a", "b", "xa"])
VALUES = st.recursive(
    st.sampled_from(["", "a", "ab", "xa", -1, 0, 1, 2, 1.5, True, False, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
TYPES = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
COUNTS = st.integers(0, 3)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, max_size=2)
    patterned = st.dictionaries(st.sampled_from(["^x", "a$"]), inner, max_size=1)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": named, "patternProperties": patterned, "additionalProperties": inner,
            "required": st.lists(NAMES, max_size=2, unique=True), "items": inner, "prefixItems": some,
            "allOf": some, "anyOf": some, "oneOf": some, "not": inner, "if": inner, "then": inner, "else": inner,
            "contains": inner, "minContains": COUNTS, "maxContains": COUNTS, "propertyNames": inner,
            "minLength": COUNTS, "maxLength": COUNTS, "minItems": COUNTS, "maxItems": COUNTS,
            "minProperties": COUNTS, "maxProperties": COUNTS, "uniqueItems": st.booleans(),
            "minimum": COUNTS, "exclusiveMinimum": COUNTS, "maximum": COUNTS, "exclusiveMaximum": COUNTS,
            "multipleOf": st.sampled_from([1, 2, 0.5]), "pattern": st.sampled_from(["^x", "a", "^$"]),
            "enum": st.lists(VALUES, min_size=1, max_size=3), "const": VALUES,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
            "unevaluatedProperties": inner, "unevaluatedItems": inner,
        },
    )  # fmt: skip


SCHEMAS = st.recursive(st.booleans() | st.just({}) | larger(st.booleans()), larger, max_leaves=6)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and one that differs from it in a keyword or two, so that a yes is not rare."""
    old = draw(SCHEMAS.filter(lambda schema: isinstance(schema, dict)))
    new = dict(old)
    for _ in range(draw(st.integers(1, 2))):
        changed = draw(SCHEMAS.filter(lambda schema: isinstance(schema, dict)))
        if changed and draw(st.booleans()):
            keyword = draw(st.sampled_from(sorted(changed)))
            new[keyword] = changed[keyword]
        elif new:
            new.pop(draw(st.sampled_from(sorted(new))))
    return old, new


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs(), st.lists(VALUES, min_size=5, max_size=25))
def test_a_yes_is_always_right(pair: tuple[Any, Any], values: list[Any]) -> None:
    old, new = (json.dumps(schema).encode() for schema in pair)
    if problems_of_schema(old) or problems_of_schema(new) or incompatible(old, new):
        return
    for value in values:
        data = json.dumps(value).encode()
        if not problems("poem", data, schema=old):
            assert problems("poem", data, schema=new) == ()
