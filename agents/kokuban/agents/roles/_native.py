"""The provider's own tool calls in a growing conversation: for models that can carry one."""

from __future__ import annotations

from typing import Any

from kokuban.agents._history import History
from kokuban.agents._prompts import prompt
from kokuban.agents._work import StepFailed
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Message, Problem, Reply, Request, ToolSpec, parse_arguments
from kokuban.agents.roles._coding import Coding, cut
from kokuban.agents.roles._shared import facts_of, feedback_of, task_of
from kokuban.agents.tools import Observation, Registry

FINISH = "finish"
_FINISH_ARGUMENTS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["summary"],
    "properties": {"summary": {"type": "string", "minLength": 1}},
}


def split_calls(calls: tuple[Call, ...]) -> tuple[Call | None, tuple[Call, ...]]:
    """A call of `finish` that may be believed, and the calls that are to be run before it."""
    ending = next((call for call in calls if call.name == FINISH and call.problem is None), None)
    return ending, tuple(call for call in calls if call is not ending)


def summary_of(ending: Call) -> str:
    """What a call of `finish` says."""
    parsed = parse_arguments(ending.arguments)
    return "" if isinstance(parsed, Problem) else cut(parsed.get("summary", ""), 2_000)


class NativeActions:
    """A growing conversation with the provider's own tool calls; every call gets exactly one result."""

    def __init__(self, coding: Coding, tools: Registry) -> None:
        self._coding = coding
        self._specs = (
            *(ToolSpec(t.name, t.description, dict(t.parameters)) for t in tools.specs()),
            ToolSpec(FINISH, "Say that the task is done.", _FINISH_ARGUMENTS),
        )
        self._history: History | None = None
        self._ending: Call | None = None

    async def request(self) -> Request:
        coding = self._coding
        if self._history is None:
            files = await coding.files()
            pinned = prompt("coder-tools").fill(
                files="\n".join(files) or "none",
                findings=facts_of(coding.findings),
                checks=coding.now.report or "There are no checks.",
                step_goal=task_of(coding.work),
                feedback=feedback_of(coding.work) or "none",
            )
            work = coding.work
            window = work.meter.context_tokens if work.meter is not None else None
            self._history = History(tuple(pinned), self._specs, work.max_output_tokens, window)
        asked = self._history.request()
        if not self._history.fits:
            raise StepFailed("tokens", f"the conversation does not fit the model, made smaller too; {self.standing()}")
        return asked

    async def compact(self) -> bool:
        """Make the next request smaller; whether it is."""
        return self._history is not None and self._history.compact()

    def _add(self, message: Message) -> None:
        assert self._history is not None
        self._history.add(message)

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.content or reply.calls:
            self._add(Message("assistant", reply.content, reply.calls, extra=reply.extra))
        if reply.calls:
            self._ending, others = split_calls(reply.calls)
            return Calls(others) if others or self._ending is None else Final(summary_of(self._ending))
        if reply.content.strip() and not reply.truncated:
            return Final(cut(reply.content, 2_000))  # many models end in words; the runtime looks for itself
        return Wrong("Call a tool: edit_file or write_file to change files, run_checks to test, finish when done.")

    async def accept(self, value: Any) -> str | None:
        return await self._coding.objection()

    async def observe(self, call: Call, observation: Observation) -> None:
        self._coding.changed_since_check = True
        assert self._history is not None
        self._history.answer(call, observation.text, failed=not observation.ok)

    def finished(self) -> Final | None:
        return Final(summary_of(self._ending)) if self._ending is not None else None

    def standing(self) -> str:
        return self._coding.standing()

    def object(self, text: str) -> None:
        coding = self._coding
        full = f"{text}\n{coding.now.report}" if coding.now.passed and not coding.acceptable else text
        if self._ending is not None:
            assert self._history is not None
            self._history.answer(self._ending, full, failed=True)
            self._ending = None
        else:
            self._add(Message("user", full))
