"""Remembering from one task to the next: a proposal that a person has to approve, and what was approved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool

_NONE = "this worker has no memory; go on without it"


async def _remember(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    if context.memory is None:
        raise ToolError(_NONE, terminal=False)
    name, new = await context.memory.propose(
        kind=arguments.get("kind", "fact"), key=arguments["key"], text=arguments["text"], author=context.author,
        task=context.task or None, step=context.step or None,
    )  # fmt: skip
    return f"Proposed as {name}; it counts once a person has approved it." if new else f"{name} was proposed before."


async def _recall(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    if context.memory is None:
        raise ToolError(_NONE, terminal=False)
    found = await context.memory.recall(arguments["query"])
    lines = [
        f"- {m.proposal.key}: {m.proposal.text} ({m.proposal.kind} {m.id}, by {m.proposal.author}"
        f"{f' in task {m.proposal.task}' if m.proposal.task else ''}, approved by {m.by})"
        for m in found
    ]
    return "\n".join(lines) or "Nothing is remembered about that."


_KEY = {"type": "string", "minLength": 1, "maxLength": 200, "description": "A few words to find it by."}
REMEMBER = Tool(
    "remember",
    "Propose a fact, or a preference of the people you work for, for later tasks. Returns its id. "
    "Not for this task's own results, and never for secrets.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["key", "text"],
        "properties": {
            "key": _KEY,
            "text": {"type": "string", "minLength": 1, "maxLength": 2_000, "description": "What is to be remembered."},
            "kind": {"enum": ["fact", "preference"], "description": "A fact by default."},
        },
    },
    _remember,
    tier="write",
    effect="keyed",
)
RECALL = Tool(
    "recall",
    "Look up what was remembered from earlier tasks and approved by a person. Returns at most 5 entries with where "
    "each comes from. Not for this task's documents.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 400, "description": "A key, or words of the text."}
        },
    },
    _recall,
    tier="read",
    effect="read",
)
