"""Reading on in a result that was too long to be shown at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool

PAGE_BYTES = 8_192


async def _read_output(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    digest, offset = arguments["digest"], arguments.get("offset", 0)
    data = await context.kept(digest) if context.kept is not None else None
    if data is None:
        raise ToolError("this step kept no result of that digest; use one that a result of yours named")
    if offset >= len(data):
        raise ToolError(f"offset {offset} is behind the end; the result has {len(data)} bytes")
    page = data[offset : offset + PAGE_BYTES].decode("utf-8", "replace")
    end = min(len(data), offset + PAGE_BYTES)
    more = f"; go on with offset {end}" if end < len(data) else "; this is the end"
    return f"{page}\n[bytes {offset} to {end} of {len(data)}{more}]"


READ_OUTPUT = Tool(
    "read_output",
    "Read on in a tool result that was too long. Returns 8,192 bytes of it as text, from a byte offset. "
    "Only for digests that a result in this step named; not for files.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["digest"],
        "properties": {
            "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$", "description": "As the result named it."},
            "offset": {"type": "integer", "minimum": 0, "description": "In bytes from the start; 0 by default."},
        },
    },
    _read_output,
    tier="read",
    effect="read",
    trust="system",
)
