"""The planner: the goal becomes a DAG of steps for the roles that the order names."""

from __future__ import annotations

from collections.abc import Sequence
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
from kokuban.schemas import MAX_STEPS, Plan, Teammate, encode
from kokuban.schemas.kinds import problems as problems_of

MAX_CHANGES = 4
_ID = {"type": "string", "pattern": "^[a-z][a-z0-9-]{1,30}$"}
_ACCEPTS = {"type": "object", "required": ["steps"], "properties": {"steps": {"type": "array", "minItems": 1}}}


class Planner:
    """One structured answer, checked here as the supervisor will check it, so that most mistakes cost no attempt."""

    prompt_version = prompt("planner").version

    async def perform(self, work: Work) -> list[Output]:
        team = work.assignment.order.team
        roles = sorted(mate.role for mate in team)
        sources = await work.sources()
        documents = ", ".join(f"{path} ({first_heading(file.content)})" for path, file in sources.items())
        if sources:  # of each the first heading
            work.saw_files("search_sources")
        messages = prompt("planner").fill(
            roles=", ".join(roles), files=file_list(await work.workspace()), sources=documents or "none",
            goal=work.spec.goal,
        )  # fmt: skip
        for more in (await _revision(work), feedback_of(work)):
            if more:
                messages[-1] = Message("user", f"{messages[-1].content}\n\n{more}")

        async def judge(value: dict[str, Any]) -> str | None:
            steps = encode({"steps": value["steps"]})
            problems = problems_of("plan", steps) or problems_of_plan(_plan(value), roles)
            if not problems:
                return None
            listed = "\n".join(f"- {problem}" for problem in problems)
            return f"The plan is refused:\n{listed}\nAnswer with the whole plan, mended."

        dialog = Answer("plan", messages, _schema(team), judge, accepts=_ACCEPTS, too_large=_too_large)
        value = await Loop(work, dialog, scope=await scope_of(work), prompt=self.prompt_version).run()
        return [Output("plan", _plan(value))]


async def _revision(work: Work) -> str:
    """What a planner is told when the plan is to be made again, '' when there is none yet."""
    revision = work.assignment.order.revision
    if revision is None:
        return ""
    lines = [f"There is a plan already, and it is to be made again: {revision.reason}"]
    plan = await work.content.artifact(revision.plan) if revision.plan is not None else None
    if isinstance(plan, Plan):
        lines.append(f"The plan in force:\n{encode(plan).decode()}")
    if revision.done:
        lines.append(f"These steps are done: {', '.join(revision.done)}.")
    lines.append(
        "Answer with the whole new plan. A step that you keep exactly as it is (same id, role, goal and needs) keeps "
        "its work; leave out what is not needed any more."
    )
    return "\n\n".join(lines)


def _too_large(value: dict[str, Any]) -> str | None:
    steps = value.get("steps")
    if not isinstance(steps, list) or len(steps) <= MAX_STEPS:
        return None
    return f"The plan is refused: {len(steps)} steps are too many; at most {MAX_STEPS}. Answer with a shorter plan."


def _plan(value: dict[str, Any]) -> Plan:
    return msgspec.convert({"steps": value["steps"]}, Plan)


def _schema(team: Sequence[Teammate]) -> dict[str, Any]:
    """One shape for each number of changes, with and without facts to find: the counts that a model commits to first
    bind the steps that follow."""
    finders = [mate.role for mate in team if "finding" in mate.produces]
    makers = [mate.role for mate in team if "finding" not in mate.produces]
    shapes = [_shape(n, False, makers) for n in range(1, MAX_CHANGES + 1)] if makers else []
    if finders:
        shapes += [_shape(n, True, [*makers, *finders]) for n in range(0 if not makers else 1, MAX_CHANGES + 1)]
    return {"anyOf": shapes}


def _shape(changes: int, facts: bool, roles: list[str]) -> dict[str, Any]:
    count = max(1, changes + facts)
    step = _object(
        id=_ID,
        role={"enum": sorted(roles)},
        goal={"type": "string", "minLength": 10, "maxLength": 600},
        needs={"type": "array", "maxItems": count - 1, "items": _ID},
    )
    return _object(
        thought={"type": "string", "minLength": 5, "maxLength": 300},
        facts={"const": facts},
        changes={"const": changes},
        steps={"type": "array", "minItems": count, "maxItems": count, "items": step},
    )


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}
