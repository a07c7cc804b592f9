"""A role without code: a contract, a prompt and tools. The model acts by its provider's tool calls until it has given
every kind of artifact that the contract produces (ReAct: Yao et al., 2022), or works off a list of its own
(plan-and-execute)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokuban.agents._data import framed
from kokuban.agents._output import Output
from kokuban.agents._prompts import Prompt
from kokuban.agents._work import Work
from kokuban.agents.loop import Loop
from kokuban.agents.roles._acts import Acts, Given
from kokuban.agents.roles._by_list import ByList
from kokuban.agents.roles._shared import feedback_of, scope_of
from kokuban.blackboard.workspace import checkout
from kokuban.schemas.kinds import schema_of

Schemas = Mapping[str, Mapping[str, Any]]
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
            await ByList(work, messages, tools, context, given, scope, self.prompt_version).run()
        else:
            acts = Acts(work, messages, tools, given)
            await Loop(work, acts, tools, context, scope, prompt=self.prompt_version).run()
        return given.outputs()


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
        label = work.labels.get(ref.digest, "untrusted")
        parts.append(framed(body[:16_384], f"{ref.kind} of step {ref.step}, {label}", ref.digest))
    if feedback := feedback_of(work):
        parts.append(framed(feedback, "earlier attempts and added facts", at.step))
    return "\n\n".join(parts)
