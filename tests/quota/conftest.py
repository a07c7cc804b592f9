"""A gate for each worker that a test names, and what is stored about the endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kokuban.blackboard.wire import Bus, Quota, ensure_control
from support.nats_server import NatsServer

Gates = Callable[..., Awaitable[Quota]]


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """A connection to a server that has the stream."""
    async with await Bus.connect(nats_server.url) as connected:
        await ensure_control(connected)
        yield connected


@pytest.fixture
async def gate(nats_server: NatsServer) -> AsyncIterator[Gates]:
    """Opens a gate to the endpoint `e` over a connection of its own: `await gate("worker", **options)`."""
    async with AsyncExitStack() as stack:

        async def open_gate(worker: str, *, url: str = nats_server.url, **options: Any) -> Quota:
            own = await stack.enter_async_context(await Bus.connect(url))
            return await stack.enter_async_context(Quota(own, "e", worker, **options))

        yield open_gate
