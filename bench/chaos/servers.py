"""The NATS servers under attack: one embedded server, or three in a cluster on loopback; `sync_interval: always`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from contextlib import suppress
from pathlib import Path

from kokuban.blackboard.wire.embedded import EmbeddedServer, die_with_parent, find_server

LOOPBACK = "127.0.0.1"


class Servers:
    """What the driver needs of one or three servers. Numbers count from 0."""

    replicas = 1

    @property
    def ports(self) -> list[int]:
        """Where clients can connect, in an order that changes, so that members spread."""
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def kill(self, n: int) -> None:
        """kill -9."""
        raise NotImplementedError

    async def restart(self, n: int) -> None:
        raise NotImplementedError

    def pid(self, n: int) -> int:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError


class One(Servers):
    """A single embedded server, as `kokuban up` runs it."""

    def __init__(self, folder: Path) -> None:
        self._server = EmbeddedServer(folder)

    @property
    def ports(self) -> list[int]:
        return [int(self._server.url.rpartition(":")[2])]

    async def start(self) -> None:
        await self._server.start()

    async def kill(self, n: int) -> None:
        self._server.kill()
        await self._server.wait()

    async def restart(self, n: int) -> None:
        await self._server.start()

    def pid(self, n: int) -> int:
        return self._server.pid

    async def stop(self) -> None:
        await self._server.stop()


class Cluster(Servers):
    """Three servers. Clients are not told of the others: each member's proxy finds one that lives."""

    replicas = 3

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = find_server(os.environ)
        self._ports = _free_ports(6)
        self._processes: list[asyncio.subprocess.Process | None] = [None] * 3
        self._random = random.Random(0)

    @property
    def ports(self) -> list[int]:
        return self._random.sample(self._ports[:3], 3)

    async def start(self) -> None:
        for n in range(3):
            await self.restart(n)

    async def restart(self, n: int) -> None:
        home = self._folder / f"n{n}"
        home.mkdir(parents=True, exist_ok=True)
        routes = ", ".join(f'"nats://{LOOPBACK}:{port}"' for port in self._ports[3:])
        (home / "server.conf").write_text(
            f'listen: "{LOOPBACK}:{self._ports[n]}"\nserver_name: n{n}\n'
            'jetstream { store_dir: ".", sync_interval: always }\nlog_file: "server.log"\n'
            f'cluster {{ name: chaos, listen: "{LOOPBACK}:{self._ports[3 + n]}", routes: [{routes}],'
            " no_advertise: true }\n"
        )
        self._processes[n] = await asyncio.create_subprocess_exec(
            self._binary.path, "-c", "server.conf", cwd=home, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip

    async def kill(self, n: int) -> None:
        process = self._processes[n]
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def pid(self, n: int) -> int:
        process = self._processes[n]
        assert process is not None
        return process.pid

    async def stop(self) -> None:
        for n in range(3):
            with suppress(ProcessLookupError):
                await self.kill(n)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
