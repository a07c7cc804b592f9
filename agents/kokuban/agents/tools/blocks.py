"""Changing files block by block: what small models get right, since a block is named by its first line and can be
chosen from a list. A block begins at an unindented line that is the first or follows a blank one, and ends before the
blank lines ahead of the next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._contained import Contained
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.agents.tools.files import put, text_of
from kokuban.blackboard.workspace import File

_NAME = re.compile(r"[(:=]")


def blocks(text: str) -> dict[str, tuple[int, int]]:
    """First line to the range of line numbers (from 0, end excluded) of every block whose first line stands once."""
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _begins(line) and (i == 0 or not lines[i - 1].strip())]
    found = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        while end > start and not lines[end - 1].strip():
            end -= 1
        if lines.count(lines[start]) == 1:
            found[lines[start]] = (start, end)
    return found


async def _change(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    """All changes or none: a later one that is not possible leaves every file as it was."""
    with Contained(context.checkout) as files:
        changed: dict[str, File] = {}
        for change in arguments["changes"]:
            path = change["path"]
            file = changed.get(path) or files.read(path)
            text = text_of(path, file).replace("\r\n", "\n")
            new = _mended(change.get("lines") or change.get("add") or [])
            fresh = _replaced(path, text, change["block"], new) if "block" in change else _added(path, text, new)
            if b"\r\n" in file.content:
                fresh = fresh.replace("\n", "\r\n")
            changed[path] = File(fresh.encode(), file.executable)
        for path, file in changed.items():
            put(context, files, path, file)
    return f"Changed {', '.join(changed)}."


async def _new_file(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    with Contained(context.checkout) as files:
        if files.find(path) is not None:
            raise ToolError(f"{path} exists already; change it instead")
        put(context, files, path, File(("\n".join(_mended(arguments["lines"])) + "\n").encode(), False))
    return f"Made {path}."


def _replaced(path: str, text: str, block: str, new: list[str]) -> str:
    found = blocks(text)
    if block not in found:
        raise ToolError(f"{path} has no block {block!r}, or it was changed already")
    while new and not new[-1].strip():
        new = new[:-1]
    if not new or not _begins(new[0]):
        raise ToolError(
            f'"lines" of {path} must be the whole block, beginning with an unindented line such as {block!r}'
        )
    lines = text.split("\n")
    start, end = found[block]
    if lines[start:end] == new:
        raise ToolError(f'"lines" is what {path} has there already')
    return "\n".join([*lines[:start], *new, *lines[end:]])


def _added(path: str, text: str, new: list[str]) -> str:
    have = {_defines(line) for line in text.split("\n") if _begins(line)}
    again = next((line for line in new if _begins(line) and _defines(line) in have), None)
    if again is not None:
        raise ToolError(f"{again!r} is in {path} already; replace its block to change it")
    if not new or not _begins(new[0]):
        raise ToolError(f"what is added to {path} must begin with an unindented line; replace a block to change it")
    gap = "\n\n" if new[0].startswith(("def ", "class ", "@", "async ")) else ""
    return text.rstrip("\n") + "\n" + gap + "\n".join(new).rstrip("\n") + "\n"


def _begins(line: str) -> bool:
    return bool(line) and not line[0].isspace()


def _defines(line: str) -> str:
    return _NAME.split(line)[0].strip()


def _mended(items: list[str]) -> list[str]:
    """One item is one line. A line break inside an open quote is the two characters of an escape that the model forgot
    to escape; any other splits the item."""
    lines = []
    for item in items:
        piece, *rest = item.split("\n")
        for more in rest:
            if _open_quote(piece):
                piece += "\\n" + more
            else:
                lines.append(piece)
                piece = more
        lines.append(piece)
    return lines


def _open_quote(text: str) -> bool:
    quote, escaped = "", False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif not quote and character in "\"'":
            quote = character
        elif character == quote:
            quote = ""
        elif not quote and character == "#":
            return False
    return bool(quote)


_LINES = {"type": "array", "minItems": 1, "maxItems": 400, "items": {"type": "string"}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


_PATH = {"type": "string", "minLength": 1, "description": "Path in the workspace"}
_BLOCK = {"type": "string", "description": "First line of the function, class or paragraph to replace"}

CHANGE = Tool(
    "change",
    "Change files, all at once: replace a block, named by its first line, or add lines at the end of a file.",
    _object(
        ["changes"],
        changes={
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {
                "anyOf": [
                    _object(["path", "block", "lines"], path=_PATH, block=_BLOCK, lines=_LINES),
                    _object(["path", "add"], path=_PATH, add=_LINES),
                ]
            },
        },
    ),
    _change,
    tier="write",
    effect="keyed",
)
NEW_FILE = Tool(
    "new_file",
    "Make a file that does not exist yet, from its lines.",
    _object(["path", "lines"], path=_PATH, lines=_LINES),
    _new_file,
    tier="write",
    effect="keyed",
)
