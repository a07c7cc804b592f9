"""Tool calls as text, for small models whose server has no calls of its own or loses them.

The tools are told in words, earlier calls and results are shown as text, and calls are read out of the reply: from what
it says, never from what it thought. What looks like a call and is none comes back as a call with a problem.
"""

import json
import re
from typing import Any

from msgspec.structs import replace

from ._arguments import Problem, parse_arguments
from ._model import Around, Progress
from ._slots import CUT_OFF
from ._types import Call, CallContext, Message, Reply, Request, ToolSpec

MAX_CALLS = 32
"""Of one reply; what comes after them is not read."""
_TELL = """You may call these tools, each with a JSON object of arguments:
{tools}
To call one, write exactly this and then stop; the result comes in the next message:
<tool_call>
{{"name": "TOOL", "arguments": {{}}}}
</tool_call>"""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THOUGHT = re.compile(r"\A\s*<think>")
_OPENS = re.compile(r"^[ \t]*<tool_call>", re.MULTILINE)
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?")
_BEGUN = re.compile(r'\[?\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:')
_NAMES = ("arguments", "parameters")


class TextTools(Around):
    """A model that is told of tools in text. Requests without tools reach it as they are."""

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """One attempt, with the calls that the reply's text holds. Raises `ModelError`."""
        if not request.tools:
            return await self._model.call(request, context, progress)
        asked = replace(request, messages=in_text(request), tools=())
        reply = await self._model.call(asked, context, progress)
        if reply.calls:  # the server knows calls after all; those stand
            return reply
        return read_calls(reply, request)


def in_text(request: Request) -> tuple[Message, ...]:
    """The request's conversation without tool turns: user and assistant turns in alternation after the system's."""
    told = _TELL.format(tools="\n".join(_told(tool) for tool in request.tools))
    turns: list[Message] = []
    for message in request.messages:
        if message.role == "assistant":
            calls = "\n".join(_shown(call) for call in message.calls)
            turn = Message("assistant", "\n".join(part for part in (message.content, calls) if part.strip()))
        elif message.role == "tool":
            result = message.content.replace("</tool_response", "<\\/tool_response")
            turn = Message("user", f"<tool_response>\n{result}\n</tool_response>")
        else:
            turn = Message(message.role, message.content)
        if turn.role == "user" and turns and turns[-1].role == "user":
            turns[-1] = Message("user", f"{turns[-1].content}\n{turn.content}")
        else:
            turns.append(turn)
    if turns and turns[0].role == "system":
        return (Message("system", f"{turns[0].content}\n\n{told}"), *turns[1:])
    return (Message("system", told), *turns)


def _told(tool: ToolSpec) -> str:
    shape = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return json.dumps(shape, ensure_ascii=False)


def _shown(call: Call) -> str:
    values = parse_arguments(call.arguments)
    said = {"name": call.name, "arguments": values if isinstance(values, dict) else {}}
    return f"{_OPEN}\n{json.dumps(said, ensure_ascii=False)}\n{_CLOSE}"


def read_calls(reply: Reply, request: Request) -> Reply:
    """The reply with the calls that its text holds taken out of it. Calls are: each `<tool_call>` block that begins a
    line; else a fenced block, or the whole text, that is nothing but a call (or a list of calls) of a tool that was
    offered. A thought that the text begins with holds none, and a reply that was cut holds none that may run."""
    known = {tool.name for tool in request.tools}
    thought, said = _after_thought(reply.content)
    text, found = _blocks(said)
    if not found:
        text, found = _bare(said, known)
    if not found:
        return reply
    first = f"call_{len(request.messages)}_"
    calls: list[Call] = []
    for piece in found[:MAX_CALLS]:
        for name, arguments, problem in _calls_in(piece)[: MAX_CALLS - len(calls)]:
            calls.append(Call(f"{first}{len(calls)}", name, arguments, CUT_OFF if reply.truncated else problem))
    return replace(reply, content=f"{thought}{text}".strip(), calls=tuple(calls))


def _after_thought(text: str) -> tuple[str, str]:
    """The thought that the text begins with, with its tags, and the rest. What is never closed is all thought; so is
    what stands before a closing tag that nothing opened."""
    before, tag, after = text.partition("</think>")
    if _THOUGHT.match(text) or (tag and "<think>" not in before):
        return f"{before}{tag}", after
    return "", text


def _blocks(text: str) -> tuple[str, list[str]]:
    """The text without its `<tool_call>` blocks, and what stands in them. One that is never closed ends where the next
    begins, or the text does."""
    begins = [match.end() for match in _OPENS.finditer(text)]  # in the middle of a sentence it is only spoken of
    if not begins:
        return text, []
    rest = [text[: begins[0]].rstrip(" \t").removesuffix(_OPEN)]
    found: list[str] = []
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        inside, _, after = text[begin:end].removesuffix(_OPEN).partition(_CLOSE)
        found.append(inside)
        rest.append(after)
    return "".join(rest), found


def _bare(text: str, known: set[str]) -> tuple[str, list[str]]:
    """The same for calls without tags."""
    if _is_call(text, known):
        return "", [text]
    rest: list[str] = []
    found: list[str] = []
    inside: list[str] | None = None
    for line in re.findall("[^\n]*\n|[^\n]+", text):
        if inside is None and _FENCE.fullmatch(line.rstrip()):
            inside = [line]
        elif inside is not None and line.rstrip() == "```":
            piece = "".join(inside[1:])
            if _is_call(piece, known):
                found.append(piece)
            else:
                rest += [*inside, line]
            inside = None
        else:
            (rest if inside is None else inside).append(line)
    return "".join([*rest, *(inside or ())]), found


def _is_call(text: str, known: set[str]) -> bool:
    """Whether this is a call, or was meant as one: a JSON value that names a tool that was offered."""
    values = _values(text)
    if isinstance(values, Problem):
        begun = _BEGUN.match(text.lstrip())
        return begun is not None and begun[1] in known
    return bool(values) and all(
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and value["name"] in known
        and value.keys() <= {"name", "id", "type", *_NAMES}
        for value in values
    )


def _values(text: str) -> list[Any] | Problem:
    """The JSON value in the text, as a list of calls."""
    parsed = parse_arguments(f'{{"calls":{text}\n}}')
    if isinstance(parsed, Problem):
        return parsed
    value = parsed.get("calls")
    if parsed.keys() != {"calls"}:
        return Problem("the call is not one JSON value")
    return value if isinstance(value, list) else [value]


def _calls_in(piece: str) -> list[tuple[str, str, str | None]]:
    """Name, arguments and problem of each call in what stands for calls."""
    piece = _unfenced(piece.strip())
    values = _values(piece) if piece else Problem("it is empty")
    if isinstance(values, Problem):
        return [("", piece, f"the call is not valid: {values.reason}. {_FORM}")]
    calls: list[tuple[str, str, str | None]] = []
    for value in values:
        inner = value.get("function") if isinstance(value, dict) and isinstance(value.get("function"), dict) else value
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
            calls.append(("", json.dumps(value, ensure_ascii=False), f"the call names no tool. {_FORM}"))
            continue
        given = [inner[name] for name in _NAMES if name in inner]
        if len(given) > 1:
            calls.append((inner["name"], "", f"the call gives its arguments twice. {_FORM}"))
        else:
            arguments = given[0] if given else {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls.append((inner["name"], text, None))
    return calls


_FORM = 'A call is {"name": "TOOL", "arguments": {…}}.'


def _unfenced(text: str) -> str:
    match = re.fullmatch(r"```[a-z_]*[ \t]*\n(.*?)\n?```", text, re.DOTALL)
    return match[1] if match else text
