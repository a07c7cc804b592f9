"""The way for small models: one file a turn, in plain text, from a state that is shown afresh each time."""

from __future__ import annotations

import json
import re
from typing import Any

from kokuban.agents._answer import parse_object
from kokuban.agents._prompts import prompt
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Problem, Reply, Request, parse_arguments
from kokuban.agents.roles._coding import Checked, Coding, cut
from kokuban.agents.roles._native import FINISH, split_calls, summary_of
from kokuban.agents.roles._shared import facts_of, feedback_of, task_of
from kokuban.agents.roles._targets import shown_files, target_files
from kokuban.agents.tools import Observation, Registry, protected
from kokuban.blackboard.workspace import Tree

HEAT = 0.3
NOTES_KEPT = 2
ANSWERS_A_FILE = 4
ROUNDS_TO_SHOW = 2
MAX_OUTPUT_TOKENS = 1_000
KEPT = "An earlier call changed files; the checks fail as before. What it changed is kept."
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)


def fenced_code(text: str, path: str) -> str | None:
    """What stands in the first code block of a reply. A reply that is nothing but JSON is the content of a JSON file.
    None for any other reply."""
    found = _FENCE.search(text)
    if found:
        return found[1]
    return text if path.endswith(".json") and is_json(text) else None


def is_json(text: str) -> bool:
    """Whether the whole text is one JSON object or list."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


class Writing:
    """A round writes each file that the task names (or the one that the checks point at), in turn; then the runtime
    looks at the checks: it has the last file mended, then written anew, and undoes a round that does not help (never
    what a tool call changed). The first round is taken at temperature 0; asked again, the model is to come up with
    something else. A reply may also be a native tool call or one JSON action."""

    def __init__(self, coding: Coding, tools: Registry) -> None:
        self._coding = coding
        self._tools = tools
        self._turn = 0
        self._failed_rounds = 0
        self._round: list[str] = []
        self._at = 0
        self._asked_again = 0
        self._start: tuple[Tree, Checked] = ({}, Checked())
        self._stage: tuple[Tree, Checked] = ({}, Checked())
        self._notes: list[str] = []
        self._read: dict[str, str] = {}
        self._thought = ""
        self._enough = False
        self._ending: Call | None = None

    async def request(self) -> Request:
        coding, work = self._coding, self._coding.work
        self._turn += 1
        files = await coding.files()
        kept = protected(coding.start, work.spec.checks)
        if self._at == 0 and not self._asked_again:
            self._start = (files, coding.now)
            self._round = target_files(coding, files, kept, self._failed_rounds)
        if not self._asked_again:
            self._stage = (files, coding.now)
        path = self._round[self._at]
        shown, hidden = shown_files(coding, files, kept, path)
        texts = [f"File {name}{' (read-only)' if name in kept else ''}:\n{text}" for name, text in shown.items()]
        texts += [f"Other files: {', '.join(hidden[:100])}"] if hidden else []
        texts += [f"You read {name}:\n{text}" for name, text in self._read.items()]
        messages = prompt("coder").fill(
            files="\n\n".join(texts) or "There are no files yet.",
            findings=facts_of(coding.findings),
            checks=coding.now.report or "There are no checks.",
            done=self._so_far(),
            step_goal=task_of(work),
            path=path,
        )
        again = self._turn > len(self._round) or work.assignment.begun > 1
        return Request(
            messages=tuple(messages), max_output_tokens=MAX_OUTPUT_TOKENS, temperature=HEAT if again else 0.0,
            seed=100 * work.assignment.begun + self._turn,
        )  # fmt: skip

    def _so_far(self) -> str:
        parts = [feedback_of(self._coding.work)]
        parts += self._notes[-NOTES_KEPT:]
        return "\n\n".join(part for part in parts if part)

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.calls:
            self._ending, others = split_calls(reply.calls)
            return Calls(others) if others or self._ending is None else Final(summary_of(self._ending))
        if reply.truncated:
            return Wrong("an answer that was too long and was cut off")
        action = parse_object(reply.content)
        if not isinstance(action, Problem) and "tool" in action:
            return self._action(action)
        written = fenced_code(reply.content, self._round[self._at])
        if written is None:
            return Wrong("an answer without a code block")
        self._thought = cut(" ".join(reply.content.partition("```")[0].split()), 300) if "```" in reply.content else ""
        code = {"path": self._round[self._at], "code": written}
        return Calls((Call("code", "write_code", json.dumps(code)),))

    def _action(self, action: dict[str, Any]) -> Final | Calls:
        tool, arguments = str(action["tool"]), action.get("arguments", {})
        self._thought = cut(action.get("thought", ""), 300)
        if tool == FINISH:
            return Final(cut(arguments.get("summary", ""), 300) if isinstance(arguments, dict) else "")
        return Calls((Call("action", tool, json.dumps(arguments)),))

    async def accept(self, value: Any) -> str | None:
        return await self._coding.objection()

    async def observe(self, call: Call, observation: Observation) -> None:
        coding = self._coding
        tool = next((t for t in self._tools.specs() if t.name == call.name), None)
        if tool is None or not observation.ok:
            self._notes.append(f"An earlier answer could not be used: {cut(observation.text, 400)}")
            await self._undo()
            return
        if tool.tier == "read":
            arguments = parse_arguments(call.arguments)
            path = call.name if isinstance(arguments, Problem) else arguments.get("path", call.name)
            self._read[cut(path, 200)] = cut(observation.text, 6_000)
            return
        coding.changed_since_check = True
        await coding.check()
        if coding.was_failing and not coding.now.failing:
            self._enough = coding.whole
        elif call.id == "code" and self._at + 1 < len(self._round):
            self._at, self._asked_again = self._at + 1, 0
            return
        helps = self._helps()
        if call.id != "code":  # a person may have approved it: only our own writes are undone
            self._start = self._stage = (await coding.files(), coding.now)
        if helps:
            self._notes, self._at, self._asked_again = [], 0, 0
            self._enough = self._enough or (call.id == "code" and not (coding.whole and coding.was_failing))
            return
        if call.id != "code":
            self._notes.append(KEPT)
        await self._undo(mend=call.id == "code")

    async def _undo(self, *, mend: bool = False) -> None:
        """Ask again. The first time with `mend` the answer stays, so that the model sees it and what the checks say of
        it; then from before this file; asked often enough, from the start of the round. Nothing else of what was tried
        is shown: a small model repeats what it reads."""
        self._asked_again += 1
        if mend and self._asked_again % 2:
            return
        if self._at > 0 and self._asked_again < ANSWERS_A_FILE:
            await self._coding.restore(*self._stage)
            return
        self._at, self._asked_again, self._failed_rounds = 0, 0, self._failed_rounds + 1
        await self._coding.restore(*self._start)

    def _helps(self) -> bool:
        """Fewer checks fail. Where the checks may not show it (none failed, or other steps' work is missing and rounds
        that should have shown it were tried), it is enough that none fails that did not before."""
        before, now = self._start[1].failing, self._coding.now.failing
        shown = before and (self._coding.whole or self._failed_rounds < ROUNDS_TO_SHOW)
        return now < before if shown else now <= before

    def finished(self) -> Final | None:
        if self._ending is not None:
            return Final(summary_of(self._ending))
        return Final(self._thought) if self._enough else None

    def standing(self) -> str:
        return "; ".join(part for part in (*self._notes[-1:], self._coding.standing()) if part)

    def object(self, text: str) -> None:
        self._enough, self._ending = False, None
        self._failed_rounds += 1
        self._notes.append(f"An earlier answer could not be used: {text}")
