"""What becomes of a call's result: credentials taken out, kept when long, never an exception."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kokuban.agents.tools import Arguments, Observation, Registry, Tool, ToolContext, ToolError, execute

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]


async def run(context: ToolContext, program: Any, **fields: Any) -> Observation:
    judged = Registry([Tool("t", "A tool.", {"type": "object"}, program, **fields)]).validate("t", {})
    assert isinstance(judged, Arguments)
    return await execute(judged, context)


async def test_the_longer_of_two_credentials_goes_first(context: Make) -> None:
    secrets = {"SHORT": "token", "LONG": "tokentoken-long"}
    seen = await run(context(secrets=secrets), lambda c, v: "tokentoken-long token")
    assert seen.text == "[secret LONG] [secret SHORT]"


@pytest.mark.parametrize("value", ['p"q\\r12345', "tab\there1", "schlüssel-ß", "line\nline"])
async def test_a_credential_in_json_goes_too(context: Make, value: str) -> None:
    def tells(c: ToolContext, v: Mapping[str, Any]) -> str:
        held = {"k": c.secrets["A"]}
        return json.dumps(held) + json.dumps(held, ensure_ascii=False) + c.secrets["A"]

    seen = await run(context(secrets={"A": value}), tells)
    assert seen.text == '{"k": "[secret A]"}{"k": "[secret A]"}[secret A]'


async def test_a_credential_in_an_error_goes_too(context: Make) -> None:
    def fails(c: ToolContext, v: Mapping[str, Any]) -> str:
        raise ToolError(f"401 for {c.secrets['A']}")

    seen = await run(context(secrets={"A": "canary-1"}), fails)
    assert (seen.ok, seen.known, seen.text) == (False, True, "401 for [secret A]")


async def test_a_result_that_cannot_be_kept_is_cut(context: Make) -> None:
    async def no_room(data: bytes) -> str:
        raise OSError("no room")

    seen = await run(context(keep=no_room), lambda c, v: "x" * 50_000, result_cap_bytes=1_000)
    assert seen.ok
    assert seen.text.startswith("xxx")
    assert len(seen.text) < 1_200


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "é", "a.b", "a\n"])
def test_a_name_that_no_model_may_call_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="cannot be named"):
        Registry([Tool(name, "A tool.", {"type": "object"}, lambda c, v: "")])
    assert Registry([Tool("x" * 64, "", {"type": "object"}, lambda c, v: "")]).names == ("x" * 64,)
