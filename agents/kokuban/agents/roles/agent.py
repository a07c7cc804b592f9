"""A role without code: a contract, a prompt and tools. The model acts by its provider's tool calls until it has given
every kind of artifact that the contract produces (ReAct: Yao et al., 2022), or works off a list of its own
(plan-and-execute)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokuban.agents._answer import Answer
from kokuban.agents._data import framed
from kokuban.agents._history import History
from kokuban.agents._output import Output
from kokuban.agents._prompts import Prompt
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.loop import Calls, Final, Loop, Wrong
from kokuban.agents.models import Call, Message, Reply, Request, ToolSpec
from kokuban.agents.roles._shared import feedback_of, scope_of
from kokuban.agents.tools import Observation, Registry, Tool, ToolContext
from kokuban.blackboard.workspace import checkout
from kokuban.schemas.kinds import schema_of

Schemas = Mapping[str, Mapping[str, Any]]
GIVE = "give_"
MAX_ITEMS, MAX_LISTS = 8, 3
DONE_ITEM = "end_item"
_PLAIN = (
    "--- system\nYou are {role}: {summary}\nUse the tools; give what is asked for with the give_ tools.\n"
    "--- user\n{{task}}\n"
)


class Agent:
    """`prompt` is a prompt file's text with a slot `{{task}}` (None: a plain one), `schemas` the JSON Schema of each
    registered kind that the role gives, `shape` how it works."""

    def __init__(
        self,
        role: str,
        summary: str,
        prompt: str | None,
        schemas: Mapping[str, Mapping[str, Any]],
        shape: str = "react",
    ) -> None:
        text = prompt or _PLAIN.replace("{role}", role).replace("{summary}", summary)
        self._prompt = Prompt(role, text)
        self._schemas, self._shape = schemas, shape
        self.prompt_version = self._prompt.version

    @classmethod
    def of_file(
        cls, path: Path, role: str, summary: str, schemas: Mapping[str, Mapping[str, Any]], shape: str
    ) -> Agent:
        """With a prompt file. Raises `ValueError` for one that is none."""
        text = path.read_text("utf-8")
        if "{{task}}" not in text or not text.startswith("--- "):
            raise ValueError(f"prompt: {path} begins with no '--- system' or has no {{{{task}}}}")
        return cls(role, summary, text, schemas, shape)

    async def perform(self, work: Work) -> list[Output]:
        at = work.assignment
        folder = work.home / "checkout"
        await asyncio.to_thread(checkout, await work.workspace(), folder)
        context = work.surroundings(
            checkout=folder, home=work.home / "home", base=await work.workspace(), sources=await work.sources()
        )
        tools, given = work.registry(), Given()
        for kind in at.order.produces:
            tools.add(given.tool(kind, self._schemas.get(kind) or schema_of(kind)))
        task = await _described(work)
        messages = self._prompt.fill(task=task)
        scope = await scope_of(work)
        if self._shape == "plan-execute":
            await _by_list(work, self._prompt, messages, tools, context, given, scope)
        else:
            acts = Acts(work, messages, tools, given)
            await Loop(work, acts, tools, context, scope, prompt=self.prompt_version).run()
        return given.outputs()


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
            "keyed", on_files=True,
        )  # fmt: skip

    @property
    def complete(self) -> bool:
        return all(kind in self._found for kind in self.kinds)

    @property
    def missing(self) -> str:
        return ", ".join(f"{GIVE}{kind}" for kind in self.kinds if kind not in self._found)

    def outputs(self) -> list[Output]:
        return [
            Output(f"{kind}-{n}" if len(found) > 1 else kind, dict(value), of=kind)
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
            origin=f"result of {call.name}", place=f"{self._work.assignment.step}:{self._results}",
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
            end, "write", "keyed", on_files=True,
        )  # fmt: skip


async def _by_list(
    work: Work, messages: list[Message], tools: Registry, context: ToolContext, given: Given, scope: dict[str, Any]
) -> None:
    """The list is made, each item is worked off, and what fails has the rest of the list made anew."""
    past: list[Item] = []
    for _ in range(MAX_LISTS):
        items = [Item(text) for text in await _list(work, messages, past, scope)]
        for item in items:
            work.say(f"{_shown([*past, *items])}\n")
            more = Registry([*tools.specs(), item.tool()])
            here = Message("user", f"The list:\n{_shown([*past, *items])}\n\nDo this item now: {item.text}")
            await Loop(work, Acts(work, [*messages, here], more, given, item), more, context, scope).run()
            past.append(item)
            if item.state == "failed" or given.complete:
                break
        if given.complete:
            return
        if all(item.state == "done" for item in items):
            break
    last = Message("user", f"The list:\n{_shown(past)}\n\nGive the result now.")
    await Loop(work, Acts(work, [*messages, last], tools, given), tools, context, scope).run()


async def _list(work: Work, messages: list[Message], past: list[Item], scope: dict[str, Any]) -> list[str]:
    text = {"type": "string", "minLength": 3}
    items = {"type": "array", "minItems": 1, "maxItems": MAX_ITEMS, "items": text}
    schema = {"type": "object", "additionalProperties": False, "required": ["items"], "properties": {"items": items}}

    async def judge(value: dict[str, Any]) -> str | None:
        return None

    done = f"\n\nSo far:\n{_shown(past)}\n\nMake a new list of what is left; an item failed." if past else ""
    ask = Message(
        "user", f'Make a list of at most {MAX_ITEMS} items that lead to the result: {{"items": [...]}}.{done}'
    )
    value = await Loop(work, Answer("list", [*messages, ask], schema, judge), scope=scope).run()
    return [str(item) for item in value["items"]]


def _shown(items: list[Item]) -> str:
    marks = {"open": " ", "done": "x", "failed": "!"}
    return "\n".join(f"[{marks[i.state]}] {i.text}" + (f": {i.result[:500]}" if i.result else "") for i in items)


async def _described(work: Work) -> str:
    """The step's goal first, then what it was handed, each framed with where it comes from."""
    at, parts = work.assignment, []
    if at.order.goal != work.spec.goal:
        parts.append(f"The whole task: {work.spec.goal}")
    parts.append(f"Your step: {at.order.goal}")
    for ref in at.order.inputs:
        if ref.kind == "task":
            continue
        body = json.dumps(json.loads(await work.content.raw(ref)), ensure_ascii=False)
        parts.append(framed(body[:16_384], f"{ref.kind} of step {ref.step}", ref.digest))
    feedback = feedback_of(work)
    return "\n\n".join([*parts, *([feedback] if feedback else [])])
