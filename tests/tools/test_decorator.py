"""Tools from functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from kokuban.agents.tools import Arguments, Registry, Tool, ToolContext, ToolError, execute, tool

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]


async def answer(made: Tool, context: ToolContext, **values: object) -> str:
    judged = Registry([made]).validate(made.name, values)
    assert isinstance(judged, Arguments), judged
    return (await execute(judged, context)).text


async def test_parameters_may_have_any_name(context: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool(tier="read", effect="read")
        def odd(schema: str, json: int, copy: bool, _hidden: int, model_config: str = "m", p0: int = 7) -> list[object]:
            "Odd names."
            return [schema, json, copy, _hidden, model_config, p0]

    assert list(odd.parameters["properties"]) == ["schema", "json", "copy", "_hidden", "model_config", "p0"]
    assert odd.parameters["required"] == ["schema", "json", "copy", "_hidden"]
    said = await answer(odd, context(), schema="s", json=1, copy=True, _hidden=2)
    assert said == '["s", 1, true, 2, "m", 7]'


class Line(BaseModel):
    amount: int


async def test_descriptions_defaults_shapes_and_the_context(context: Make) -> None:
    @tool(tier="read", effect="read")
    async def total(
        lines: Annotated[list[Line], Field(description="The lines.", min_length=1)],
        here: ToolContext,
        unit: str = Field(default="eur", description="Its unit."),
    ) -> dict[str, object]:
        "Sum up."
        return {"sum": sum(line.amount for line in lines), "unit": unit, "tenant": here.tenant}

    properties = total.parameters["properties"]
    assert set(properties) == {"lines", "unit"}
    assert (properties["lines"]["description"], properties["lines"]["minItems"]) == ("The lines.", 1)
    assert (properties["unit"]["description"], properties["unit"]["default"]) == ("Its unit.", "eur")
    said = await answer(total, context(tenant="red"), lines=[{"amount": 2}, {"amount": 3}])
    assert said == '{"sum": 5, "unit": "eur", "tenant": "red"}'


async def test_what_no_json_can_say_is_said_in_words(context: Make) -> None:
    @tool(tier="read", effect="read")
    def measure() -> dict[str, object]:
        "Measure."
        return {"m": float("nan"), "all": [float("inf"), 1.5]}

    assert await answer(measure, context()) == '{"m": "nan", "all": ["inf", 1.5]}'


def test_what_is_no_argument_is_refused() -> None:
    def untyped(a) -> str:  # type: ignore[no-untyped-def]
        return ""

    def many(*a: int) -> str:
        return ""

    for function in (untyped, many):
        with pytest.raises(ToolError):
            tool()(function)
