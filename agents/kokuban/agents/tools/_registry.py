"""Tools by name: checked when they are added, and the one authority on whether a call's arguments are valid."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import structlog

from kokuban.agents.sandbox import clip
from kokuban.agents.tools._arguments import canonical, normalised
from kokuban.agents.tools._errors import BadArguments, ToolError
from kokuban.agents.tools._schema import compiled, describe, problems
from kokuban.agents.tools._threads import in_thread
from kokuban.blackboard.redaction import redacted
from kokuban.schemas import Trust

if TYPE_CHECKING:
    from kokuban.agents.tools._context import ToolContext

Tier = Literal["read", "write", "consequential"]
Effect = Literal["read", "keyed", "other"]
Run = Callable[["ToolContext", Mapping[str, Any]], Awaitable[str] | str]

_INVALID_TEXT_BYTES = 2_000
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
log = structlog.get_logger("kokuban.tools")


@dataclass(frozen=True, slots=True)
class Tool:
    """Something a model may call.

    name, description: what the model sees; the description says when to use it.
    parameters: JSON Schema of the arguments, an object (draft 2020-12 unless `$schema` names another).
    run: does it; gets valid arguments only; returns what the model sees; raises `ToolError` to tell it what went wrong.
        A plain function runs in a thread of its own and may block; a coroutine function must not hold up the loop.
    tier: "read" changes nothing, "write" changes what can be undone, "consequential" what cannot: a person must
        approve each such call. What nobody declared is consequential.
    effect: "read" may be run again after a crash (nothing is changed). "keyed" too, under the same key, which it finds
        in `ToolContext.key` and which whoever it talks to must honour. "other" may not: then the outcome is in doubt,
        and so it is when the tool runs out of time or breaks. One that knows that nothing was done raises `ToolError`.
    on_files: it changes the step's checkout and nothing else. A new owner's checkout is new: what is played back from
        the journal is then done on it again.
    timeout_seconds, result_cap_bytes: bounds of one call and of the text it returns.
    version: changes whenever the same arguments may do something else.
    source: where it comes from: "built-in", "python:MODULE", "mcp:SERVER". Its results are data of that source.
    trust: whose word its results are. What nobody declares is "untrusted": a stranger's, and so is from then on
        whatever the step makes of it.
    secrets: names of the credentials that it needs; it finds their values in `ToolContext.secrets`, a model never does.
    postcondition: looks, after it ran, whether what it was to do is done; returns what is missing, or None.
    reconcile: of an "other" effect: looks, when nobody knows whether a call was made, whether it was done, by its
        arguments and the key that the tool itself found in `ToolContext.key`. Changes nothing. Returns what it came to,
        None when it was not done and will not be any more; raises when it cannot tell: then a person has to look.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Run
    tier: Tier = "consequential"
    effect: Effect = "other"
    timeout_seconds: float = 30.0
    result_cap_bytes: int = 16_384
    version: str = "1"
    on_files: bool = False
    source: str = "built-in"
    secrets: tuple[str, ...] = ()
    postcondition: Callable[[ToolContext, Mapping[str, Any]], Awaitable[str | None]] | None = None
    reconcile: Callable[[ToolContext, Mapping[str, Any]], Awaitable[str | None]] | None = None
    trust: Trust = "untrusted"


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call that may run: its tool, the values it will really get, and their canonical text (for hashes: of repeated
    calls, approvals and idempotency keys)."""

    tool: Tool
    values: Mapping[str, Any]
    canonical: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A call that may not run. `text` tells the model which field is wrong, what is valid, and is bounded."""

    text: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What a call came to, for the model to read. `ok` is false when the tool failed or ran out of time; `known` is
    false when it did not say so itself, so that what it was to do may have been done. `transient`, `terminal` and
    `retry_after_seconds` are what its error said (`ToolError`). `trust` says whose word the text is: the runtime's own
    when no tool was run."""

    text: str
    ok: bool
    known: bool = True
    transient: bool = False
    terminal: bool = False
    retry_after_seconds: float | None = None
    trust: Trust = "system"


class Registry:
    """The tools of one step."""

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Raises `ToolError` as `add` does."""
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, Any] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Add a tool. Raises `ToolError`, and adds nothing, when its name is taken or none that models can call, or its
        schema cannot be used: not an object's schema, invalid for its draft, too large or deep, also with its
        references followed, referring outside itself, or with a pattern that needs backtracking. `format` is never
        asserted."""
        if not _TOOL_NAME.fullmatch(tool.name):
            raise ToolError(f"a tool cannot be named {tool.name[:100]!r}: use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
        if tool.name in self._tools:
            raise ToolError(f"there is a tool named {tool.name} already")
        self._validators[tool.name] = compiled(tool.name, tool.parameters)
        self._tools[tool.name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, in the order they were added."""
        return tuple(self._tools)

    def specs(self) -> tuple[Tool, ...]:
        """The tools, in the order they were added; name, description and parameters are what a model is shown."""
        return tuple(self._tools.values())

    def validate(self, name: str, arguments: object) -> Arguments | Invalid:
        """Judge a call. Whole numbers written as floats become integers below 2**53; larger ones are rejected, as are
        NaN, infinities, text that is not Unicode, and what is too large or deep. Never raises."""
        tool = self._tools.get(name)
        if tool is None:
            return Invalid(_bounded(self._unknown(name)))
        try:
            values = normalised(arguments)
        except BadArguments as error:
            return Invalid(_bounded(f"{name}: {error}. {describe(tool.name, tool.parameters)}"))
        found = problems(self._validators[name], values)
        if found:
            usage = describe(tool.name, tool.parameters)
            return Invalid(_bounded("\n".join([f"{name} was not run; the arguments are not valid:", *found, usage])))
        return Arguments(tool, values, canonical(values))

    def _unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name[:100], self._tools, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        return f"There is no tool named {name[:100]!r}.{hint} Tools: {', '.join(self._tools) or 'none'}."


async def execute(call: Arguments, context: ToolContext) -> Observation:
    """Run a valid call within its tool's time and size. Failures come back as text for the model, never as exceptions;
    cancellation passes through."""
    tool, ok, known, said = call.tool, False, True, ToolError()
    elsewhere = tool.effect != "read" and not tool.on_files  # then no other call makes up for this one
    try:
        async with asyncio.timeout(tool.timeout_seconds):
            text = await _run(tool.run, context, call.values)
            missing = await tool.postcondition(context, call.values) if tool.postcondition is not None else None
        ok = missing is None
        text = text if ok else f"{text}\n{tool.name} said so, but: {missing}"
    except ToolError as error:
        text, said = str(error), error
    except TimeoutError:
        text, known = f"{tool.name} was stopped after {tool.timeout_seconds:g} s", False
        text += "" if elsewhere else "; ask for less at once"
    except Exception as error:
        # A tool's bug is the model's observation, not the end of the step; details may hold what it must not see.
        text, known = f"{tool.name} failed ({type(error).__name__})", False
        text += "" if elsewhere else "; try another way"
    text = hidden(text, context.secrets)
    return Observation(
        await _bounded_result(text, tool, context) or "(no output)", ok, known, said.transient, said.terminal,
        said.retry_after_seconds, tool.trust,
    )  # fmt: skip


def hidden(text: str, secrets: Mapping[str, str]) -> str:
    """The text without the values of these credentials (of four characters or more), and of all others that this
    process knows."""
    return redacted(text, {name: value for name, value in secrets.items() if len(value) >= 4})


async def _bounded_result(text: str, tool: Tool, context: ToolContext) -> str:
    """What the model is shown: a result that is too long is kept in full, and it is told how to read on. One that
    cannot be kept is cut: the call was made all the same."""
    data = text.encode("utf-8", "replace")
    if len(data) <= tool.result_cap_bytes or context.keep is None:
        return clip(text, tool.result_cap_bytes)
    try:
        digest = await context.keep(data)
    except Exception as error:
        log.warning("a long result could not be kept", tool=tool.name, bytes=len(data), error=type(error).__name__)
        return clip(text, tool.result_cap_bytes)
    more = f"\n[{len(data)} bytes in all; read_output with digest {digest} and an offset shows the rest]"
    return clip(text, max(256, tool.result_cap_bytes - len(more))) + more


async def _run(run: Run, context: ToolContext, values: Mapping[str, Any]) -> str:
    """What the tool returns; one that is no coroutine function runs in a thread."""
    if inspect.iscoroutinefunction(run):
        return str(await run(context, values))
    found = await in_thread(lambda: run(context, values))
    return found if isinstance(found, str) else await found


def _bounded(text: str) -> str:
    return clip(text, _INVALID_TEXT_BYTES)
