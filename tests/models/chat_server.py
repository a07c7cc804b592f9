"""A chat-completions server on loopback that sends exactly the bytes a test gives it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from kokuban.agents.models import CallContext, Message, Request
from kokuban.agents.models._openai import ChatCompletionsModel

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]

CONTEXT = CallContext(role="coder", step="s1")
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def request(text: str = "hi", **fields: Any) -> Request:
    """A small request."""
    return Request(**{"messages": (Message("user", text),), "max_output_tokens": 100, **fields})


def data(payload: Any) -> bytes:
    """One event."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def delta(content: Any = None, *, calls: Any = None, finish: Any = None, **fields: Any) -> bytes:
    """One chunk of a streamed completion."""
    piece = {key: value for key, value in (("content", content), ("tool_calls", calls)) if value is not None}
    return data({"model": "m-1", "choices": [{"index": 0, "delta": {**piece, **fields}, "finish_reason": finish}]})


def usage(input_tokens: int, output_tokens: int, **fields: Any) -> bytes:
    """The chunk that closes a stream with its usage."""
    counts = {"prompt_tokens": input_tokens, "completion_tokens": output_tokens, **fields}
    return data({"choices": [], "usage": counts})


DONE = data("[DONE]")


def stream(*events: bytes) -> bytes:
    """A 200 answer that streams these events and closes."""
    return SSE_HEAD + b"".join(events)


def answer(status: int, payload: Any, *headers: str) -> bytes:
    """A whole answer with a JSON (or literal bytes) body."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def in_pieces(pieces: Iterable[bytes]) -> Answer:
    """An answer whose bytes are written one piece at a time."""

    async def write(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return write


class ChatServer:
    """Gives its answers in order, the last one for ever; keeps what it was sent."""

    def __init__(self, answers: tuple[Answer, ...], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self._answers = list(answers)

    def model(self, **options: Any) -> ChatCompletionsModel:
        """A provider that talks to this server."""
        return ChatCompletionsModel("test:m", model="m", base_url=self.url, direct=True, **options)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            (length,) = [int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-l")]
            self.heads.append(head)
            self.bodies.append(json.loads(await reader.readexactly(length)))
            reply = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(reply, bytes):
                writer.write(reply)
                await writer.drain()
            else:
                await reply(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, which some tests want
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[ChatServer]:
    """Run a server for the time of a block."""
    chat = ChatServer(answers, 0)
    server = await asyncio.start_server(chat.handle, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield chat
    finally:
        server.close()
        await server.wait_closed()
