"""Fixtures for all tests: a real NATS server per test, in milliseconds, ended by its process id at teardown."""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kokuban.blackboard.wire.embedded import EmbeddedServer, ServerBinary, find_server
from support import limits
from support.nats_server import NatsServer, ServerFactory


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    pyfuncitem.obj = limits.bounded(pyfuncitem)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    timer = threading.Timer(settings.timeout, limits.end_by_name, (item, settings))
    timer.daemon = True
    timer.start()

    def cancel() -> None:
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    return True


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # which waits for the others, and is ended by its controller
        faulthandler.dump_traceback_later(limits.EXIT_SECONDS, exit=True)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def nats_binary() -> ServerBinary:
    """The server program; looked for and checked once."""
    return find_server(os.environ)


@pytest.fixture(scope="session")
def _server_portal() -> Iterator[BlockingPortal]:
    # Servers live on an event loop of their own: a test's loop may come and go, block, or not exist.
    with start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture
def server_factory(
    tmp_path: Path, nats_binary: ServerBinary, _server_portal: BlockingPortal
) -> Iterator[ServerFactory]:
    """Servers to start, kill -9 and restart; see `NatsServer`."""
    servers: list[NatsServer] = []

    def start(
        *, store: Path | None = None, port: int | None = None, sync: Literal["always", "default"] = "default"
    ) -> NatsServer:
        folder = store or tmp_path / f"nats-{len(servers)}"
        server = NatsServer(EmbeddedServer(folder, port=port, sync=sync, binary=nats_binary), _server_portal)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()
        server.stop()


@pytest.fixture
def nats_server(server_factory: ServerFactory) -> NatsServer:
    """A server of the test's own."""
    return server_factory()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Finds TCP ports on 127.0.0.1 that nobody listens on. Another program can take one before the test does."""

    def find() -> int:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port: int = taken.getsockname()[1]
        return port

    return find
