"""What the fixtures `nats_server` and `server_factory` give: for annotations in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from anyio.from_thread import BlockingPortal

from kokuban.blackboard.wire.embedded import EmbeddedServer
from support.processes import KILL_SECONDS


class NatsServer:
    """A real server under a test's control. Its methods block (some 10 ms), so sync and async tests use them alike."""

    def __init__(self, server: EmbeddedServer, portal: BlockingPortal) -> None:
        self._server = server
        self._portal = portal
        self.restart()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def store(self) -> Path:
        return self._server.store

    def kill(self) -> None:
        """kill -9, and wait for its end. Nothing when it does not run."""
        self._server.kill()
        self._portal.call(self._within, self._server.wait)

    def restart(self) -> None:
        """Start it again on the same store and port, after `kill` or `stop`."""
        self._portal.call(self._within, self._server.start)

    def stop(self) -> None:
        """An orderly end."""
        self._portal.call(self._within, self._server.stop)

    @staticmethod
    async def _within(act: Callable[[], Awaitable[object]]) -> None:
        await asyncio.wait_for(act(), KILL_SECONDS)


class ServerFactory(Protocol):
    """Starts a server: by default on a new store under the test's `tmp_path`, a free port, and without fsync."""

    def __call__(
        self, *, store: Path | None = None, port: int | None = None, sync: Literal["always", "default"] = "default"
    ) -> NatsServer: ...
