"""Schemas, arguments and outputs on which systems of this kind froze, fetched, crashed or lost something."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import Problem, parse_arguments
from kokuban.agents.toolbox import Toolbox, ToolboxFile
from kokuban.agents.tools import RUN_CHECKS, Arguments, Invalid, Observation, Registry, Tool, ToolContext, execute, tool
from kokuban.blackboard.workspace import File, checkout

pytestmark = pytest.mark.anyio


def stranger(name: str, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties}
    return Tool(name, "A stranger's.", schema, lambda context, values: "", source="mcp:s")


async def run(made: Tool, context: ToolContext, **values: object) -> Observation:
    judged = Registry([made]).validate(made.name, values)
    assert isinstance(judged, Arguments), judged
    return await execute(judged, context)


def context(folder: Path, *checks: str, **fields: Any) -> ToolContext:
    checkout({"a.txt": File(b"a")}, folder / "checkout")
    return ToolContext(folder / "checkout", folder / "home", checks=checks, **fields)


N = {"N": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}}
CIRCLE = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(28)} | {"d28": {}}}


def test_c1_c2_one_bad_schema_disables_its_tool_and_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/x.json"
        many = Tool("many", "", {"type": "object", **CIRCLE, "$ref": "#/$defs/d0"}, lambda c, v: "", source="mcp:s")
        tools = [
            stranger("good", x={"type": "string"}),
            stranger("evil", x={"type": "string", "pattern": "^(a+)+$"}),
            stranger("remote", x={"$ref": address}),
            stranger("remote_part", x={"items": {"anyOf": [{"$ref": f"{address}#/a"}]}}),
            stranger("left_behind", tree={"$defs": N, "$ref": "#/$defs/N"}),
            stranger("left_behind_too", tree={"definitions": N, "$ref": "#/definitions/N"}),
            Tool("itself", "", {"type": "object", "$ref": "#"}, lambda c, v: "", source="mcp:s"),
            many,
            stranger("bomb", x={"pattern": "((a{1,1000}){1,1000}){1,1000}"}),
        ]
        started = time.monotonic()
        box = Toolbox(ToolboxFile(), tools)
        assert [made.name for made in box.tools] == ["good", "evil"]
        assert set(box.disabled) == {made.name for made in tools} - {"good", "evil"}
        judged = Registry(box.tools).validate("evil", {"x": "a" * 5_000 + "!"})
        assert isinstance(judged, Invalid)
        assert time.monotonic() - started < 3
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_c2_a_schema_moved_with_its_definitions_works() -> None:
    moved = {"type": "object", "$defs": N, "properties": {"tree": {"$ref": "#/$defs/N"}}}
    tools = Registry([Tool("t", "", moved, lambda c, v: "")])
    assert isinstance(tools.validate("t", {"tree": {"kids": [{"kids": []}]}}), Arguments)
    assert isinstance(tools.validate("t", {"tree": {"kids": [{"kids": 3}]}}), Invalid)


async def test_c3_what_is_hashed_and_what_runs_is_what_was_judged(tmp_path: Path) -> None:
    @tool(tier="read", effect="read")
    def take(n: int) -> str:
        return f"{type(n).__name__} {n}"

    here = context(tmp_path)
    for value, seen in ((1, 1), (1.0, 1), (1e3, 1000), (1234567890123456789, 1234567890123456789)):
        judged = Registry([take]).validate("take", {"n": value})
        assert isinstance(judged, Arguments)
        assert judged.canonical == f'{{"n":{seen}}}'
        assert (await execute(judged, here)).text == f"int {seen}"
    for value in (True, "1", 9007199254740993.0, 1234567890123456789.0):
        assert isinstance(Registry([take]).validate("take", {"n": value}), Invalid)


@pytest.mark.parametrize("raw", ["[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, '{"a":' + "9" * 5_000 + "}"])
def test_c5_what_breaks_a_parser_is_an_invalid_call(raw: str) -> None:
    assert isinstance(parse_arguments(raw), Problem)


@pytest.mark.parametrize("value", ["nope", "2026-13-45T99:00:00Z"])
@pytest.mark.parametrize("draft", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_c6_the_draft_is_the_one_named_and_formats_are_words(value: str, draft: dict[str, Any]) -> None:
    for name in ("date-time", "datetime"):
        schema = {**draft, "type": "object", "properties": {"at": {"type": "string", "format": name}}}
        assert isinstance(Registry([Tool("t", "", schema, lambda c, v: "")]).validate("t", {"at": value}), Arguments)
    pairs = {**draft, "type": "object", "properties": {"x": {"items": [{"type": "integer"}]}}}
    box = Toolbox(ToolboxFile(), [Tool("t", "", pairs, lambda c, v: "")])
    assert bool(box.tools) == bool(draft)
    if box.tools:
        assert isinstance(Registry(box.tools).validate("t", {"x": ["a"]}), Invalid)


async def test_c8_no_nan_goes_in_or_comes_out(tmp_path: Path) -> None:
    @tool(tier="read", effect="read")
    def measure() -> dict[str, object]:
        return {"m": float("nan"), "list": [float("-inf")], float("inf"): 1}  # type: ignore[dict-item]

    said = (await run(measure, context(tmp_path))).text

    def refuse(name: str) -> object:
        raise AssertionError(name)

    assert json.loads(said, parse_constant=refuse) == {"m": "nan", "list": ["-inf"], "inf": 1}
    for raw in ('{"x":NaN}', '{"x":1e999}', '{"x":1,"x":2}'):
        assert isinstance(parse_arguments(raw), Problem)


@pytest.mark.parametrize("check", ["sleep 60 & echo hi", "sleep 60 | cat", "(setsid sleep 60; true) & echo hi"])
async def test_f1_a_check_that_leaves_something_running_holds_nothing_up(tmp_path: Path, check: str) -> None:
    started = time.monotonic()
    seen = await run(RUN_CHECKS, context(tmp_path, check, check_seconds=2))
    assert time.monotonic() - started < 20
    assert "left processes running" in seen.text or "did not end in time" in seen.text


async def test_f6_output_is_bounded_in_bytes_decoded_and_never_lost(tmp_path: Path) -> None:
    checks = (r"printf 'a\377b\n'", "yes | head -c 50000000", """python3 -c "print('€' * 350000, end='')" """)
    kept: list[bytes] = []

    async def keep(data: bytes) -> str:
        kept.append(data)
        return "sha256:" + "0" * 64

    seen = await run(RUN_CHECKS, context(tmp_path, *checks, check_seconds=60, keep=keep))
    assert seen.ok
    assert len(seen.text.encode()) <= RUN_CHECKS.result_cap_bytes + 200
    assert "a\ufffdb" in seen.text
    assert "bytes in all" in seen.text
    assert len(kept[0]) < 3 * 8_192 + 2_000
    assert kept[0].decode().count("passed with exit code 0") == 3
