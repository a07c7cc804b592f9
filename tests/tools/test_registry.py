"""What may be called with which arguments."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kokuban.agents.tools import (
    BUILT_IN_TOOLS,
    Arguments,
    Invalid,
    Registry,
    Tool,
    ToolContext,
    ToolError,
    canonical,
    execute,
)

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]


async def echo(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    return canonical(arguments)


def tool(parameters: Mapping[str, Any], name: str = "t", run: Any = echo, **fields: Any) -> Tool:
    return Tool(name, "A tool.", parameters, run, **{"tier": "read", "effect": "read"} | fields)


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def judge(parameters: Mapping[str, Any], arguments: object) -> Arguments | Invalid:
    return Registry([tool(parameters)]).validate("t", arguments)


def test_the_built_in_tools_are_valid_and_named_once() -> None:
    registry = Registry(BUILT_IN_TOOLS)
    assert registry.names == (
        "list_files", "read_file", "search_files", "write_file", "edit_file", "write_code", "delete_file",
        "run_checks", "run_command", "search_sources", "search_documents", "ask_person", "read_output", "fetch_url",
        "remember", "recall", "pending_memories", "judge_memory",
    )  # fmt: skip
    assert [spec.name for spec in registry.specs()] == list(registry.names)
    with pytest.raises(ToolError, match="already"):
        registry.add(BUILT_IN_TOOLS[0])


N = {"$defs": {"N": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}}}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"type": "string"}, "must describe an object"),
        ({}, "must describe an object"),
        (fields(a={"type": "strnig"}), "not valid"),
        (fields(a={"type": "array", "items": [{"type": "string"}]}), "not valid"),  # an older draft's form
        ({"$schema": "http://example.org/own", "type": "object"}, "not valid"),
        (fields(a={"$ref": "http://127.0.0.1:9/x.json"}), "refers outside"),
        (fields(a={"$ref": "file:///etc/passwd"}), "refers outside"),
        (fields(a={"$dynamicRef": "x.json#m"}), "refers outside"),
        (fields(a={"$ref": "#/$defs/missing"}), "not valid"),
        (fields(tree={**N, "$ref": "#/$defs/N"}), "not valid"),  # $defs left behind when moved
        (fields(tree={"definitions": N["$defs"], "$ref": "#/definitions/N"}), "not valid"),
        (fields(a={"pattern": "(?=x)y"}), "not valid"),
        (fields(a={"pattern": "("}), "not valid"),
        (fields(a={"enum": ["x" * 70_000]}), "larger than"),
        (fields(a={"default": float("nan")}), "not JSON"),
        (fields(a={"default": object()}), "not JSON"),
    ],
)
def test_a_schema_that_cannot_be_used_disables_its_tool_only(parameters: Mapping[str, Any], why: str) -> None:
    registry = Registry([tool(fields(), name="good")])
    with pytest.raises(ToolError, match=why):
        registry.add(tool(parameters, name="bad"))
    assert registry.names == ("good",)


def test_deep_schemas_are_refused_without_recursion() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ToolError, match="nested deeper"):
        judge({"type": "object", **deep}, {})


def test_a_reference_to_the_outside_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for form in (
            {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x.json"},
            {"$id": "http://127.0.0.1:1/", "$ref": "x"},
        ):
            with pytest.raises(ToolError):
                judge(fields(a=form), {})
        with pytest.raises(BlockingIOError):
            server.accept()


def test_recursive_schemas_and_older_drafts_work() -> None:
    assert isinstance(judge({**N, "type": "object", "$ref": "#/$defs/N"}, {"kids": [{"kids": []}]}), Arguments)
    assert isinstance(judge({**N, "type": "object", "$ref": "#/$defs/N"}, {"kids": [{"kids": 1}]}), Invalid)
    assert isinstance(judge({"type": "object", "additionalProperties": {"$ref": "#"}}, {"a": {"b": {}}}), Arguments)
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", **fields(a={"items": [{"type": "string"}]})}
    assert isinstance(judge(draft7, {"a": ["x"]}), Arguments)
    assert isinstance(judge(draft7, {"a": [1]}), Invalid)


def test_a_pattern_cannot_hang() -> None:
    started = time.monotonic()
    assert isinstance(judge(fields(a={"pattern": "^(a+)+$"}), {"a": "a" * 50_000 + "!"}), Invalid)
    assert time.monotonic() - started < 5


def test_formats_are_not_asserted() -> None:
    for name in ("date-time", "datetime", "no-such"):
        assert isinstance(judge(fields(a={"format": name}), {"a": "nope"}), Arguments)


INTEGER = fields(n={"type": "integer"})


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (1.0, 1),
        (1e3, 1000),
        (-0.0, 0),
        (2.0**53 - 1, 2**53 - 1),
        (1234567890123456789, 1234567890123456789),
        (10**40, 10**40),
    ],
)
def test_whole_floats_become_exact_integers(value: float, seen: int) -> None:
    judged = judge(INTEGER, {"n": value})
    assert isinstance(judged, Arguments)
    assert judged.values["n"] == seen
    assert type(judged.values["n"]) is int


@pytest.mark.parametrize(
    "value",
    [True, "1", 1.5, None, [1], 2.0**53, 9007199254740993.0, -1e300, float("nan"), float("inf"), 1234567890123456789.0],
)
def test_what_is_not_exactly_a_whole_number_is_rejected(value: object) -> None:
    judged = judge(INTEGER, {"n": value})
    assert isinstance(judged, Invalid)
    assert "`n`" in judged.text


@pytest.mark.parametrize(
    "arguments", [None, [], "{}", 1, {1: 2}, {"n": {1: 2}}, {"n": object()}, {"n": b""}, {"n": {1}}]
)
def test_what_is_not_an_object_of_json_is_rejected(arguments: object) -> None:
    assert isinstance(judge({"type": "object"}, arguments), Invalid)


def test_size_depth_and_broken_text_are_rejected_with_bounded_words() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, ["x"] * 60_000, "x" * 3_000_000, "\ud800", {"\udfff": 1}, {"k" * 5_000: float("nan")}):
        judged = judge({"type": "object"}, {"a": value})
        assert isinstance(judged, Invalid)
        assert len(judged.text.encode()) < 2_200


def test_errors_name_the_field_the_valid_values_and_the_way_to_call() -> None:
    shape = {**fields(path={"type": "string"}, mode={"enum": ["fast", "safe"]}), "required": ["path"]}
    judged = judge(shape, {"mode": "quick", "pth": "x"})
    assert isinstance(judged, Invalid)
    for part in ("`mode`", '"fast"', '"safe"', "pth", '"path" is a required', "path (string, required)", "optional"):
        assert part in judged.text
    nested = judge(fields(a={"items": {"properties": {"b": {"type": "integer"}}}}), {"a": [{}, {"b": "x"}]})
    assert isinstance(nested, Invalid)
    assert "`a[1].b`" in nested.text


def test_errors_are_bounded_however_many_there_are_and_however_long() -> None:
    shape = {"type": "object", "additionalProperties": {"type": "integer"}}
    judged = judge(shape, {f"k{n}": "long " * 5_000 for n in range(50)})
    assert isinstance(judged, Invalid)
    assert len(judged.text.encode()) < 2_200
    assert "and more" in judged.text


def test_an_unknown_tool_names_the_valid_ones_and_the_closest() -> None:
    judged = Registry(BUILT_IN_TOOLS).validate("readfile", {})
    assert isinstance(judged, Invalid)
    assert "Did you mean read_file?" in judged.text
    assert "search_sources" in judged.text
    assert isinstance(Registry().validate("x" * 10_000, {}), Invalid)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_is_judged_and_canonical_text_means_the_same(arguments: dict[str, Any]) -> None:
    judged = judge({"type": "object"}, arguments)
    if isinstance(judged, Arguments):
        assert json.loads(judged.canonical) == judged.values == arguments
        shuffled = dict(reversed(list(arguments.items())))
        again = judge({"type": "object"}, shuffled)
        assert isinstance(again, Arguments)
        assert again.canonical == judged.canonical


def test_equal_calls_have_equal_canonical_text() -> None:
    one, two = judge(INTEGER, {"n": 1}), judge(INTEGER, {"n": 1.0})
    assert isinstance(one, Arguments)
    assert isinstance(two, Arguments)
    assert one.canonical == two.canonical == '{"n":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": float("nan")})


async def run(context: ToolContext, program: Any, **options: Any) -> tuple[str, bool]:
    judged = Registry([tool(fields(), run=program, **options)]).validate("t", {})
    assert isinstance(judged, Arguments)
    seen = await execute(judged, context)
    return seen.text, seen.ok


async def test_failures_of_tools_are_observations(context: Make) -> None:
    async def refuses(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        raise ToolError("no such thing; try another")

    async def crashes(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        raise KeyError("secret-in-a-message")

    async def hangs(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    here = context()
    assert await run(here, refuses) == ("no such thing; try another", False)
    text, ok = await run(here, crashes)
    assert (ok, "KeyError" in text, "secret" in text) == (False, True, False)
    text, ok = await run(here, hangs, timeout_seconds=0.05)
    assert (ok, "stopped after 0.05 s" in text) == (False, True)


async def test_results_are_bounded_and_never_empty_and_cancelling_passes(context: Make) -> None:
    async def floods(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        return "€" * 100_000

    async def silent(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        return ""

    async def cancelled(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        raise asyncio.CancelledError

    here = context()
    text, ok = await run(here, floods, result_cap_bytes=1_000)
    assert ok
    assert len(text.encode()) < 1_100
    assert await run(here, silent) == ("(no output)", True)
    with pytest.raises(asyncio.CancelledError):
        await run(here, cancelled)
