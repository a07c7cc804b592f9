"""JSON Schemas that strangers write (MCP servers, users who register kinds) and values that models write for them: no
crash, no hang, a bounded answer, and a "compatible" that is true."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kokuban.agents.toolbox import lacking
from kokuban.agents.tools import Arguments, Invalid, Registry, Tool, ToolError
from kokuban.schemas.kinds import DIALECT, incompatible, problems, problems_of_schema
from support.fuzz import fuzz, in_time

pytestmark = in_time

NAMES = st.sampled_from(["a", "b", "id", "", "é", "$ref", "\ud83d", "a/b", "~0", "__proto__"]) | st.text(max_size=4)
PATTERNS = st.sampled_from(
    ["^a", "a$", "[a-z]+", "(a+)+$", "(a|a)*b", "(?=a)", "\\1", "(", "[", "a{1,99999}", "\\p{L}", "(?<n>a)", "\\d{3}",
     "^(([a-z])+.)+[A-Z]([a-z])+$", "\0", "\ud83d"]
)  # fmt: skip
REFS = st.sampled_from(
    ["#", "#/$defs/a", "#/$defs/b", "#/$defs/missing", "#a", "#/properties/a", "other.json", "http://127.0.0.1:1/x",
     "file:///etc/passwd", "urn:x", "", "#/%24defs/a", "//x"]
)  # fmt: skip
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", "any", "Object"])
NUMBERS = st.integers(-3, 5) | st.integers() | st.floats() | st.sampled_from([2**53, 2**70, 1e308, 0.1, -0.0])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=6) | NAMES
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


def _with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many, named = st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, max_size=3), "properties": named, "required": st.lists(NAMES, max_size=3),
            "additionalProperties": inner, "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "propertyNames": inner, "items": inner, "prefixItems": many, "contains": inner, "minItems": NUMBERS,
            "maxItems": NUMBERS, "uniqueItems": st.booleans(), "minLength": NUMBERS, "maxLength": NUMBERS,
            "pattern": PATTERNS, "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS,
            "multipleOf": NUMBERS, "enum": st.lists(VALUES, max_size=3), "const": VALUES, "allOf": many, "anyOf": many,
            "oneOf": many, "not": inner, "if": inner, "then": inner, "else": inner, "$ref": REFS, "$dynamicRef": REFS,
            "$defs": named, "dependentSchemas": named, "unevaluatedProperties": inner, "format": NAMES, "$id": REFS,
            "$anchor": NAMES, "$schema": st.sampled_from([DIALECT, "http://json-schema.org/draft-07/schema#", "x"]),
            "description": st.text(max_size=5),
        },
    )  # fmt: skip


SCHEMAS = st.recursive(st.booleans() | st.just({}) | VALUES, _with, max_leaves=12)
ROOTS = st.builds(lambda inner: {**inner, "type": "object"}, _with(SCHEMAS)) | SCHEMAS

KEYS = st.sampled_from(["a", "b", ""])
COUNTS = st.integers(0, 3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from([0.5, 1.0, 1e300]) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


def _plain(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, max_size=2)
    one_type = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
    matches = st.sampled_from(["^a", "b$", "a+", ""])
    return st.fixed_dictionaries(
        {},
        optional={
            "type": one_type | st.lists(one_type, min_size=1, max_size=3, unique=True), "properties": named,
            "required": st.lists(KEYS, max_size=2, unique=True), "additionalProperties": inner, "propertyNames": inner,
            "patternProperties": st.dictionaries(matches, inner, max_size=2), "items": inner, "prefixItems": many,
            "contains": inner, "minContains": COUNTS, "maxContains": COUNTS, "minItems": COUNTS, "maxItems": COUNTS,
            "uniqueItems": st.booleans(), "minLength": COUNTS, "maxLength": COUNTS, "pattern": matches,
            "minimum": COUNTS, "maximum": COUNTS, "exclusiveMinimum": COUNTS, "exclusiveMaximum": COUNTS,
            "multipleOf": st.sampled_from([1, 2, 3, 0.5]), "const": JSON,
            "enum": st.lists(JSON, min_size=1, max_size=3),
            "allOf": many, "anyOf": many, "oneOf": many, "not": inner, "if": inner, "then": inner, "else": inner,
            "dependentRequired": st.dictionaries(KEYS, st.lists(KEYS, max_size=1), max_size=2),
            "dependentSchemas": named,
            "minProperties": COUNTS, "maxProperties": COUNTS, "unevaluatedProperties": inner, "unevaluatedItems": inner,
        },
    )  # fmt: skip


PLAIN = st.recursive(st.booleans() | st.just({}), _plain, max_leaves=6).filter(lambda one: isinstance(one, dict))
"""Schemas as users write them: most can be used."""


@st.composite
def edited(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema and its next version: some keywords dropped, some others' values in their place, some new."""
    old, other = draw(PLAIN), draw(PLAIN)
    kept = {key: value for key, value in old.items() if draw(st.integers(0, 3))}
    new = {**kept, **{key: value for key, value in other.items() if not draw(st.integers(0, 2))}}
    place = draw(st.sampled_from(["", "", "properties", "items", "anyOf"]))
    if place == "properties":
        return {"properties": {"a": old}}, {"properties": {"a": new}}
    if place == "anyOf":
        return {"anyOf": [old, other]}, {"anyOf": [new, other]}
    return ({"items": old}, {"items": new}) if place else (old, new)


@fuzz
@given(ROOTS, st.lists(VALUES, max_size=4), st.text(max_size=30))
def test_a_tools_schema_and_its_arguments(schema: Any, values: list[Any], description: str) -> None:
    tools, answer = Registry(), lambda context, values: ""
    try:
        tool = Tool("t", description, schema, answer)
        tools.add(tool)
    except ToolError as error:
        refused = str(error)
    else:
        refused = ""
    assert len(refused) < 2_000
    assert tools.names == (() if refused else ("t",))
    if refused:
        return
    lacking(tool)
    for value in values:
        for arguments in (value, {"a": value, "id": value}):
            judged = tools.validate("t", arguments)
            assert isinstance(judged, Arguments | Invalid)
            if isinstance(judged, Invalid):
                assert len(judged.text.encode("utf-8")) < 4_000
            else:
                assert json.loads(judged.canonical) == judged.values


@fuzz
@given(ROOTS, st.lists(VALUES, max_size=4), st.binary(max_size=40))
def test_a_kinds_schema_and_its_artifacts(schema: Any, values: list[Any], junk: bytes) -> None:
    problems_of_schema(junk)
    text = _written(schema)
    why = problems_of_schema(text)
    assert sum(map(len, why)) < 8_000
    if why:
        return
    assert all(isinstance(line, str) for line in problems("own.kind", junk, schema=text))
    for value in values:
        found = problems("own.kind", _written(value), schema=text)
        assert sum(map(len, found)) < 8_000


@fuzz
@given(edited() | st.tuples(ROOTS, ROOTS), st.lists(JSON, min_size=1, max_size=12))
@example(({"properties": {"": False}}, {"type": "object"}), [{}])
def test_a_yes_to_a_new_version_is_true(schemas: tuple[Any, Any], values: list[Any]) -> None:
    old, new = ({**one, "type": "object"} if isinstance(one, dict) else one for one in schemas)
    old, new = _written(old), _written(new)
    if problems_of_schema(old) or problems_of_schema(new):
        return
    assert incompatible(old, old) == ()
    if incompatible(old, new) == ():
        for value in map(_written, [{}, *values, *({"a": value} for value in values)]):
            if not problems("own.kind", value, schema=old):
                assert not problems("own.kind", value, schema=new)


def _written(value: Any) -> bytes:
    """As a file would hold it: also what no JSON library would write."""
    return json.dumps(value).encode()
