"""Connecting: what cannot serve is refused with the way out, and nothing that we send ends the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kokuban.blackboard.wire import Bus, CannotConnect, NoAnswer, Refused, TooLarge, Unavailable, ensure_board
from support.nats_server import NatsServer
from support.tcp_proxy import proxied

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server_that_says(**info: object) -> AsyncIterator[str]:
    """Enough of a server to be connected to, with this INFO line."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = {"server_id": "S", "max_payload": 1_048_576, "headers": True, "proto": 1, **info}
        writer.write(b"INFO " + json.dumps(line).encode() + b"\r\n")
        try:
            while data := await reader.readline():
                if data.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"version": "2.9.10", "jetstream": True}, ["2.9.10", "2.14"]),  # says no level at all
        ({"version": "2.10.29", "jetstream": True, "api_lvl": 0}, ["2.10.29", "2.14"]),
        ({"version": "2.12.1", "jetstream": True, "api_lvl": 3}, ["2.12.1", "2.14"]),
        ({"version": "2.15.1"}, ["2.15.1", "without JetStream"]),
    ],
)
async def test_a_server_that_cannot_serve_is_refused_by_its_version(info: dict[str, object], words: list[str]) -> None:
    async with server_that_says(**info) as url:
        with pytest.raises(CannotConnect) as caught:
            await Bus.connect(url)
    assert all(word in str(caught.value) for word in words)
    assert "kokuban up" in str(caught.value)


@pytest.mark.parametrize("scheme", ["tls", "ws", "wss"])
async def test_no_other_way_to_connect_breaks_either(free_port: Callable[[], int], scheme: str) -> None:
    with pytest.raises(CannotConnect):  # nobody there, or a library that is not installed
        await Bus.connect(f"{scheme}://127.0.0.1:{free_port()}", timeout=0.3)


async def test_nobody_there_is_said_within_the_time(free_port: Callable[[], int]) -> None:
    url = f"nats://user:hunter2@127.0.0.1:{free_port()}"
    with pytest.raises(CannotConnect) as caught:
        await Bus.connect(url, timeout=0.3)
    text = str(caught.value)
    assert "connection refused" in text
    assert "--nats" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "nats://", "nats://127.0.0.1:notaport", "not a url", ""])
async def test_what_is_no_nats_url_is_said(url: str) -> None:
    with pytest.raises(CannotConnect, match="it looks like nats://127"):
        await Bus.connect(url, timeout=0.3)


async def test_a_port_that_speaks_something_else_is_said(nats_server: NatsServer) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        with pytest.raises(CannotConnect):
            await Bus.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=0.5)
    finally:
        server.close()


async def test_body_and_headers_are_measured_together(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for body, headers in [
            (b"x" * 1_048_576, {"Trace": "1"}),  # the server's limit and one header: would end the connection for good
            (b"x" * 1_048_577, {}),
            (b"x" * 10, {"Trace": "y" * 1_048_576}),
            (b"x" * bus.max_bytes, {"T": ""}),
        ]:
            with pytest.raises(TooLarge) as caught:
                await bus.publish("kb.task.t.spec", body, headers)
            assert caught.value.landed is False
        await bus.hint("kl.x", b"x" * 1_048_576)
        assert await bus.last_seq() == 0
        assert not bus.closed.is_set()
        assert (await bus.publish("kb.task.t.spec", b"x" * bus.max_bytes)).seq == 1


async def test_requests_end_as_the_server_is_asked(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        with pytest.raises(Unavailable):
            await bus.request("nobody.listens", b"")
        with pytest.raises(Refused) as refused:
            await bus.api("STREAM.INFO.BOARD")
        assert refused.value.code == 10059
        for error in (Unavailable, Refused, TooLarge, CannotConnect):
            assert error.landed is False
        assert NoAnswer.landed is None


async def test_what_is_in_flight_when_the_connection_goes_is_unknown_at_once(nats_server: NatsServer) -> None:
    async with proxied(nats_server.url) as proxy, await Bus.connect(proxy.url) as bus:
        await ensure_board(bus)
        proxy.hold_answers()
        asked = asyncio.create_task(bus.request("$JS.API.STREAM.INFO.BOARD", b"", timeout=60))
        await asyncio.sleep(0)
        proxy.cut()
        with pytest.raises(NoAnswer):
            await asyncio.wait_for(asked, 5)
        proxy.let_answers_pass()
        assert await bus.last_seq() == 0  # and the same Bus goes on


async def test_close_may_be_called_twice_and_wakes_who_waits(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url)
    asked = asyncio.create_task(bus.request("$JS.API.CONSUMER.MSG.NEXT.NONE.none", b"", timeout=60))
    await bus.close()
    await bus.close()
    with pytest.raises((NoAnswer, Unavailable)):
        await asked
    assert bus.closed.is_set()
    assert not bus.connected
    with pytest.raises(NoAnswer):
        await bus.last_seq()
