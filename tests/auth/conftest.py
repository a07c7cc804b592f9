"""A server with accounts for two tenants, and buses of their users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal

from kokuban.blackboard.wire import Bus, ensure_board, ensure_roles
from kokuban.blackboard.wire._auth import ensure_credentials
from kokuban.blackboard.wire.embedded import EmbeddedServer, ServerBinary
from kokuban.schemas.contracts import builtin_crew
from support.auth_users import Enter
from support.nats_server import NatsServer


@pytest.fixture
def guarded(tmp_path: Path, nats_binary: ServerBinary, _server_portal: BlockingPortal) -> Iterator[NatsServer]:
    """A server that knows the tenants red and blue, each with the approvers ann and bob."""
    store = tmp_path / "guarded"
    ensure_credentials(store / "credentials", builtin_crew(), tenants=["red", "blue"], approvers=["ann", "bob"])
    embedded = EmbeddedServer(store, sync="default", binary=nats_binary, protected=True)
    server = NatsServer(embedded, _server_portal)
    yield server
    server.kill()
    server.stop()


@pytest.fixture
async def enter(guarded: NatsServer) -> AsyncIterator[Enter]:
    """Connects as a user: `await enter("role-coder")`, or of another tenant."""
    buses: list[Bus] = []

    async def connect(user: str, tenant: str = "red") -> Bus:
        secret = guarded.store / "credentials" / tenant / f"{user}.nk"
        buses.append(await Bus.connect(guarded.url, credentials=secret))
        return buses[-1]

    yield connect
    for bus in buses:
        await bus.close()


@pytest.fixture
async def owner(enter: Enter) -> Bus:
    """The supervisor of the tenant red, who has made the board."""
    bus = await enter("supervisor")
    await ensure_board(bus)
    await ensure_roles(bus, builtin_crew())
    return bus
