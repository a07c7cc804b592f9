"""What the leader cannot write, because the server takes no record of that size, ends the task and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from core.world import World
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus
from kokuban.supervisor import End, Supervisor, decide
from support.nats_server import NatsServer
from support.waiting import cancelled

pytestmark = pytest.mark.anyio


def test_what_can_never_be_written_ends_the_task_before_anything_is_ordered() -> None:
    world = World()
    world.submit("t-1")
    decided = decide(world.board, world.task("t-1"), world.crew, world.stream.now, impossible="it is too large")
    (command,) = decided.commands
    assert isinstance(command, End)
    assert (command.body.state, command.body.reason, decided.offers) == ("failed", "it is too large", [])


class SmallServer(Bus):
    """A connection to a server that takes 8 KB a record."""

    @property
    def max_bytes(self) -> int:
        return 8_192


async def test_an_order_that_is_too_large_ends_its_task_with_the_reason(nats_server: NatsServer) -> None:
    async with await Client.connect(nats_server.url) as board, await SmallServer.connect(nats_server.url) as bus:
        leading = asyncio.create_task(Supervisor(bus).run())
        large = await board.submit("x" * 9_000)
        outcome = await board.result(large, timeout=20)
        assert outcome.state == "failed"
        assert "too large" in outcome.reason
        small = await board.submit("y")
        async for event in board.watch(small):
            if event.event == "ordered":
                break
        await cancelled(leading)
