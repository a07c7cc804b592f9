"""The recording endpoint: the other side of the roles' effects, which writes down everything that reaches it.

`POST /keyed` honours the header `Idempotency-Key`: what was applied under a key is answered again, not applied again.
`POST /other` applies whatever arrives. It is slow at times, drops a request before it is applied, or applies it and
drops the answer: by the seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

DROP_BEFORE, DROP_AFTER = 0.04, 0.04
SLOW_SECONDS = 0.4


class Endpoint:
    """A loopback HTTP server; `log` is a file with one JSON object a request."""

    def __init__(self, log: Path, seed: int) -> None:
        self.url = ""
        self._log = log.open("a", encoding="utf-8")
        self._random = random.Random(seed)
        self._applied: dict[str, int] = {}
        self._count = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self._log.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                path = line.split()[1].decode()
                headers = {}
                while (line := await reader.readline()).strip():
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                await reader.readexactly(int(headers.get("content-length", 0)))
                answer = await self._answer(path, headers["idempotency-key"])
                if answer is None:
                    break
                body = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        writer.transport.abort()

    async def _answer(self, path: str, key: str) -> dict[str, Any] | None:
        luck = self._random.random()
        await asyncio.sleep(SLOW_SECONDS * self._random.random() ** 3)
        honours = path == "/keyed"
        applied = luck >= DROP_BEFORE and not (honours and key in self._applied)
        if applied:
            self._count += 1
            self._applied.setdefault(key, self._count)
        line = {"key": key, "time": time.time(), "applied": applied, "honours": honours, "dropped": luck < DROP_BEFORE}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()
        if luck < DROP_BEFORE + DROP_AFTER:
            return None
        return {"number": self._applied[key]}
