"""The tool that asks a person. The loop never runs it: the step waits, held by nobody, until somebody has answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool


def _ask_person(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    raise ToolError("nobody can be asked here; work from the goal and what you can read")


ASK_PERSON = Tool(
    "ask_person",
    "Ask a person what only people can answer. Returns their answer. It may take long: ask for all you need at once. "
    "Not for what can be read or looked up.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["question"],
        "properties": {
            "question": {"type": "string", "minLength": 3, "maxLength": 4_000, "description": "The question, complete"}
        },
    },
    _ask_person,
    tier="read",
    effect="read",
    trust="principal",
)
