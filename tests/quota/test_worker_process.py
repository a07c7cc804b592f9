"""`kokuban worker` goes through the gate of the endpoint that it is told."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, change_limits, endpoint_use
from kokuban.schemas.quota import Endpoint as Use
from kokuban.schemas.quota import EndpointLimits
from quota.conftest import Gates
from support.nats_server import NatsServer
from support.processes import Process, child
from support.waiting import eventually

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def commands(url: str, *commands: list[str]) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(child("-m", "kokuban.console.main", *command, "--nats", url))
            for command in commands
        ]


async def test_a_worker_waits_for_a_slot_of_its_endpoint(
    nats_server: NatsServer, bus: Bus, gate: Gates, tmp_path: Path
) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(concurrency=1))
    plan = {"steps": [{"id": "fix", "role": "coder", "goal": "Make it so", "needs": []}]}
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"when": {"role": "planner"}, "reply": {"content": plan}}]}))
    own = await gate("the-test")
    slot = await own.enter(tokens=0, deadline=time.monotonic() + 60)
    worker = ["worker", "planner", "--model", f"scripted:{script}", "--endpoint", "e", "--home", str(tmp_path / "home")]
    async with commands(nats_server.url, ["supervisor"], worker), await Client.connect(nats_server.url) as board:
        task = await board.submit("Do it")

        async def waits() -> Use | None:
            use = await endpoint_use(bus, "e")
            return use if use.waiting else None

        use = await eventually(waits, seconds=30)
        assert use is not None
        assert use.waiting[0].worker.startswith("planner-")
        assert [event.kind async for event in board.watch(task, follow=False) if event.kind] == []
        own.leave(slot, tokens=0)

        async def planned() -> bool:
            return "plan" in [event.kind async for event in board.watch(task, follow=False)]

        await eventually(planned, seconds=30)

        async def counted() -> bool:
            found = await endpoint_use(bus, "e")
            return not found.holders and sum(moment.requests for moment in found.window) == 2

        await eventually(counted)
