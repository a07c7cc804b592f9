"""Records taken one by one from a reader that runs beside."""

from __future__ import annotations

import asyncio
from typing import Any

from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, Reader


class Reading:
    """A reader whose records are taken one by one. `subject` is a filter, None for the whole board. Stop it at the
    end."""

    def __init__(self, bus: Bus, subject: str | None) -> None:
        self._queue: asyncio.Queue[Stored] = asyncio.Queue(2_048)
        self._reader = Reader(bus, self._queue.put, subject=subject)
        self._running = asyncio.create_task(self._reader.run())

    async def next(self, *, wait: bool) -> Stored | None:
        """The next record. Without `wait`, None once all that is stored has been read. Raises what ended the reader."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        got = asyncio.create_task(self._queue.get())
        caught_up = asyncio.create_task(self._reader.caught_up.wait())
        others: set[asyncio.Task[Any]] = {self._running} if wait else {self._running, caught_up}
        try:
            await asyncio.wait({got, *others}, return_when=asyncio.FIRST_COMPLETED)
            if got.done():
                return got.result()
            if self._running.done():
                self._running.result()
            return None
        finally:
            got.cancel()
            caught_up.cancel()

    async def stop(self) -> None:
        """End the reader. Safe to call twice."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
