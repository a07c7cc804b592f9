"""What a tool's own words lack: a model knows a tool by nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kokuban.agents.tools import Tool

_RETURNS = re.compile(r"\breturns?\b", re.IGNORECASE)
_NOT_FOR = re.compile(r"\b(?:not|never|only|instead|don't)\b", re.IGNORECASE)


def lacking(tool: Tool) -> tuple[str, ...]:
    """What to add to its description and parameters, one sentence each; `()` when nothing is missing."""
    found: list[str] = []
    if not tool.description.strip():
        found.append("it has no description: say what it does, what it returns, and when not to use it")
    else:
        if not _RETURNS.search(tool.description):
            found.append("its description does not say what it returns ('Returns …')")
        if not _NOT_FOR.search(tool.description):
            found.append("its description does not say when not to use it ('Not for …')")
    properties = tool.parameters.get("properties")
    for name, shape in properties.items() if isinstance(properties, Mapping) else ():
        if not isinstance(shape, Mapping) or not shape.get("description"):
            found.append(f"its parameter {name!r} has no description")
    return tuple(found)
