"""One ordered, gapless reader of the board per process (DESIGN 4.1), fanned out to whoever asks."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable

import structlog

from kokuban.blackboard.core.fold import Stored
from kokuban.blackboard.wire._bus import Bus, BusError, Forbidden
from kokuban.blackboard.wire._pull import Delivery, Pull
from kokuban.schemas import subjects

BATCH = 512
log = structlog.get_logger("kokuban.reader")


class Reader:
    """Reads every record after `after` in order, each once, and never goes quiet for good.

    It reads with its own ack-none pull consumer, checks that the consumer's sequence has no hole, and makes a new one
    from the last sequence seen when anything is off: a restart, a deleted consumer, silence, a gap.
    """

    def __init__(
        self, bus: Bus, on_record: Callable[[Stored], Awaitable[None]], *, after: int = 0, subject: str | None = None
    ) -> None:
        self.position = after
        self.caught_up = asyncio.Event()
        self._bus = bus
        self._on_record = on_record
        self._subject = subject
        self._expected = 1
        self._behind = 0

    async def run(self) -> None:
        """Read until cancelled. Sets `caught_up` once it has passed what was stored when it started. Raises what
        `on_record` raises (the position then stands before that record), `BusError` when the connection is closed."""
        failures = 0
        while True:
            try:
                await self._read_until_dead()
                failures = 0
            except BusError as error:
                if self._bus.closed.is_set() or isinstance(error, Forbidden):
                    raise
                failures += 1
                log.debug("reader starts over", error=str(error), position=self.position)
            await asyncio.sleep(min(2.0, 0.05 * 2**failures) * (0.5 + random.random()))

    async def _read_until_dead(self) -> None:
        name = f"reader-{secrets.token_hex(8)}"
        config = {
            "ack_policy": "none", "deliver_policy": "by_start_sequence", "opt_start_seq": self.position + 1,
            "replay_policy": "instant", "inactive_threshold": 30_000_000_000, "mem_storage": True, "num_replicas": 1,
        }  # fmt: skip
        if self._subject:
            config["filter_subject"] = self._subject
        call = f"CONSUMER.CREATE.{subjects.BOARD}.{name}" + (f".{self._subject}" if self._subject else "")
        created = await self._bus.api(call, {"stream_name": subjects.BOARD, "config": config, "action": "create"})
        pull = Pull(self._bus, name, self._on_delivery, _ask, self._on_idle)
        self._expected, self._behind = 1, int(created.get("num_pending", 0))
        if self._behind == 0:
            self.caught_up.set()
        try:
            await pull.start()
            await _ask(pull)
            await pull.dead.wait()
            if pull.error is not None:
                raise pull.error
            log.debug("reader's consumer is dead", why=pull.why_dead, position=self.position)
        finally:
            await pull.stop()
            await self._drop(name)

    async def _drop(self, name: str) -> None:
        try:
            await self._bus.api(f"CONSUMER.DELETE.{subjects.BOARD}.{name}", timeout=0.5)
        except BusError:
            log.debug("consumer is left to expire", consumer=name)

    async def _on_delivery(self, pull: Pull, delivery: Delivery) -> None:
        if delivery.consumer_seq != self._expected:
            pull.die(f"gap: delivery {delivery.consumer_seq}, expected {self._expected}")
            return
        self._expected += 1
        if delivery.stored.seq > self.position:
            await self._on_record(delivery.stored)
            self.position = delivery.stored.seq
        self._behind -= 1
        if self._behind <= 0 or delivery.pending == 0:  # what expired or was deleted meanwhile is never delivered
            self.caught_up.set()
        await _ask(pull)

    def _on_idle(self, last: int) -> None:
        """The server has nothing more, and we have had all that it delivered."""
        if last < self._expected:
            self.caught_up.set()


async def _ask(pull: Pull) -> None:
    if pull.outstanding < BATCH // 2:
        await pull.request(BATCH)
