"""An MCP server for the tests: `python mcp_server.py stdio` or `python mcp_server.py streamable-http PORT`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import mcp.types as types
from mcp import McpError
from mcp.server.fastmcp import FastMCP

server = FastMCP("tests", host="127.0.0.1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 1, log_level="CRITICAL")
low: Any = server._mcp_server
ANYTHING = {"type": "object"}
NAMES = ("add", "env", "slow", "die", "pid", "data", "refuse", "bad", "flood", "picture", "block", "typed")
TOOLS = [types.Tool(name=name, description=f"{name.title()}. Returns text.", inputSchema=ANYTHING) for name in NAMES]
TOOLS[-1].outputSchema = {"type": "object", "required": ["n"], "$ref": "http://127.0.0.1:9/x.json"}
TOOLS[0].annotations = types.ToolAnnotations(readOnlyHint=True)


async def pages(request: types.ListToolsRequest) -> types.ServerResult:
    """One tool a page."""
    at = int(request.params.cursor or 0) if request.params else 0
    following = str(at + 1) if at + 1 < len(TOOLS) else None
    return types.ServerResult(types.ListToolsResult(tools=[TOOLS[at]], nextCursor=following))


async def call(request: types.CallToolRequest) -> types.ServerResult:
    name, values = request.params.name, request.params.arguments or {}
    data: dict[str, Any] | None = None
    content: list[types.ContentBlock] = []
    if name == "add":
        content = text(str(values["a"] + values["b"]))
    elif name == "env":
        content = text(",".join(sorted(os.environ)))
    elif name == "slow":
        await asyncio.sleep(values["seconds"])
        content = text("slept")
    elif name == "block":
        time.sleep(values["seconds"])  # noqa: ASYNC251  # it answers nobody meanwhile, as many servers do
        content = text("worked")
    elif name == "die":
        os._exit(3)
    elif name == "pid":
        content = text(str(os.getpid()))
    elif name == "data":
        data = {"total": 3, "of": ["a"]}
    elif name == "refuse":
        raise McpError(types.ErrorData(code=-32602, message="no such account"))
    elif name == "bad":
        return types.ServerResult(types.CallToolResult(content=text("it is closed"), isError=True))
    elif name == "flood":
        content = text("x" * 3_000_000)
    elif name == "typed":
        content, data = text("it is 1"), {"m": 1}
    else:
        content = [types.ImageContent(type="image", data="AAAA", mimeType="image/png")]
    return types.ServerResult(types.CallToolResult(content=content, structuredContent=data))


def text(said: str) -> list[types.ContentBlock]:
    return [types.TextContent(type="text", text=said)]


low.request_handlers[types.ListToolsRequest] = pages
low.request_handlers[types.CallToolRequest] = call
if __name__ == "__main__":
    server.run(transport=sys.argv[1])  # type: ignore[arg-type]
