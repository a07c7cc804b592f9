"""The worker of the bench of the loop as a process: `worker.py URL HOME CONCURRENCY`. Its model answers at once and
tells, on standard output, what passed between its answers; it runs until it is ended."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from kokuban.agents import Worker
from kokuban.agents.models import Call, CallContext, Meter, Reply, Request, Usage
from kokuban.agents.roles.agent import Agent
from kokuban.agents.toolbox import Toolbox
from kokuban.agents.toolbox._file import ToolboxFile
from kokuban.agents.tools import Tool, ToolContext
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import parse_contract

ROLE, KIND = "looker", "answer"
TEXT = {"type": "string", "maxLength": 200}
ANSWER = {"type": "object", "additionalProperties": False, "required": ["text"], "properties": {"text": TEXT}}
WHERE = {"place": {"type": "integer"}}
PLACE = {"type": "object", "additionalProperties": False, "required": ["place"], "properties": WHERE}
CONTRACT = f"""
role = "{ROLE}"
summary = "Looks around and gives an answer."
when = "planned"
consumes = ["task"]
produces = ["{KIND}"]
model = true
shape = "react"
tools = ["look"]
[limits]
concurrency = 200
steps = 2000
tool_calls = 2000
tokens = 100000000
seconds = 3600
"""
SEEN = "what there is to be seen, in a line or two, as a search or a listing gives it: " + "word " * 24


class Instant:
    """A model that looks as often as its step's goal says and then gives its answer, or never answers. It tells what
    time passed from each of its answers to the next question."""

    name, context_tokens = "instant", None

    def __init__(self) -> None:
        self._answered: dict[Any, tuple[float, list[float]]] = {}

    async def call(self, request: Request, context: CallContext, progress: object) -> Reply:
        asked, me = time.perf_counter(), asyncio.current_task()
        before, gaps = self._answered.pop(me, (asked, []))
        if context.turn > 1:
            gaps.append(1_000 * (asked - before))
        else:
            tell({"began": context.step})
        goal = "\n".join(message.content for message in request.messages if message.role == "user")
        wanted = re.search(r"Look (\d+) times|Wait", goal)
        assert wanted is not None
        if wanted[1] is None:
            await asyncio.Event().wait()
        if context.turn > int(wanted[1]):
            tell({"ended": context.step, "turns": gaps})
            call = Call("last", f"give_{KIND}", '{"text": "seen"}')
        else:
            call = Call(f"call-{context.turn}", "look", f'{{"place": {context.turn}}}')
            self._answered[me] = time.perf_counter(), gaps
        return Reply(content="", calls=(call,), usage=Usage(100, 10), model=self.name)

    async def aclose(self) -> None: ...


async def look(context: ToolContext, values: Mapping[str, Any]) -> str:
    return f"{values['place']}: {SEEN}"


def tell(what: Mapping[str, object]) -> None:
    print(json.dumps(what), flush=True)


async def main(url: str, home: str, concurrency: str) -> None:
    contract = parse_contract(CONTRACT, ROLE, [KIND])
    tool = Tool("look", "Look at a place.", PLACE, look, "read", "read")
    async with await Bus.connect(url) as bus:
        worker = Worker(
            bus, contract, Agent(ROLE, contract.summary, None, {KIND: ANSWER}), home=Path(home),
            meter=Meter(Instant()), toolbox=Toolbox(ToolboxFile(), [tool]), concurrency=int(concurrency),
        )  # fmt: skip
        tell({"ready": ROLE})
        await worker.run()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(*sys.argv[1:]))
