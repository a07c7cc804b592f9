"""A loopback proxy that reads what a client sends to NATS: it can keep a record back, or lose the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

_WITH_PAYLOAD = (b"PUB", b"HPUB")


class Sent(NamedTuple):
    """A message that the program published."""

    subject: str
    payload: bytes
    raw: bytes


class Proxy:
    """In front of the server at `url`. `sent` is what passed, oldest first; `keep` says which messages are kept back
    (in `kept`) until `let_go`."""

    def __init__(self, url: str) -> None:
        self.sent: list[Sent] = []
        self.keep: Callable[[Sent], bool] = lambda sent: False
        self.kept: list[tuple[Sent, asyncio.StreamWriter]] = []
        self._hearing = asyncio.Event()
        self._hearing.set()
        self._server_url = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; returns the URL for the program."""
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login = self._server_url.netloc.rpartition("@")[0]
        return f"nats://{login + '@' if login else ''}127.0.0.1:{port}"

    async def stop(self) -> None:
        """Close every connection and stop listening."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def deafen(self) -> None:
        """Keep the server's answers from the program until `cut`."""
        self._hearing.clear()

    def cut(self) -> None:
        """Break every connection, as a network would, with what was under way on it; new ones are taken."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        self._hearing.set()

    async def let_go(self) -> None:
        """Send on what was kept back, over the connections that are still there, and keep nothing more."""
        self.keep = lambda sent: False
        kept, self.kept = self.kept, []
        for sent, writer in kept:
            if not writer.is_closing():
                writer.write(sent.raw)
                self.sent.append(sent)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ours = {writer}
        try:
            back, forth = await asyncio.open_connection(self._server_url.hostname, self._server_url.port)
            ours.add(forth)
            self._writers |= ours
            down = asyncio.create_task(self._answers(back, writer))
            try:
                await self._messages(reader, forth)
            finally:
                down.cancel()
                await asyncio.gather(down, return_exceptions=True)
        except (OSError, EOFError, ValueError):
            return
        finally:
            self._writers -= ours
            for one in ours:
                one.close()
            self._tasks.discard(task)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._hearing.wait()
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def _messages(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readuntil(b"\n"):
            words = line.split()
            if not words or words[0].upper() not in _WITH_PAYLOAD:
                writer.write(line)
                await writer.drain()
                continue
            body = await reader.readexactly(int(words[-1]) + 2)
            head = int(words[-2]) if words[0].upper() == b"HPUB" else 0
            sent = Sent(words[1].decode(), body[head:-2], line + body)
            if self.keep(sent):
                self.kept.append((sent, writer))
                continue
            self.sent.append(sent)
            writer.write(sent.raw)
            await writer.drain()
