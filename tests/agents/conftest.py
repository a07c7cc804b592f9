"""A connection for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kokuban.blackboard.wire import Bus
from support.nats_server import NatsServer


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as connection:
        yield connection
