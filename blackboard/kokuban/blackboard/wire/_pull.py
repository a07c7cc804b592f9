"""A pull consumer kept going: outstanding requests, heartbeats, and knowing when it is dead (case D8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from nats.aio.msg import Msg

from kokuban.blackboard.core.fold import Stored
from kokuban.blackboard.wire._bus import Bus, Forbidden
from kokuban.schemas import subjects

EXPIRES_SECONDS = 10.0
HEARTBEAT_SECONDS = 0.5
DEAD_AFTER_SECONDS = 2.0
_NS = 1_000_000_000


class Delivery(NamedTuple):
    """A stored message as a consumer delivered it. `ack` is the subject to answer on, `pending` how many more the
    consumer has for us now."""

    stored: Stored
    ack: str
    consumer_seq: int
    pending: int = 0


class Pull:
    """Outstanding pull requests on one consumer. `dead` is set when it must be made anew: gone, silent, refused, or
    with `error` set because `on_delivery` raised it or the server forbids the pull. `on_unfilled` is called when a
    request ran out of time, `on_idle` with the last delivery's number while the server has nothing for us."""

    def __init__(
        self,
        bus: Bus,
        consumer: str,
        on_delivery: Callable[[Pull, Delivery], Awaitable[None]],
        on_unfilled: Callable[[Pull], Awaitable[None]],
        on_idle: Callable[[int], None] = lambda last: None,
    ) -> None:
        self.dead = asyncio.Event()
        self.why_dead = ""
        self.error: Exception | None = None
        self.outstanding = 0
        self._bus = bus
        self._ask = bus.api_subject(f"CONSUMER.MSG.NEXT.{subjects.BOARD}.{consumer}")
        self._on_delivery = on_delivery
        self._on_unfilled = on_unfilled
        self._on_idle = on_idle
        self._subscription: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._inbox = ""
        self._heard = 0.0
        self._delivering = False

    async def start(self) -> None:
        self._inbox = self._bus.new_inbox()
        self._subscription = await self._bus.subscribe(self._inbox, self._on_message)
        self._bus.on_reconnect(self._on_reconnect)
        self._bus.on_refusal(self._ask, self._on_refusal)
        self._watch = asyncio.create_task(self._listen_for_silence())

    async def stop(self) -> None:
        self._bus.forget(self._on_reconnect)
        self._bus.forget_refusal(self._ask, self._on_refusal)
        if self._watch is not None:
            self._watch.cancel()
        if self._subscription is not None and not self._bus.closed.is_set():
            await self._subscription.unsubscribe()

    async def request(self, count: int) -> None:
        """Ask for `count` more messages; they arrive as they are stored."""
        if self.outstanding == 0:
            self._heard = asyncio.get_running_loop().time()
        self.outstanding += count
        body = {"batch": count, "expires": int(EXPIRES_SECONDS * _NS), "idle_heartbeat": int(HEARTBEAT_SECONDS * _NS)}
        await self._bus.send(self._ask, msgspec.json.encode(body), self._inbox)

    async def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        if message.reply.startswith("$JS.ACK."):
            self.outstanding -= 1
            if self.dead.is_set():  # nobody takes it: not to wait for the end of its time (a reader's needs no ack)
                await self._bus.send(message.reply, b"-NAK")
                return
            self._delivering = True
            try:
                await self._on_delivery(self, _delivery(message))
            except Exception as error:  # nats-py would drop it: keep it for the owner to raise
                self.error = error
                self.die(f"failed: {error!r}")
            finally:
                self._delivering = False
                self._heard = asyncio.get_running_loop().time()
            return
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == "100":
            self._on_idle(int(headers.get("Nats-Last-Consumer", "0")))
            return
        if status == "408" or (status == "409" and "Nats-Pending-Messages" in headers):
            self.outstanding -= int(headers.get("Nats-Pending-Messages", self.outstanding))
            await self._on_unfilled(self)
            return
        self.die(f"{status} {headers.get('Description', '')}".strip())

    async def _on_reconnect(self) -> None:
        self.die("reconnected")

    def _on_refusal(self, error: Forbidden) -> None:
        self.error = error
        self.die(str(error))

    async def _listen_for_silence(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.dead.is_set():
            await asyncio.sleep(HEARTBEAT_SECONDS)
            # Heartbeats wait behind a delivery that its taker holds up: that is no silence of the server's.
            if self.outstanding > 0 and not self._delivering and loop.time() - self._heard > DEAD_AFTER_SECONDS:
                self.die("silent")

    def die(self, why: str) -> None:
        self.why_dead = self.why_dead or why
        self.dead.set()


def _delivery(message: Msg) -> Delivery:
    """Read `$JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<ns>.<pending>`, or the form with a domain."""
    tokens = message.reply.split(".")
    if len(tokens) > 9:
        tokens = tokens[:2] + tokens[4:]
    stored = Stored(int(tokens[5]), message.subject, int(tokens[7]) / _NS, message.data)
    return Delivery(stored, message.reply, int(tokens[6]), int(tokens[8]))
