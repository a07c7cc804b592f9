"""A role of a user's own, without code: a contract, a kind, tools and a model that a test tells what to say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kokuban.agents import Worker
from kokuban.agents.models import CallContext, Meter, Reply, Request, open_model
from kokuban.agents.roles.agent import Agent
from kokuban.agents.toolbox import Toolbox
from kokuban.agents.toolbox._file import ToolboxFile
from kokuban.agents.tools import Tool
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.schemas import Journal, Opens, open_record, subjects
from kokuban.schemas.contracts import Contract, parse_contract
from support.team import script, team
from support.waiting import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KIND = {
    "type": "object", "additionalProperties": False, "required": ["text"],
    "properties": {"text": {"type": "string", "maxLength": 200}},
}  # fmt: skip
TEXT = {
    "type": "object", "additionalProperties": False, "required": ["text"], "properties": {"text": {"type": "string"}},
}  # fmt: skip


class Listening:
    """A model that keeps what it was asked."""

    def __init__(self, model: Any) -> None:
        self._model, self.name, self.context_tokens = model, model.name, None
        self.requests: list[tuple[CallContext, Request]] = []

    async def call(self, request: Request, context: CallContext, progress: Any) -> Reply:
        self.requests.append((context, request))
        reply: Reply = await self._model.call(request, context, progress)
        return reply

    async def aclose(self) -> None: ...


@dataclass
class OwnRole:
    """The role `answerer`, which gives an `answer`. `more` are lines of its contract."""

    bus: Bus
    url: str
    folder: Path
    tools: Sequence[Tool] = ()
    shape: str = "react"
    more: str = ""
    asked: list[tuple[CallContext, Request]] = field(default_factory=list)

    @property
    def text(self) -> str:
        names = json.dumps([tool.name for tool in self.tools])
        return (
            'role = "answerer"\nsummary = "Answers."\nwhen = "planned"\nconsumes = ["task"]\nproduces = ["answer"]\n'
            f'model = true\nshape = "{self.shape}"\ntools = {names}\n{self.more}'
        )

    @property
    def contract(self) -> Contract:
        return parse_contract(self.text, "answerer.toml", ["answer"])

    def working(self, *replies: Mapping[str, Any]) -> AbstractAsyncContextManager[None]:
        """The whole team and a worker of this role, whose models say these things."""
        return self._working(replies)

    @asynccontextmanager
    async def _working(self, replies: Sequence[Mapping[str, Any]]) -> AsyncIterator[None]:
        model = script(self.folder / "script.json", *replies)
        await ensure_board(self.bus)
        await register_kind(self.bus, "answer", json.dumps(KIND).encode())
        await register_role(self.bus, self.text)
        contract = self.contract
        heard = Listening(open_model(model, env={}))
        self.asked = heard.requests
        worker = Worker(
            self.bus, contract, Agent("answerer", contract.summary, None, {"answer": KIND}, self.shape),
            home=self.folder / "home", meter=Meter(heard), toolbox=Toolbox(ToolboxFile(), self.tools),
        )  # fmt: skip
        async with team(self.url, model, self.folder / "team"), running(worker.run()):
            yield

    async def opened(self, task: str, step: str) -> list[Opens]:
        """The calls that stand in a step's journal."""
        stored = await self.bus.history(subjects.journal(task, "answerer", step))
        lines = [msgspec.json.decode(open_record(one.data).body, type=Journal) for one in stored]
        return [line.opens for line in lines if line.opens is not None]


def plans(*steps: tuple[str, str]) -> dict[str, Any]:
    """A planner's reply: steps of this role, each with its goal."""
    wanted = [{"id": i, "role": "answerer", "goal": goal, "needs": []} for i, goal in steps]
    return {"when": {"role": "planner"}, "reply": {"content": {"steps": wanted}}}


def says(content: Any, **when: Any) -> dict[str, Any]:
    """The role's reply in words."""
    return {"when": {"role": "answerer", **when}, "reply": {"content": content}}


def calls(*wanted: tuple[str, Mapping[str, Any]], **when: Any) -> dict[str, Any]:
    """The role's reply in tool calls."""
    return {
        "when": {"role": "answerer", **when},
        "reply": {"calls": [{"name": name, "arguments": arguments} for name, arguments in wanted]},
    }


def gives(text: str, **when: Any) -> dict[str, Any]:
    """The role gives its answer."""
    return calls(("give_answer", {"text": text}), **when)
