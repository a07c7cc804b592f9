"""A model endpoint that keeps a log: who came when, by its own clock, when it was done, and how many tokens that took.
It serves a request to its end also when the caller has gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kokuban.agents.models import CallContext, Message, Request

CONTEXT = CallContext(role="coder", step="s1")
REQUEST = Request(messages=(Message("user", "hi"),), max_output_tokens=20)


@dataclass
class Entry:
    """One request; `end` is noted before the last of the answer is sent."""

    caller: str
    start: float
    tokens: int
    end: float | None = None


class Endpoint:
    """`busy_seconds` of the n-th request, from 0; `refuse` gives a status and a Retry-After instead of an answer."""

    def __init__(self) -> None:
        self.url = ""
        self.log: list[Entry] = []
        self.busy_seconds: Callable[[int], float] = lambda n: 0.02 + 0.03 * (n % 3)
        self.refuse: Callable[[int], tuple[int, float] | None] = lambda n: None
        self.tokens = 30

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            (length,) = [int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length")]
            body = json.loads(await reader.readexactly(length))
        except asyncio.IncompleteReadError:
            writer.close()
            return
        number, entry = len(self.log), Entry(body["model"], time.monotonic(), self.tokens)
        self.log.append(entry)
        refused = self.refuse(number)
        if refused is None:
            await asyncio.sleep(self.busy_seconds(number))
            usage = {"prompt_tokens": self.tokens - 5, "completion_tokens": 5}
            text = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
            lines = ["HTTP/1.1 200 OK"]
        else:
            entry.tokens, text = 0, {"error": {"message": "later"}}
            lines = [f"HTTP/1.1 {refused[0]} No", f"Retry-After: {refused[1]}"]
        payload = json.dumps(text).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}", "Connection: close", "", ""]
        entry.end = time.monotonic()
        try:
            writer.write("\r\n".join(lines).encode() + payload)
            await writer.drain()
        except ConnectionError:
            pass  # the caller was killed
        writer.close()

    # ------------------------------------------------------------------ what the log says

    def most_at_once(self) -> int:
        """The most requests under way together. One that ended as another began was not together with it."""
        edges = sorted([(e.start, 1) for e in self.log] + [(e.end, -1) for e in self.log if e.end is not None])
        now = most = 0
        for _, step in edges:
            now += step
            most = max(most, now)
        return most

    def most_requests(self, window_seconds: float) -> int:
        """The most that began in any window."""
        starts = [e.start for e in self.log]
        return max(sum(start <= other < start + window_seconds for other in starts) for start in starts)

    def most_tokens(self, window_seconds: float) -> int:
        """The most that were used in any window, whether they are counted where a request began or where it ended."""
        used = [(e.start, e.tokens) for e in self.log], [(e.end, e.tokens) for e in self.log if e.end is not None]
        return max(
            sum(tokens for at, tokens in way if first <= at < first + window_seconds)
            for way in used
            for first, _ in way
        )


@asynccontextmanager
async def recording() -> AsyncIterator[Endpoint]:
    """Run one for the time of a block."""
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0, backlog=256)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield endpoint
    finally:
        server.close()
        await server.wait_closed()
