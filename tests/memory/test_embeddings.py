"""Recall by meaning through an endpoint, and by words when that does not answer as it should."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kokuban.blackboard.memory import ANYBODY, EVERYTHING, Access, Embeddings, Memories, NoEmbeddings, Shelf, _memories
from kokuban.blackboard.memory._recall import by_meaning
from kokuban.blackboard.wire import Bus, ensure_board
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio
MEANINGS = {"harbour": (1.0, 0.1), "ship": (0.9, 0.2), "tabs": (0.1, 1.0), "indent": (0.0, 0.9)}
KEY = "sk-canary-embeddings"


def vector(text: str) -> tuple[float, ...]:
    return next((v for word, v in MEANINGS.items() if word in text.lower()), (-1.0, -1.0))


def meant(body: dict[str, Any]) -> bytes:
    rows = [{"index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])]
    return json.dumps({"data": rows[::-1], "model": "m"}).encode()  # in any order: the index says which is which


class Endpoint:
    """Answers with what `answer` makes of a request's body. `asked` are the bodies, `headers` what came with them."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.answer: Callable[[dict[str, Any]], bytes] = meant
        self.status = 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.headers.append(head)
        self.asked.append(body)
        data = self.answer(body)
        writer.write(
            f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
        )
        await writer.drain()
        writer.close()


@asynccontextmanager
async def served() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#m"
    async with server:
        yield endpoint


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with served() as found:
        yield found


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as found:
        await ensure_board(found)
        yield found


def of(bus: Bus, endpoint: Endpoint | None, shelf: Shelf | None = None) -> Memories:
    access = Access(kinds=EVERYTHING, principals=ANYBODY, unapproved=True)
    embeddings = Embeddings(endpoint.url, key=KEY) if endpoint else None
    return Memories(bus, tenant="acme", access=access, who="person-ann", shelf=shelf, embeddings=embeddings)


async def remembered(bus: Bus, key: str, text: str) -> str:
    name, _ = await of(bus, None).propose(kind="fact", key=key, text=text)
    await of(bus, None).judge(name, "approved")
    return name


async def test_by_meaning_where_no_word_is_shared(bus: Bus, endpoint: Endpoint) -> None:
    await remembered(bus, "where", "All goes through the harbour.")
    await remembered(bus, "style", "Use tabs.")
    _pending, _ = await of(bus, None).propose(kind="fact", key="x", text="the secret harbour")
    shelf = Shelf("acme")
    assert await of(bus, None).recall("ship") == []
    assert [m.proposal.key for m in await of(bus, endpoint, shelf).recall("ship it")] == ["where", "style"]
    assert endpoint.asked[0]["model"] == "m"
    assert f"Bearer {KEY}" in endpoint.headers[0]
    assert "secret harbour" not in str(endpoint.asked), "what is not approved is told to nobody"
    assert [m.proposal.key for m in await of(bus, endpoint, shelf).recall("indent")] == ["style", "where"]
    assert endpoint.asked[1]["input"] == ["indent"], "each text is sent once"


async def test_vectors_are_small_few_and_compared_beside_the_loop(
    bus: Bus, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_memories, "MOST_VECTORS", 2)
    threads: list[int] = []

    def compared(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return by_meaning(*given)

    monkeypatch.setattr(_memories, "by_meaning", compared)
    shelf = Shelf("acme")
    for name in ("one", "two", "three"):
        await remembered(bus, name, f"The harbour of {name}.")
        await of(bus, endpoint, shelf).recall("ship")
    assert {m.proposal.key for m in await of(bus, endpoint, shelf).recall("ship")} == {"two", "three"}
    assert [m.proposal.key for m in await of(bus, endpoint, shelf).recall("one")][:1] == ["one"]  # by its key still
    assert len(shelf.vectors) == 2
    assert {vector.itemsize for vector in shelf.vectors.values()} == {4}
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("how", ["by_words", "by_meaning"])
async def test_the_loop_goes_on_while_memories_are_compared(
    bus: Bus, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    loop, compares = asyncio.get_running_loop(), getattr(_memories, how)
    begun, seen = asyncio.Event(), threading.Event()

    def compared(*given: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert seen.wait(30), "the loop stands still"
        return compares(*given)

    monkeypatch.setattr(_memories, how, compared)
    await remembered(bus, "where", "All goes through the harbour.")
    recalls = asyncio.create_task(of(bus, endpoint if how == "by_meaning" else None).recall("harbour"))
    await begun.wait()
    seen.set()
    assert [m.proposal.key for m in await recalls] == ["where"]


async def test_vectors_that_another_recall_drops_meanwhile_are_compared_all_the_same(
    bus: Bus, endpoint: Endpoint
) -> None:
    await remembered(bus, "where", "All goes through the harbour.")
    shelf = Shelf("acme")
    assert len(await of(bus, endpoint, shelf).recall("ship")) == 1

    def drops(body: Any) -> bytes:
        shelf.vectors.clear()
        return b'{"data": [{"index": 0, "embedding": [1, 1]}]}'

    endpoint.answer = drops
    assert [m.proposal.key for m in await of(bus, endpoint, shelf).recall("ship")] == ["where"]


async def test_forgetting_reaches_the_vectors(bus: Bus, endpoint: Endpoint) -> None:
    name, shelf = await remembered(bus, "where", "All goes through the harbour."), Shelf("acme")
    assert len(await of(bus, endpoint, shelf).recall("ship")) == len(shelf.vectors) == 1
    await of(bus, endpoint).forget(name=name)
    assert await of(bus, endpoint, shelf).recall("ship") == []
    assert shelf.vectors == {}


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, b"{}"), (302, b""), (200, b"nonsense"), (200, b'{"data": []}'), (200, b'{"data": [{"index": 0}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1, "embedding": [1]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1e39]}, {"index": 1, "embedding": [1]}]}'),
        (200, b'{"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": []}]}'),
        (200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
    ],
)  # fmt: skip
async def test_an_endpoint_that_gives_no_vectors_is_done_without(
    bus: Bus, endpoint: Endpoint, status: int, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.status, endpoint.answer = status, lambda body: answer
    await remembered(bus, "where", "All goes through the harbour.")
    assert [m.proposal.key for m in await of(bus, endpoint).recall("the harbour")] == ["where"]
    assert len(endpoint.asked) == 1, "nothing is tried twice"
    with pytest.raises(NoEmbeddings) as caught:
        await Embeddings(endpoint.url, key=KEY).of(["a", "b"])
    assert KEY not in str(caught.value) + repr(caught.value.__cause__) + caplog.text


async def test_vectors_that_change_their_length_are_none(bus: Bus, endpoint: Endpoint) -> None:
    await remembered(bus, "where", "All goes through the harbour.")
    shelf = Shelf("acme")
    assert len(await of(bus, endpoint, shelf).recall("ship")) == 1
    endpoint.answer = lambda body: b'{"data": [{"index": 0, "embedding": [1, 2, 3]}]}'
    assert [m.proposal.key for m in await of(bus, endpoint, shelf).recall("harbour")] == ["where"]


async def test_no_endpoint_there(bus: Bus) -> None:
    async with served() as gone:
        pass
    await remembered(bus, "where", "All goes through the harbour.")
    assert [m.proposal.key for m in await of(bus, gone).recall("harbour")] == ["where"]


@pytest.mark.parametrize(
    "url", ["", "ftp://x/v1", "127.0.0.1:8080", "http://", "http://me:secret@x/v1", "http://x:0/v1", "http://x/v1?k=1"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="give an address") as caught:
        Embeddings(url)
    assert "secret" not in str(caught.value)
