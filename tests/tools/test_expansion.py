"""Small schemas that are very large once their references are followed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kokuban.agents.tools import Arguments, Invalid, Registry, Tool, ToolError


def registry(schema: dict[str, Any]) -> Registry:
    return Registry([Tool("t", "A tool.", {"type": "object", **schema}, lambda context, values: "")])


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": defs | {f"d{levels}": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/d0"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_refused_at_once(keyword: str) -> None:
    started = time.monotonic()
    with pytest.raises(ToolError, match="more than 10,000 times"):
        registry(doubling(28, keyword))
    assert time.monotonic() - started < 2


def test_references_that_grow_a_little_work() -> None:
    tools = registry(doubling(8))
    assert isinstance(tools.validate("t", {"x": 3}), Arguments)
    judged = tools.validate("t", {"x": "a"})
    assert isinstance(judged, Invalid)
    assert "not of type" in judged.text


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "properties": {"x": {"$ref": "#/$defs/A"}}},
        {"$dynamicAnchor": "me", "anyOf": [{"$dynamicRef": "#me"}]},
    ],
)
def test_a_circle_that_goes_into_no_value_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="refers to itself"):
        registry(schema)


def test_very_long_chains_and_inner_documents_are_refused() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(1_000)}
    with pytest.raises(ToolError, match="references to judge"):
        registry({"$defs": chain | {"d1000": {}}, "properties": {"x": {"$ref": "#/$defs/d0"}}})
    with pytest.raises(ToolError, match="of its own"):
        registry({"properties": {"x": {"$id": "urn:x:y", "type": "integer"}}})


def test_circles_through_values_cost_what_the_arguments_are() -> None:
    tools = registry({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": False})
    tree: dict[str, Any] = {}
    for _ in range(9):
        tree = {"left": tree, "right": tree}
    assert isinstance(tools.validate("t", {"left": tree}), Arguments)
    assert isinstance(tools.validate("t", {"left": {"right": {"middle": {}}}}), Invalid)


def test_a_circle_that_branches_is_bounded_by_the_depth_of_the_arguments() -> None:
    both = {"allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}
    tools = registry({"$defs": {"n": {"items": both}}, "properties": {"x": {"$ref": "#/$defs/n"}}})
    deep: Any = 1
    for _ in range(29):
        deep = [deep]
    started = time.monotonic()
    judged = tools.validate("t", {"x": deep})
    assert isinstance(judged, Invalid)
    assert "nested too deeply" in judged.text
    assert time.monotonic() - started < 2
    assert isinstance(tools.validate("t", {"x": [[[1]]]}), Arguments)


def test_very_many_wrong_values_are_not_worded_one_by_one() -> None:
    tools = registry({"properties": {"x": {"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}})
    started = time.monotonic()
    judged = tools.validate("t", {"x": ["a"] * 40_000})
    assert isinstance(judged, Invalid)
    assert "give less at once" in judged.text
    assert time.monotonic() - started < 1
    assert isinstance(tools.validate("t", {"x": [1] * 40_000}), Arguments)


def test_names_that_look_like_keywords_are_names() -> None:
    names = {"$id": {"type": "string"}, "$ref": {"type": "string"}, "allOf": {"type": "string"}}
    tools = registry({"properties": {"a": {"not": {"properties": names, "required": ["$ref"]}}}})
    assert isinstance(tools.validate("t", {"a": {"$id": "x"}}), Arguments)
    assert isinstance(tools.validate("t", {"a": {"$ref": "x"}}), Invalid)
