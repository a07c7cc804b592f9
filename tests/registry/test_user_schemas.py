"""A user's JSON Schema: what could hang, fetch or mislead is refused by place; what passes judges in linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kokuban.schemas.kinds import MAX_SCHEMA_BYTES, problems, problems_of_schema


def data(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def chain(width: int, length: int) -> dict[str, Any]:
    """A few hundred bytes that stand for `width` to the power of `length` subschemas."""
    steps = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i - 1}"}] * width} for i in range(1, length)}
    return {"$defs": {"a0": {"type": "string"}, **steps}, "$ref": f"#/$defs/a{length - 1}"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


SOUND: list[Any] = [
    {},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:me:poem", "title": "Poem"},
    {"$defs": {"line": {"type": "string"}}, "type": "array", "items": {"$ref": "#/$defs/line"}},
    {"x-note": "mine", "description": "a", "format": "email", "enum": [1, 2]},
    {"pattern": "^(a+)+$"},
    nested(40),
    chain(2, 10),
]


@pytest.mark.parametrize("schema", SOUND)
def test_what_is_sound_is_taken(schema: Any) -> None:
    assert problems_of_schema(data(schema)) == ()


REFUSED: list[tuple[Any, str]] = [
    ([], "no JSON object"),
    (True, "no JSON object"),
    ({"type": "strng"}, "type: "),
    ({"properties": {"a": {"type": "strng"}}}, "properties.a.type: "),
    ({"requird": ["a"]}, "'requird' is no keyword"),
    ({"properties": {"a": {"definitions": {}}}}, "properties.a: 'definitions' is no keyword"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema: "),
    ({"$ref": "https://example.com/s.json"}, "nothing is fetched"),
    ({"$ref": "#"}, "points elsewhere"),
    ({"$ref": "#/properties/a"}, "points elsewhere"),
    ({"$ref": 5}, "points elsewhere"),
    ({"$ref": "#/$defs/none"}, "there is no $defs.none"),
    ({"$dynamicRef": "#a"}, "'$dynamicRef' is no keyword"),
    ({"items": {"$id": "urn:x"}}, "'$id' may stand at the top only"),
    ({"items": {"$defs": {}}}, "'$defs' may stand at the top only"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}}, "refers to itself (a -> b -> a)"),
    ({"$defs": {"a": {"properties": {"c": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"}, "may not be recursive"),
    (chain(2, 40), "more than 10000 subschemas"),
    (chain(1, 60), "nests deeper than 48 levels once"),
    (nested(60), "nest deeper than 48"),
    ({"$ref": "#/$defs/z", "$defs": {"z": {"items": {"$ref": "#/$defs/y"}}, "y": nested(47)}}, "nests deeper than 48"),
    (
        {
            "$defs": {f"d{i:02}": {"items": {**nested(30), "$ref": f"#/$defs/d{i + 1:02}"}} for i in range(80)}
            | {"d80": {}}
        },
        "nests deeper than 48",
    ),
    ({"pattern": "a" * 513}, "pattern: 513 characters"),
    ({"patternProperties": {"a" * 513: {}}}, "pattern: 513 characters"),
    ({"pattern": "("}, "pattern"),
    ({"pattern": "(?=a)b"}, "may not look around"),
    ({"pattern": "(a)\\1"}, "may not look around"),
    ({"pattern": "(a{1000}){1000}"}, "regex"),
    ({"minLength": -1}, "minLength: "),
    ({"multipleOf": 0}, "multipleOf: "),
    ({"required": "a"}, "required: "),
    ({"properties": [1]}, "properties: "),
    ({"allOf": {}}, "allOf: "),
    ({"items": 5}, "items: it is no schema"),
    ({"$defs": []}, "$defs: "),
    ({"description": "x" * MAX_SCHEMA_BYTES}, "bytes; at most 65536"),
]


@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_not_is_refused_by_place_at_once(schema: Any, why: str) -> None:
    began = time.monotonic()
    assert why in "; ".join(problems_of_schema(data(schema)))
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a":NaN}', b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_json_is_a_reason(text: bytes) -> None:
    assert problems_of_schema(text)


@pytest.mark.parametrize("number", [b"1e300", b"1" + b"0" * 400, b"1e-300", b"-0.0"])
def test_strange_numbers_neither_raise_nor_hang(number: bytes) -> None:
    for keyword in (b"minLength", b"maximum", b"multipleOf", b"const"):
        schema = b'{"' + keyword + b'":' + number + b"}"
        if not problems_of_schema(schema):
            problems("poem", b"[1,2.5,1e308]", schema=schema)
            problems("poem", b"3", schema=schema)


def test_a_pattern_takes_time_in_proportion_to_the_text() -> None:
    schema = data({"pattern": "^(a|a)*(a+)+$"})
    assert problems_of_schema(schema) == ()
    began = time.monotonic()
    assert problems("poem", json.dumps("a" * 200_000 + "b").encode(), schema=schema)
    assert time.monotonic() - began < 2


def test_a_registered_kind_is_judged_by_the_schema_that_is_handed_in() -> None:
    schema = data({"type": "object", "required": ["lines"], "properties": {"lines": {"items": {"type": "string"}}}})
    assert problems("poem", b'{"lines":["a"]}', schema=schema) == ()
    assert problems("poem", b'{"lines":[1]}', schema=schema) == ('poem.lines.0: 1 is not of type "string"',)
    assert "poem: not JSON" in problems("poem", b"{", schema=schema)[0]
    assert "nested deeper" in problems("poem", b"[" * 200 + b"]" * 200, schema=schema)[0]
    assert "'poem' is unknown" in problems("poem", b"{}")[0]
