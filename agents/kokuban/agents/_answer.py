"""A dialog that asks for one structured answer and sends problems back as data until it is right."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kokuban.agents._work import StepFailed
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Message, Problem, Reply, Request, parse_arguments
from kokuban.agents.sandbox import clip
from kokuban.agents.tools import Invalid, Observation, Registry, Tool, ToolContext

OBJECTIONS_ALLOWED = 3
KEPT_BYTES = 16_384
_FENCE = re.compile(r"\A```[a-zA-Z]*\n(.*?)\n?```\Z", re.DOTALL)


class Answer:
    """`messages` ask for an object of the shape `schema`. The reply must satisfy `accepts` (by default the same) and
    `judge` must not object to it: it returns None, or what is wrong in words for the model. `too_large` may say so
    first, of an answer that is too large to look into. After `OBJECTIONS_ALLOWED`
    the step fails."""

    def __init__(
        self,
        name: str,
        messages: list[Message],
        schema: Mapping[str, Any],
        judge: Callable[[dict[str, Any]], Awaitable[str | None]],
        *,
        accepts: Mapping[str, Any] | None = None,
        too_large: Callable[[dict[str, Any]], str | None] = lambda value: None,
        max_output_tokens: int = 1_500,
    ) -> None:
        self._name = name
        self._messages = messages
        self._schema = dict(schema)
        self._judge = judge
        self._too_large = too_large
        self._max_output_tokens = max_output_tokens
        self._checker = Registry([Tool(name, "", accepts or schema, _never)])
        self._objections = 0
        self._last = ""

    async def request(self) -> Request:
        return Request(
            messages=tuple(self._messages), max_output_tokens=self._max_output_tokens, schema=self._schema,
            schema_name=self._name,
        )  # fmt: skip

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        self._messages.append(Message("assistant", clip(reply.content, KEPT_BYTES) or "(nothing)"))
        if reply.truncated:
            return Wrong("The answer was cut off. Answer again, shorter, with the whole JSON object.")
        value = parse_object(reply.content)
        if isinstance(value, Problem):
            return Wrong(f"That is not the JSON object that was asked for: {value.reason}. Answer with JSON only.")
        excess = self._too_large(value)
        if excess is not None:
            return Wrong(excess)
        judged = self._checker.validate(self._name, value)
        return Wrong(judged.text) if isinstance(judged, Invalid) else Final(dict(judged.values))

    async def accept(self, value: Any) -> str | None:
        return await self._judge(value)

    async def observe(self, call: Call, observation: Observation) -> None:
        raise AssertionError("an answer calls no tools")

    def finished(self) -> Final | None:
        return None

    def standing(self) -> str:
        return self._last

    def object(self, text: str) -> None:
        self._last = text
        self._objections += 1
        if self._objections > OBJECTIONS_ALLOWED:
            raise StepFailed("no_progress", f"no usable {self._name} after {self._objections} answers; last: {text}")
        self._messages.append(Message("user", text))


def parse_object(text: str) -> dict[str, Any] | Problem:
    """The JSON object that a reply's text is, with or without a code fence around it. Empty text is a problem."""
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    inner = fenced[1] if fenced else stripped
    return parse_arguments(inner) if inner.strip() else Problem("it is empty")


async def _never(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    raise AssertionError("an answer is not run")
