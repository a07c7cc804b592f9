"""Two ways to let a model act on files: one constrained JSON action a turn (small models), or native tool calls."""

from __future__ import annotations

import json
from typing import Any

from kokuban.agents._answer import parse_object
from kokuban.agents._prompts import prompt
from kokuban.agents.loop import Calls, Final, Wrong
from kokuban.agents.models import Call, Message, Problem, Reply, Request, ToolSpec, parse_arguments
from kokuban.agents.roles._coding import Coding, cut
from kokuban.agents.roles._shared import feedback_of
from kokuban.agents.tools import Observation, Registry, protected
from kokuban.blackboard.workspace import Tree, is_text

SHOWN_CHARS = 16_000
LINES_OFFERED = 150
NOTES_KEPT = 6
FINISH = "finish"
_TEXT = {"type": "string"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


class JsonActions:
    """Every turn shows the state afresh: files, findings, what was done, what the checks say; the reply is one action,
    constrained to files and lines that exist. After each change the runtime runs the checks."""

    def __init__(self, coding: Coding, tools: Registry) -> None:
        self._coding = coding
        self._tools = tools
        self._notes: list[str] = []
        self._read: dict[str, str] = {}
        self._thought = ""
        self._green = False
        self._ending: Call | None = None

    async def request(self) -> Request:
        coding = self._coding
        files = await coding.files()
        kept = protected(coding.start, coding.work.spec.checks)
        shown = _shown(files, kept, coding)
        blocks = [f"File {path}{' (read-only)' if path in kept else ''}:\n{text}" for path, text in shown.items()]
        hidden = [path for path, file in files.items() if path not in shown and file.content]
        if hidden:
            blocks.append(f"Other files (read_file shows one): {', '.join(hidden[:100])}")
            blocks += [f"You read {path}:\n{text}" for path, text in self._read.items() if path in hidden]
        notes = [*([feedback] if (feedback := feedback_of(coding.work)) else []), *self._notes[-NOTES_KEPT:]]
        messages = prompt("coder").fill(
            files="\n\n".join(blocks) or "There are no files yet.",
            findings="\n".join(f"- {f.statement} ({f.citations[0].source})" for _, f in coding.findings) or "none",
            done="\n".join(["", *notes]) if notes else "nothing",
            checks=coding.report or "There are no checks.",
            step_goal=coding.work.assignment.order.goal,
        )
        return Request(
            messages=tuple(messages), max_output_tokens=coding.work.max_output_tokens, schema_name="action",
            schema=_schema(shown, kept, files, bool(hidden)),
        )  # fmt: skip

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.calls:
            self._ending, others = _split(reply.calls)
            return Calls(others) if others or self._ending is None else Final(_summary(self._ending))
        if reply.truncated:
            return Wrong("An answer was cut off because it was too long. Make a smaller edit.")
        value = parse_object(reply.content)
        if isinstance(value, Problem):
            return Wrong(f"An answer was not one JSON action: {value.reason}.")
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
        if tool is None or tool.tier == "read" or not observation.ok:
            if observation.ok and call.name == "read_file":
                arguments = parse_arguments(call.arguments)
                path = "?" if isinstance(arguments, Problem) else str(arguments.get("path", "?"))
                self._read[path] = cut(observation.text, 6_000)
            self._notes.append(f"- {cut(observation.text, 600)}")
            return
        before, coding.changed_since_check = coding.report, True
        await coding.check()
        note = f"- {observation.text} {self._thought}".rstrip()
        if coding.work.spec.checks and coding.report == before:
            note += " (the checks say the same as before)"
        elif not coding.whole and coding.acceptable:
            note += " (what still fails may belong to other steps: finish when your task is done)"
        self._notes.append(note)
        self._green = coding.whole and coding.was_failing and all(coding.passed.values())

    def finished(self) -> Final | None:
        if self._ending is not None:
            return Final(_summary(self._ending))
        return Final(self._thought) if self._green else None

    def object(self, text: str) -> None:
        self._green, self._ending = False, None
        self._notes.append(f"- {text}")


def _shown(files: Tree, kept: frozenset[str], coding: Coding) -> dict[str, str]:
    """The files whose text fits: tests first, then those that the goal or the checks name, then the rest."""
    hints = f"{coding.work.assignment.order.goal}\n{coding.work.spec.goal}\n{coding.report}"
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


def _schema(shown: dict[str, str], kept: frozenset[str], files: Tree, hidden: bool) -> dict[str, Any]:
    """The actions that make sense now: an edit can only name files and lines that exist."""
    actions = []
    for path in shown:
        if path in kept:
            continue
        lines = files[path].content.decode().split("\n")
        once = [line for line in lines if line.strip() and lines.count(line) == 1]
        if once and len(once) <= LINES_OFFERED:
            line = {"enum": once}
            actions.append(_action("replace_lines", path={"const": path}, first=line, last=line, new=_TEXT))
        elif once:
            actions.append(_action("edit_file", path={"const": path}, old=_TEXT, new=_TEXT))
    new_path = {"type": "string", "pattern": r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\.[a-z]+$"}
    actions.append(_action("write_file", path=new_path, content=_TEXT))
    if hidden:
        actions.append(_action("read_file", path=_TEXT))
    actions.append(_action(FINISH, summary={"type": "string", "minLength": 5, "maxLength": 200}))
    return {"anyOf": actions}


def _action(tool: str, **arguments: Any) -> dict[str, Any]:
    thought = {"type": "string", "minLength": 5, "maxLength": 300}
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
                checks=coding.report or "There are no checks.",
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
        full = f"{text}\n{coding.report}" if coding.passed and not coding.acceptable else text
        if self._ending is not None:
            self._history.append(Message("tool", full, call_id=self._ending.id))
            self._ending = None
        else:
            self._history.append(Message("user", full))
