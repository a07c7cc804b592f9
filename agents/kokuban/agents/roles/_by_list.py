"""Plan and execute, for a role without code of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kokuban.agents._answer import Answer
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.loop import Loop
from kokuban.agents.models import Message
from kokuban.agents.roles._acts import Acts, Given, Item
from kokuban.agents.tools import Registry, ToolContext

MAX_ITEMS, MAX_LISTS = 8, 3
_LIST = {
    "type": "object", "additionalProperties": False, "required": ["items"],
    "properties": {
        "items": {
            "type": "array", "minItems": 1, "maxItems": MAX_ITEMS, "items": {"type": "string", "minLength": 3},
        },
    },
}  # fmt: skip


@dataclass
class ByList:
    """Plan and execute: the list is made, each item is worked off in a conversation of its own, and what fails has the
    rest of the list made anew, `MAX_LISTS` times at most. The journal holds the lists (replies) and how each item ended
    (`end_item`); people see the list as it stands."""

    work: Work
    messages: list[Message]
    tools: Registry
    context: ToolContext
    given: Given
    scope: dict[str, Any]
    prompt: str
    past: list[Item] = field(default_factory=list)

    async def run(self) -> None:
        for _ in range(MAX_LISTS):
            items = [Item(text) for text in await self._list()]
            for at, item in enumerate(items):
                await self._execute(item, items[at:])
                if item.state == "failed" or self.given.complete:
                    break
            self.work.say(f"{_shown(self.past)}\n")
            if self.given.complete:
                return
            if all(item.state == "done" for item in items):
                break
        await self._loop(f"The list:\n{_shown(self.past)}\n\nGive the result now.", self.tools)

    async def _execute(self, item: Item, left: list[Item]) -> None:
        """Work one item off. One that leads nowhere has failed; what limits the whole step ends the step."""
        shown = _shown([*self.past, *left])
        self.work.say(f"{shown}\n")
        tools = Registry([*self.tools.specs(), item.tool()])
        try:
            await self._loop(f"The list:\n{shown}\n\nDo this item now: {item.text}", tools, item)
        except StepFailed as error:
            if error.why != "no_progress":
                raise
            item.state, item.result = "failed", error.reason
        self.past.append(item)

    async def _loop(self, text: str, tools: Registry, item: Item | None = None) -> None:
        acts = Acts(self.work, [*self.messages, Message("user", text)], tools, self.given, item)
        await Loop(self.work, acts, tools, self.context, self.scope, prompt=self.prompt).run()

    async def _list(self) -> list[str]:
        async def judge(value: dict[str, Any]) -> str | None:
            return None

        ask = f'Make a list of at most {MAX_ITEMS} items that lead to the result: {{"items": [...]}}.'
        if self.past:
            ask += f"\n\nSo far:\n{_shown(self.past)}\n\nMake a new list of what is left; an item failed."
        answer = Answer("list", [*self.messages, Message("user", ask)], _LIST, judge)
        value = await Loop(self.work, answer, scope=self.scope, prompt=self.prompt).run()
        return [str(item) for item in value["items"]]


def _shown(items: list[Item]) -> str:
    marks = {"open": " ", "done": "x", "failed": "!"}
    return "\n".join(f"[{marks[i.state]}] {i.text}" + (f": {i.result[:500]}" if i.result else "") for i in items)
