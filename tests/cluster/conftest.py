"""The same contract on one server and on three."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cluster.nodes import Nodes
from kokuban.blackboard.wire.embedded import ServerBinary


@pytest.fixture(scope="session")
def _one_and_three(tmp_path_factory: pytest.TempPathFactory, nats_binary: ServerBinary) -> Iterator[dict[int, Nodes]]:
    nodes: dict[int, Nodes] = {}
    try:
        for count in (1, 3):
            nodes[count] = Nodes(count, tmp_path_factory.mktemp(f"nodes-{count}"), nats_binary)
        yield nodes
    finally:
        for one in nodes.values():
            one.kill_all()


@pytest.fixture(params=[1, 3], ids=["one server", "three servers"])
async def nodes(request: pytest.FixtureRequest, _one_and_three: dict[int, Nodes]) -> AsyncIterator[Nodes]:
    """All of them run and hold nothing."""
    found = _one_and_three[request.param]
    found.start_all()
    await found.served()
    await found.wipe()
    yield found
    found.start_all()
