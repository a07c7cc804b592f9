"""A TCP proxy between one member and the servers: to cut its connections, and to hold back what it would hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress


class Proxy:
    """Each new connection goes to the first of `ports()` that answers."""

    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self.url = ""
        self._ports = ports
        self._free = asyncio.Event()
        self._free.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Drop every connection, with what was held back."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Keep the server's bytes back; the member's own still arrive."""
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in self._ports():
            with suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                break
        else:
            writer.transport.abort()
            return
        both = {writer, up_writer}
        self._writers |= both
        pumps = [
            asyncio.create_task(self._pump(reader, up_writer, held=False)),
            asyncio.create_task(self._pump(up_reader, writer, held=True)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self._writers -= both
        for one in both:
            one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if held:
                    await self._free.wait()
                writer.write(data)
                await writer.drain()
