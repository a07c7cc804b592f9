"""A growing conversation with tool calls, for a role without code of its own, and the tools that give its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kokuban.agents._history import History
from kokuban.agents._output import Output
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Message, Reply, Request, ToolSpec
from kokuban.agents.tools import Observation, Registry, Tool, ToolContext

GIVE = "give_"
DONE_ITEM = "end_item"


class Given:
    """What the model has given so far. Giving is a call like any other: checked against the kind's schema, a line in
    the journal, and given again when another owner plays the journal back."""

    def __init__(self) -> None:
        self.kinds: tuple[str, ...] = ()
        self._found: dict[str, list[Mapping[str, Any]]] = {}

    def tool(self, kind: str, schema: Mapping[str, Any]) -> Tool:
        """The tool that gives this kind."""
        self.kinds = (*self.kinds, kind)

        def give(context: ToolContext, values: Mapping[str, Any]) -> str:
            self._found.setdefault(kind, []).append(dict(values))
            return f"The {kind} is taken."

        return Tool(
            f"{GIVE}{kind}"[:64], f"Give a {kind}, whole: what this step was asked for.", schema, give, "write",
            "keyed", on_files=True, trust="system",
        )  # fmt: skip

    @property
    def complete(self) -> bool:
        return all(kind in self._found for kind in self.kinds)

    @property
    def missing(self) -> str:
        return ", ".join(f"{GIVE}{kind}" for kind in self.kinds if kind not in self._found)

    def outputs(self) -> list[Output]:
        return [
            Output(f"{kind[:60]}-{n}" if len(found) > 1 else kind, dict(value), of=kind)
            for kind, found in self._found.items()
            for n, value in enumerate(found, 1)
        ]


class Acts:
    """A growing conversation with tool calls; every call gets exactly one result. It ends when all is given, or, for an
    item of a list, when the model says so."""

    def __init__(
        self, work: Work, messages: list[Message], tools: Registry, given: Given, item: Item | None = None
    ) -> None:
        self._work, self._given, self._item = work, given, item
        specs = tuple(ToolSpec(t.name, t.description, dict(t.parameters)) for t in tools.specs())
        window = work.meter.context_tokens if work.meter is not None else None
        self._history = History(tuple(messages), specs, work.max_output_tokens, window)
        self._results = 0

    async def request(self) -> Request:
        asked = self._history.request()
        if not self._history.fits:
            raise StepFailed("tokens", f"the conversation does not fit the model, made smaller too; {self.standing()}")
        return asked

    async def compact(self) -> bool:
        """Make the next request smaller; whether it is."""
        return self._history.compact()

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.content.strip() or reply.calls:
            self._history.add(Message("assistant", reply.content, reply.calls, extra=reply.extra))
        if reply.calls:
            return Calls(reply.calls)
        if self._over():
            return Final(reply.content)
        return Wrong(f"Words are no result here: use the tools, and end with {self._end()}.")

    async def accept(self, value: Any) -> str | None:
        return None if self._over() else f"Not yet: {self._end()} is missing."

    async def observe(self, call: Call, observation: Observation) -> None:
        # A number that is the same for every owner of the work: what is asked again must be what was asked.
        self._results += 1
        self._history.answer(
            call, observation.text, failed=not observation.ok,
            origin=f"result of {call.name}, {observation.trust}", place=f"{self._work.assignment.step}:{self._results}",
        )  # fmt: skip

    def finished(self) -> Final | None:
        return Final("") if self._over() else None

    def standing(self) -> str:
        return "" if self._over() else f"{self._end()} was never called with what fits"

    def object(self, text: str) -> None:
        self._history.add(Message("user", text))

    def _over(self) -> bool:
        return self._given.complete if self._item is None else self._item.over or self._given.complete

    def _end(self) -> str:
        return self._given.missing if self._item is None else DONE_ITEM


class Item:
    """One entry of a list: `state` is open, done or failed, `result` what its executor said."""

    def __init__(self, text: str) -> None:
        self.text, self.state, self.result = text, "open", ""

    @property
    def over(self) -> bool:
        return self.state != "open"

    def tool(self) -> Tool:
        def end(context: ToolContext, values: Mapping[str, Any]) -> str:
            self.state, self.result = ("done" if values["done"] else "failed"), values["result"]
            return f"The item is {self.state}."

        return Tool(
            DONE_ITEM, "Say that this item of the list is over: done or not, and what came of it.",
            {
                "type": "object", "additionalProperties": False, "required": ["done", "result"],
                "properties": {"done": {"type": "boolean"}, "result": {"type": "string", "minLength": 1}},
            },
            end, "write", "keyed", on_files=True, trust="system",
        )  # fmt: skip
