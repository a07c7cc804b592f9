"""Replacing whole lines, named by their text: the edit that small models get right, since both ends can be chosen from
a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._contained import Contained
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.agents.tools.files import put, text_of
from kokuban.blackboard.workspace import File


async def _replace_lines(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    path, new = arguments["path"], arguments["new"]
    with Contained(context.checkout) as files:
        file = files.read(path)
        text = text_of(path, file)
        ending = "\r\n" if "\r\n" in text else "\n"
        lines = text.replace("\r\n", "\n").split("\n")
        start, end = _only(lines, arguments["first"], path, "first"), _only(lines, arguments["last"], path, "last")
        if end < start:
            raise ToolError(f"the line last stands before the line first in {path}; nothing was changed")
        fresh = new.replace("\r\n", "\n").rstrip("\n").split("\n") if new else []
        if lines[start : end + 1] == fresh:
            raise ToolError(f"new is what {path} has there already; nothing was changed")
        lines[start : end + 1] = fresh
        put(context, files, path, File(ending.join(lines).encode(), file.executable))
    return f"Changed {path} at line {start + 1}."


def _only(lines: list[str], wanted: str, path: str, field: str) -> int:
    times = lines.count(wanted.rstrip("\r\n"))
    if times != 1:
        found = "is no line" if times == 0 else f"is {times} lines"
        raise ToolError(f"{field} {found} of {path}; copy a whole line that stands there once, with its leading spaces")
    return lines.index(wanted.rstrip("\r\n"))


REPLACE_LINES = Tool(
    "replace_lines",
    "Replace the lines of a file from one line to another, both included and both named by their whole text.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["path", "first", "last", "new"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "Path in the workspace"},
            "first": {"type": "string", "description": "The first line to replace, whole"},
            "last": {"type": "string", "description": "The last line to replace; the same as first for one"},
            "new": {"type": "string", "description": "The lines to put there; empty to delete"},
        },
    },
    _replace_lines,
    tier="write",
    effect="keyed",
)
