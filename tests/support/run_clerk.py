"""A worker of a registered role as a process of its own, with tools that call a server which counts:
`run_clerk.py ROLE URL HOME MODEL_URL TOOLS_URL`. It runs until it is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from kokuban.agents import Worker, _acting
from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles.agent import Agent
from kokuban.agents.toolbox import Toolbox
from kokuban.agents.toolbox._file import ToolboxFile
from kokuban.agents.tools import Tool, ToolContext, ToolError
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import parse_contract

ANSWER = {
    "type": "object", "additionalProperties": False, "required": ["text"], "properties": {"text": {"type": "string"}},
}  # fmt: skip
NOTHING = {"type": "object", "additionalProperties": False, "properties": {}}
TOOLS = ("note", "ask", "post", "wire")


def contract(role: str) -> str:
    """The role's contract."""
    return (
        f'role = "{role}"\nsummary = "Does what the test wants."\nwhen = "planned"\nconsumes = ["task"]\n'
        f'produces = ["answer"]\nmodel = true\nshape = "react"\ntools = {json.dumps(TOOLS)}\n'
        "[limits]\nsteps = 40\ntool_calls = 40\ntokens = 400000\nseconds = 60\n"
    )


def tools(url: str) -> list[Tool]:
    """One of each effect class, and one that is said to lead nowhere."""

    def request(what: str, context: ToolContext) -> str:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        connection.request("POST", f"/{what}", body=b"", headers={"Task": context.task, "Key": context.key})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status == 503:
            raise ToolError("busy", transient=True)
        return text

    async def look(context: ToolContext, values: Mapping[str, Any]) -> str | None:
        found = await asyncio.to_thread(request, "wired", context)
        return found or None

    def tool(name: str, **fields: Any) -> Tool:
        return Tool(name, f"Does {name}.", NOTHING, lambda context, values: request(name, context), **fields)

    return [
        tool("note", tier="read", effect="read"),
        tool("ask", tier="read", effect="read"),
        tool("post", tier="write", effect="keyed"),
        tool("wire", tier="write", effect="other", reconcile=look),
    ]


async def main(role: str, url: str, home: str, model_url: str, tools_url: str) -> None:
    _acting.PAUSE_SECONDS = 0.01
    made = parse_contract(contract(role), role, ["answer"])
    meter = Meter(open_model("openai-compatible:m", base_url=model_url, env={}))
    async with await Bus.connect(url) as bus:
        await Worker(
            bus, made, Agent(role, made.summary, None, {"answer": ANSWER}), meter=meter,
            home=Path(home) / f"{role}-{os.getpid()}", toolbox=Toolbox(ToolboxFile(), tools(tools_url)),
        ).run()  # fmt: skip


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(*sys.argv[1:]))
