"""Who has stopped: workers say so when everything that they had started for a step is gone (invariant 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from nats.aio.msg import Msg

from kokuban.blackboard.wire import Bus
from kokuban.schemas import subjects

CONFIRM_SECONDS = 1.5
KEPT = 4_096


class _Stopped(msgspec.Struct):
    fence: int = 0


class Stops:
    """Hears `kl.stopped`. A hint: what is not heard is called unconfirmed, never waited for."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard: dict[tuple[str, str], int] = {}
        self._news = asyncio.Event()
        self._decoder = msgspec.json.Decoder(_Stopped)

    async def listen(self) -> None:
        """Hear until cancelled."""
        subscription = await self._bus.subscribe(f"{subjects.STOPPED}.*.*.*", self._on_stopped)
        try:
            await asyncio.Event().wait()
        finally:
            if not self._bus.closed.is_set():
                await subscription.unsubscribe()

    async def _on_stopped(self, message: Msg) -> None:
        *_, task, _role, step = message.subject.split(".")
        try:
            fence = self._decoder.decode(message.data).fence
        except msgspec.DecodeError:
            return
        self._heard[(task, step)] = fence
        if len(self._heard) > KEPT:
            self._heard.pop(next(iter(self._heard)))
        self._news.set()

    async def unconfirmed(self, task: str, claims: Sequence[tuple[str, int]]) -> tuple[str, ...]:
        """Wait until the owners of these claims (step, fence) have stopped, at most `CONFIRM_SECONDS`; the steps of
        those that had not said so by then."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + CONFIRM_SECONDS
        while True:
            left = tuple(step for step, fence in claims if self._heard.get((task, step), -1) < fence)
            if not left or loop.time() >= give_up:
                return left
            self._news.clear()
            try:
                async with asyncio.timeout(give_up - loop.time()):
                    await self._news.wait()
            except TimeoutError:
                pass
