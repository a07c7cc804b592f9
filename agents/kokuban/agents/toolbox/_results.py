"""What an MCP tool returned, as text."""

from __future__ import annotations

from typing import Any

from kokuban.agents.tools._decorator import as_text


def text_of(result: Any) -> str:
    """Its texts, and a word for each part that is none; what it gave as data alone, as JSON."""
    texts = [part.text for part in result.content if part.type == "text"]
    if not any(texts) and result.structuredContent is not None:
        texts = [as_text(result.structuredContent)]
    others = [_named(part) for part in result.content if part.type != "text"]
    return "\n".join([*texts, *others])


def _named(part: Any) -> str:
    if part.type == "resource" and isinstance(getattr(part.resource, "text", None), str):
        return str(part.resource.text)
    return f"[{part.type} left out]"
