"""Two ways to let a model act on files: one constrained JSON action a turn (small models), or native tool calls."""

from __future__ import annotations

import json
from typing import Any

from kokuban.agents._answer import parse_object
from kokuban.agents._prompts import prompt
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Message, Problem, Reply, Request, ToolSpec, parse_arguments
from kokuban.agents.roles._coding import Checked, Coding, cut
from kokuban.agents.roles._shared import feedback_of
from kokuban.agents.tools import Observation, Registry, blocks, protected
from kokuban.blackboard.workspace import Tree, is_text

SHOWN_CHARS = 16_000
LINES_OFFERED = 80
HEAT = 0.6
FINISH = "finish"
_TEXT = {"type": "string"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


class JsonActions:
    """Every turn shows the state afresh: files, findings, what the checks say, what was tried; the reply is one action,
    constrained to files and blocks that exist. After each change the runtime runs the checks, and undoes a change that
    does not help. The first answer is taken at temperature 0; asked again, the model is to come up with something else.
    """

    def __init__(self, coding: Coding, tools: Registry) -> None:
        self._coding = coding
        self._tools = tools
        self._turn = 0
        self._tried: list[str] = []
        self._read: dict[str, str] = {}
        self._thought = ""
        self._kept = self._green = False
        self._ending: Call | None = None
        self._files: Tree = {}

    async def request(self) -> Request:
        coding, work = self._coding, self._coding.work
        self._turn += 1
        self._files = files = await coding.files()
        kept = protected(coding.start, work.spec.checks)
        shown = _shown(files, kept, coding)
        texts = [f"File {path}{' (read-only)' if path in kept else ''}:\n{text}" for path, text in shown.items()]
        hidden = [path for path, file in files.items() if path not in shown and file.content]
        if hidden:
            texts.append(f"Other files (read_file shows one): {', '.join(hidden[:100])}")
            texts += [f"You read {path}:\n{text}" for path, text in self._read.items() if path in hidden]
        messages = prompt("coder").fill(
            files="\n\n".join(texts) or "There are no files yet.",
            findings="\n".join(f"- {f.statement} ({f.citations[0].source})" for _, f in coding.findings) or "none",
            checks=coding.now.report or "There are no checks.",
            done=self._so_far(),
            step_goal=work.assignment.order.goal,
        )
        again = bool(self._tried) or work.assignment.begun > 1
        return Request(
            messages=tuple(messages), max_output_tokens=work.max_output_tokens, schema_name="action",
            schema=_schema(shown, kept, bool(hidden)), temperature=HEAT if again else 0.0,
            seed=100 * work.assignment.begun + self._turn,
        )  # fmt: skip

    def _so_far(self) -> str:
        parts = [feedback_of(self._coding.work)]
        if self._kept:
            parts.append("You already made a change that is kept. If the task is done, finish.")
        if self._tried:
            parts.append("Tried and undone, and why:\n" + "\n".join(self._tried[-3:]) + "\nTry something different.")
        return "\n\n".join(part for part in parts if part)

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.calls:
            self._ending, others = _split(reply.calls)
            return Calls(others) if others or self._ending is None else Final(_summary(self._ending))
        if reply.truncated:
            return Wrong("an answer that was too long and was cut off")
        value = parse_object(reply.content)
        if isinstance(value, Problem):
            return Wrong(f"an answer that was not one JSON action: {value.reason}")
        tool, arguments = value.get("tool"), value.get("arguments", {})
        self._thought = cut(value.get("thought", ""), 300)
        if tool == FINISH:
            return Final(arguments.get("summary", "") if isinstance(arguments, dict) else "")
        return Calls((Call("action", str(tool), json.dumps(arguments)),))

    async def accept(self, value: Any) -> str | None:
        return await self._coding.objection()

    async def observe(self, call: Call, observation: Observation) -> None:
        coding = self._coding
        tool = next((t for t in self._tools.specs() if t.name == call.name), None)
        if tool is None or not observation.ok:
            self._tried.append(f"- Not possible: {cut(observation.text, 600)}")
        elif tool.tier == "read":
            arguments = parse_arguments(call.arguments)
            path = call.name if isinstance(arguments, Problem) else str(arguments.get("path", call.name))
            self._read[path] = cut(observation.text, 6_000)
        else:
            before, coding.changed_since_check = coding.now, True
            await coding.check()
            if self._helps(before):
                self._kept, self._tried, self._files = True, [], await coding.files()
            else:
                self._tried.append(f"- {self._thought or observation.text} The checks said: {coding.now.essence}")
                await coding.restore(self._files, before)
            self._green = coding.was_failing and not coding.now.failing

    def _helps(self, before: Checked) -> bool:
        """Fewer checks fail; or, where the checks cannot show it (none fails, or other steps' work is missing), none
        fails that did not before."""
        now = self._coding.now
        if before.failing and self._coding.whole:
            return now.failing < before.failing
        return now.failing <= before.failing

    def finished(self) -> Final | None:
        if self._ending is not None:
            return Final(_summary(self._ending))
        return Final(self._thought) if self._green else None

    def object(self, text: str) -> None:
        self._green, self._ending = False, None
        self._tried.append(f"- {text}")


def _shown(files: Tree, kept: frozenset[str], coding: Coding) -> dict[str, str]:
    """The files whose text fits: tests first, then those that the goal or the checks name, then the rest."""
    hints = f"{coding.work.assignment.order.goal}\n{coding.work.spec.goal}\n{coding.now.report}"
    texts = {path: file.content.decode().strip() for path, file in files.items() if is_text(file.content)}
    texts = {path: text for path, text in texts.items() if text and _is_code(path, kept, hints)}
    ranked = sorted(texts, key=lambda path: (path.rsplit("/", 1)[-1] not in hints, len(texts[path])))
    room, chosen = SHOWN_CHARS, set()
    for path in ranked:
        if len(texts[path]) <= room:
            room -= len(texts[path])
            chosen.add(path)
    return {path: texts[path] for path in sorted(chosen, key=lambda path: (path not in kept, path))}


def _is_code(path: str, kept: frozenset[str], hints: str) -> bool:
    """Documents are shown when the goal or the checks name them."""
    name = path.rsplit("/", 1)[-1]
    return path in kept or name in hints or not name.lower().endswith((".md", ".rst", ".txt"))


def _schema(shown: dict[str, str], kept: frozenset[str], hidden: bool) -> dict[str, Any]:
    """The actions that make sense now: a change can only name files and blocks that exist."""
    lines = {"type": "array", "minItems": 1, "maxItems": LINES_OFFERED, "items": _TEXT}
    editable = [path for path in shown if path not in kept]
    changes = [
        _object({"path": {"const": path}, "block": {"enum": list(found)}, "lines": lines})
        for path in editable
        if (found := blocks(shown[path]))
    ]
    actions = []
    if editable:
        changes.append(_object({"path": {"enum": editable}, "add": lines}))
        listed = {"type": "array", "minItems": 1, "maxItems": 4, "items": {"anyOf": changes}}
        actions.append(_action("change", changes=listed))
    new_path = {"type": "string", "pattern": r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\.[a-z]+$"}
    actions.append(_action("new_file", path=new_path, lines=lines))
    if hidden:
        actions.append(_action("read_file", path=_TEXT))
    actions.append(_action(FINISH, summary={"type": "string", "minLength": 5, "maxLength": 200}))
    return {"anyOf": actions}


def _action(tool: str, **arguments: Any) -> dict[str, Any]:
    thought = {"type": "string", "minLength": 5, "maxLength": 200}
    return _object({"thought": thought, "tool": {"const": tool}, "arguments": _object(arguments)})


def _split(calls: tuple[Call, ...]) -> tuple[Call | None, tuple[Call, ...]]:
    """A call of `finish` that may be believed, and the calls that are to be run before it."""
    ending = next((call for call in calls if call.name == FINISH and call.problem is None), None)
    return ending, tuple(call for call in calls if call is not ending)


def _summary(ending: Call) -> str:
    parsed = parse_arguments(ending.arguments)
    return "" if isinstance(parsed, Problem) else cut(parsed.get("summary", ""), 2_000)


class NativeActions:
    """A growing conversation with the provider's own tool calls; every call gets exactly one result."""

    def __init__(self, coding: Coding, tools: Registry) -> None:
        self._coding = coding
        self._specs = (
            *(ToolSpec(t.name, t.description, dict(t.parameters)) for t in tools.specs()),
            ToolSpec(FINISH, "Say that the task is done.", _object({"summary": {"type": "string", "minLength": 1}})),
        )
        self._history: list[Message] = []
        self._ending: Call | None = None

    async def request(self) -> Request:
        coding = self._coding
        if not self._history:
            files = await coding.files()
            self._history = prompt("coder-tools").fill(
                files="\n".join(files) or "none",
                findings="\n".join(f"- {f.statement} ({f.citations[0].source})" for _, f in coding.findings) or "none",
                checks=coding.now.report or "There are no checks.",
                step_goal=coding.work.assignment.order.goal,
                feedback=feedback_of(coding.work) or "none",
            )
        return Request(
            messages=tuple(self._history), tools=self._specs, max_output_tokens=coding.work.max_output_tokens
        )

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.content or reply.calls:
            self._history.append(Message("assistant", reply.content, reply.calls, extra=reply.extra))
        if reply.calls:
            self._ending, others = _split(reply.calls)
            return Calls(others) if others or self._ending is None else Final(_summary(self._ending))
        return Wrong("Call a tool: edit_file or write_file to change files, run_checks to test, finish when done.")

    async def accept(self, value: Any) -> str | None:
        return await self._coding.objection()

    async def observe(self, call: Call, observation: Observation) -> None:
        self._coding.changed_since_check = True
        self._history.append(Message("tool", observation.text, call_id=call.id))

    def finished(self) -> Final | None:
        return Final(_summary(self._ending)) if self._ending is not None else None

    def object(self, text: str) -> None:
        coding = self._coding
        full = f"{text}\n{coding.now.report}" if coding.now.passed and not coding.acceptable else text
        if self._ending is not None:
            self._history.append(Message("tool", full, call_id=self._ending.id))
            self._ending = None
        else:
            self._history.append(Message("user", full))
