"""A loopback TCP proxy between a client and a server, to lose, hold or cut what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit


class Proxy:
    """`hold_answers` keeps the server's bytes back while the client's still arrive; `cut` drops every connection, with
    what was held. New connections pass (with `refuse`, are dropped)."""

    def __init__(self, target_port: int) -> None:
        self.url = ""
        self.refuse = False
        self._target_port = target_port
        self._answers = asyncio.Event()
        self._answers.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: set[asyncio.Task[Any]] = set()

    def hold_answers(self) -> None:
        self._answers.clear()

    def let_answers_pass(self) -> None:
        self._answers.set()

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def ended(self) -> None:
        """Wait until every connection has been let go."""
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, up_writer}
        both = [
            asyncio.create_task(self._pump(reader, up_writer, held=False)),
            asyncio.create_task(self._pump(up_reader, writer, held=True)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        self._tasks.difference_update(both)
        for one in (writer, up_writer):
            self._writers.discard(one)
            one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if held:
                    await self._answers.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the server at `url`."""
    port = urlsplit(url).port
    assert port is not None
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.let_answers_pass()
        proxy.cut()
        await proxy.ended()
        await server.wait_closed()
