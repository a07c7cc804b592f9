"""Tools from Python functions: the schema from the signature, the description from the docstring."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Effect, Tier, Tool
from kokuban.schemas import Trust

Function = TypeVar("Function", bound=Callable[..., Any])


def tool(
    *,
    tier: Tier = "consequential",
    effect: Effect = "other",
    name: str | None = None,
    timeout_seconds: float = 30.0,
    result_cap_bytes: int = 16_384,
    version: str = "1",
    secrets: tuple[str, ...] = (),
    postcondition: Callable[[ToolContext, Mapping[str, Any]], Awaitable[str | None]] | None = None,
    reconcile: Callable[[ToolContext, Mapping[str, Any]], Awaitable[str | None]] | None = None,
    trust: Trust = "untrusted",
) -> Callable[[Function], Tool]:
    """Make a tool of a function. What is not declared is consequential, may not be run again, and
    returns what a stranger said.

    A parameter annotated `ToolContext` gets the step's surroundings; every other one is an argument for the model, with
    the type, default and `Annotated[..., Field(description=...)]` that it has. Text is returned as it is, anything else
    as JSON. Raises `ToolError` for a parameter without a type, `*args` or `**kwargs`.

    >>> @tool(tier="read", effect="read")
    ... def double(number: int) -> str:
    ...     "Double a whole number. Returns the product as text. Not for fractions."
    ...     return str(2 * number)
    >>> double.parameters["properties"]["number"]["type"]
    'integer'
    """

    def make(function: Function) -> Tool:
        called = name or function.__name__
        fields, wants_context = _fields(function, called)
        from pydantic import ConfigDict, Field, create_model

        # The model's own names are numbers: a parameter may have any name, also one that a model uses itself.
        numbered: dict[str, Any] = {
            f"p{at}": (Annotated[kind, Field(alias=parameter)], default)
            for at, (parameter, (kind, default)) in enumerate(fields.items())
        }
        model: Any = create_model(called, __config__=ConfigDict(extra="forbid"), **numbered)
        schema = model.model_json_schema()
        schema.pop("title", None)
        for part in schema.get("properties", {}).values():
            part.pop("title", None)

        def arguments(context: ToolContext, values: Mapping[str, Any]) -> dict[str, Any]:
            read = model.model_validate(dict(values))  # what passed the schema; nested shapes become their classes
            given = {parameter: getattr(read, f"p{at}") for at, parameter in enumerate(fields)}
            return given | ({wants_context: context} if wants_context else {})

        if inspect.iscoroutinefunction(function):

            async def run(context: ToolContext, values: Mapping[str, Any]) -> str:
                return as_text(await function(**arguments(context, values)))

        else:

            def run(context: ToolContext, values: Mapping[str, Any]) -> str:  # type: ignore[misc]
                return as_text(function(**arguments(context, values)))

        return Tool(
            called, inspect.cleandoc(function.__doc__ or ""), schema, run, tier, effect, timeout_seconds,
            result_cap_bytes, version, source=f"python:{function.__module__}", secrets=secrets,
            postcondition=postcondition, reconcile=reconcile, trust=trust,
        )  # fmt: skip

    return make


def _fields(function: Callable[..., Any], called: str) -> tuple[dict[str, Any], str]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    wants_context = ""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolError(f"the tool {called!r}: {parameter} cannot be an argument; name each with its type")
        if parameter.name not in hints:
            raise ToolError(f"the tool {called!r}: parameter {parameter.name!r} has no type")
        if hints[parameter.name] is ToolContext:
            wants_context = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return fields, wants_context


def as_text(result: Any) -> str:
    """What a model is shown of a value: text as it is, anything else as JSON that every reader takes."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # a NaN, which no JSON reader takes: said in words
        return json.dumps(_without_nan(result), ensure_ascii=False, default=str)


def _without_nan(value: Any) -> Any:
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value
