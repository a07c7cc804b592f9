"""The planner: the goal becomes a DAG of steps for the roles that the order names."""

from __future__ import annotations

from typing import Any

import msgspec

from kokuban.agents._answer import Answer
from kokuban.agents._output import Output
from kokuban.agents._prompts import prompt
from kokuban.agents._work import Work
from kokuban.agents.loop import Loop
from kokuban.agents.models import Message
from kokuban.agents.roles._shared import feedback_of, file_list, first_heading, scope_of
from kokuban.blackboard.core import problems_of_plan
from kokuban.schemas import Plan

MAX_PLANNED = 6
_ID = "^[a-z][a-z0-9-]{1,30}$"


class Planner:
    """One structured answer, checked here as the supervisor will check it, so that most mistakes cost no attempt."""

    prompt_version = prompt("planner").version

    async def perform(self, work: Work) -> list[Output]:
        team = work.assignment.order.team
        roles = sorted(mate.role for mate in team)
        sources = await work.sources()
        documents = ", ".join(f"{path} ({first_heading(file.content)})" for path, file in sources.items())
        messages = prompt("planner").fill(
            roles=", ".join(roles), files=file_list(await work.workspace()), sources=documents or "none",
            goal=work.spec.goal,
        )  # fmt: skip
        feedback = feedback_of(work)
        if feedback:
            messages[-1] = Message("user", f"{messages[-1].content}\n\n{feedback}")

        async def judge(value: dict[str, Any]) -> str | None:
            problems = problems_of_plan(msgspec.convert(value, Plan), roles)
            if not problems:
                return None
            listed = "\n".join(f"- {problem}" for problem in problems)
            return f"The plan is refused:\n{listed}\nAnswer with the whole plan, mended."

        dialog = Answer("plan", messages, _schema(roles), judge)
        value = await Loop(work, dialog, scope=await scope_of(work)).run()
        return [Output("plan", msgspec.convert(value, Plan))]


def _schema(roles: list[str]) -> dict[str, Any]:
    step = {
        "type": "object",
        "additionalProperties": False,
        "required": ["id", "role", "goal", "needs"],
        "properties": {
            "id": {"type": "string", "pattern": _ID},
            "role": {"enum": roles},
            "goal": {"type": "string", "minLength": 10, "maxLength": 600},
            "needs": {"type": "array", "maxItems": 4, "items": {"type": "string", "pattern": _ID}},
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["steps"],
        "properties": {"steps": {"type": "array", "minItems": 1, "maxItems": MAX_PLANNED, "items": step}},
    }
