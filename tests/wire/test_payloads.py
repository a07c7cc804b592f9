"""Content outside the stream: what comes back is what its name says, or an error."""

from __future__ import annotations

import asyncio

import nats
import pytest

from kokuban.blackboard.wire import Bus, PayloadMissing, Payloads
from kokuban.schemas import digest, subjects
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio

STREAM = f"OBJ_{subjects.PAYLOADS}"


@pytest.mark.parametrize("size", [0, 1, 131_072, 131_073, 3_000_000])
async def test_round_trip(nats_server: NatsServer, size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(min(size, 1_000))) * (size // 1_000) + b"z" * (size % 1_000)
    async with await Bus.connect(nats_server.url) as bus, await Bus.connect(nats_server.url) as other:
        name = await Payloads(bus).put(data)
        assert name == digest(data)
        assert await Payloads(other).get(name) == data
        await Payloads(other).put(data)  # again is harmless
        assert await Payloads(bus).get(name) == data


async def test_many_at_once_and_the_same_twice(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        payloads = Payloads(bus)
        contents = [bytes([i % 5]) * 200_000 for i in range(10)]
        names = await asyncio.gather(*(payloads.put(content) for content in contents))
        assert [await payloads.get(name) for name in names] == contents


async def test_other_clients_can_read_the_store(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        name = await Payloads(bus).put(b"seen by all" * 30_000)
    connection = await nats.connect(nats_server.url)
    try:
        store = await connection.jetstream().object_store(subjects.PAYLOADS)
        assert (await store.get(name)).data == b"seen by all" * 30_000
    finally:
        await connection.close()


async def chunks(bus: Bus) -> str:
    """The subject that the pieces of the one stored content stand on."""
    info = await bus.api(f"STREAM.INFO.{STREAM}", {"subjects_filter": ">"})
    (subject,) = [s for s in info["state"]["subjects"] if ".C." in s]
    return str(subject)


async def test_what_is_not_there_is_said(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        with pytest.raises(PayloadMissing, match="not stored"):
            await Payloads(bus).get(digest(b"nobody put this"))


async def test_content_that_was_tampered_with_is_not_given_out(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        payloads = Payloads(bus)
        name = await payloads.put(b"a" * 200_000)
        await bus.publish(await chunks(bus), b"b")  # one more piece, by somebody else
        with pytest.raises(PayloadMissing, match="does not match"):
            await payloads.get(name)


async def test_content_whose_pieces_are_gone_is_missing_and_keeps_nobody_waiting(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        payloads = Payloads(bus)
        name = await payloads.put(b"a" * 200_000)
        await bus.api(f"STREAM.PURGE.{STREAM}", {"filter": await chunks(bus)})
        with pytest.raises(PayloadMissing):
            await asyncio.wait_for(payloads.get(name), 10)


async def test_it_survives_a_restart_of_the_server(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        payloads = Payloads(bus)
        name = await payloads.put(b"kept" * 50_000)
        nats_server.kill()
        nats_server.restart()
        assert await payloads.get(name) == b"kept" * 50_000
