"""A new version accepts what the old one accepted: shown or refused, never believed."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from kokuban.schemas._user_schema import validator_of
from kokuban.schemas.kinds import incompatible, problems_of_schema

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
    ({"patternProperties": {"^x": TEXT}, "additionalProperties": NUMBER},
     {"patternProperties": {"^x": TEXT}, "additionalProperties": NUMBER, "properties": {"xa": NUMBER}},
     "properties.xa: any value was accepted there"),
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
    for i in range(6):
        deep = {"anyOf": [{"items": deep}, {"maxItems": i, "items": deep}, {"minItems": i, "items": deep}]}
        other = {"anyOf": [{"items": other, "pattern": "b"}, {"minItems": 99, "items": other}, {"minimum": i}]}
    began = time.monotonic()
    assert compare(deep, other)
    assert time.monotonic() - began < 5


NAMES = ("a", "b", "xa")
SCALARS: tuple[Any, ...] = ("", "a", "ab", "xa", -1, 0, 1, 2, 1.5, True, False, None)
TYPES = ("string", "integer", "number", "object", "array", "null", "boolean")


class Dice:
    """Small schemas and small values, alike enough that a value often meets its schema."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        kind = self.random.randrange(4) if depth else 0
        if kind < 2:
            return self.random.choice(SCALARS)
        some = [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return some if kind == 2 else dict(zip(self.random.sample(NAMES, 3), some, strict=False))

    def schema(self, depth: int = 3) -> Any:
        if depth == 0 or self.random.random() < 0.15:
            return self.random.choice([True, False, {}, {"type": self.random.choice(TYPES)}])
        return dict(self.keyword(depth) for _ in range(self.random.choice([1, 1, 2, 3])))

    def keyword(self, depth: int) -> tuple[str, Any]:
        """A keyword with its value."""
        one, pick, count = lambda: self.schema(depth - 1), self.random.choice, self.random.randrange(4)
        many = [one() for _ in range(1 + count % 2)]
        choices: list[tuple[tuple[str, ...], Any]] = [
            (("type",), pick([pick(TYPES), self.random.sample(TYPES, 2)])),
            (("additionalProperties", "items", "not", "contains", "propertyNames", "unevaluatedProperties",
              "unevaluatedItems", "if", "then", "else"), one()),
            (("allOf", "anyOf", "oneOf", "prefixItems"), many),
            (("properties", "dependentSchemas", "properties"), dict(zip(NAMES, many, strict=False))),
            (("patternProperties",), {pick(["^x", "a$"]): one()}),
            (("required",), self.random.sample(NAMES, count % 3)),
            (("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
              "maxContains", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), count),
            (("multipleOf",), pick([1, 2, 0.5])),
            (("uniqueItems",), pick([True, False])),
            (("pattern",), pick(["^x", "a", "^$"])),
            (("enum",), [self.value() for _ in range(3)]),
            (("const",), self.value()),
            (("dependentRequired",), {pick(NAMES): [pick(NAMES)]}),
        ]  # fmt: skip
        names, value = pick(choices)
        return pick(names), value

    def pair(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A schema, and one that differs from it in a keyword or two, so that a yes is not rare."""
        old: dict[str, Any] = dict(self.keyword(3) for _ in range(self.random.choice([1, 2, 3, 4])))
        new = dict(old)
        for _ in range(self.random.choice([1, 2])):
            if new and self.random.random() < 0.4:
                del new[self.random.choice(sorted(new))]
            else:
                name, value = self.keyword(2)
                new[name] = value
        return old, new


@pytest.mark.parametrize("seed", range(2))
def test_a_yes_is_always_right(seed: int) -> None:
    dice, shown = Dice(seed), 0
    for _ in range(800):
        pair = dice.pair()
        old, new = (json.dumps(schema).encode() for schema in pair)
        if old == new or problems_of_schema(old) or problems_of_schema(new) or incompatible(old, new):
            continue
        shown += 1
        before, now = validator_of(old), validator_of(new)
        for value in (dice.value() for _ in range(40)):
            assert now.is_valid(value) or not before.is_valid(value), (pair, value)
    assert shown > 80
