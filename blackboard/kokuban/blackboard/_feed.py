"""One reader and one fold of the whole board for all watchers of a process: a hundred of them cost what one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kokuban.blackboard._events import Event, events_of
from kokuban.blackboard._reading import Reading
from kokuban.blackboard.core import Board, Stored, fold
from kokuban.blackboard.wire import Bus, Reader

BEHIND = 4_096
"""A watcher that is this many records behind leaves the feed and catches up on its own."""

News = tuple[int, list[Event]]
"""A record's sequence and what it means to a watcher."""


class _FellBehind(Exception):
    """The watcher was too slow for the feed."""


class _Tail:
    """What the feed brings to one watcher: every record after `position`."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.queue: asyncio.Queue[News | Exception] = asyncio.Queue()


class Feed:
    """Reads and folds while it has watchers. The first of them gives it the board that it has folded so far."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._board: Board | None = None
        self._running: asyncio.Task[None] | None = None
        self._tails: set[_Tail] = set()

    async def follow(self, after: int) -> AsyncIterator[Event]:
        """Every event after sequence `after`, for ever: what is stored is read alone, what comes is shared. Raises
        `BusError` when the connection is closed for good."""
        while True:
            try:
                async for seq, events in self._caught_up_and_shared():
                    if seq > after:
                        for event in events:
                            yield event
                        after = seq
                return
            except _FellBehind:
                continue

    async def _caught_up_and_shared(self) -> AsyncIterator[News]:
        board, reading, tail = Board(), Reading(self._bus, None), None
        try:
            while (stored := await reading.next(wait=False)) is not None:
                yield stored.seq, events_of(fold(board, stored), stored)
            tail = self._join(board)
            while board.last_seq < tail.position and (stored := await reading.next(wait=True)) is not None:
                yield stored.seq, events_of(fold(board, stored), stored)
            await reading.stop()
            while True:
                news = await tail.queue.get()
                if isinstance(news, Exception):
                    raise news
                yield news
        finally:
            await reading.stop()
            if tail is not None:
                self._leave(tail)

    def _join(self, board: Board) -> _Tail:
        if self._board is None:
            self._board = board
            self._running = asyncio.create_task(self._run(board))
        tail = _Tail(self._board.last_seq)
        self._tails.add(tail)
        return tail

    def _leave(self, tail: _Tail) -> None:
        self._tails.discard(tail)
        if not self._tails and self._running is not None:
            self._running.cancel()
            self._running = self._board = None

    async def _run(self, board: Board) -> None:
        async def on_record(stored: Stored) -> None:
            news = (stored.seq, events_of(fold(board, stored), stored))
            for tail in list(self._tails):
                if tail.queue.qsize() < BEHIND:
                    tail.queue.put_nowait(news)
                else:
                    self._tails.discard(tail)
                    tail.queue.put_nowait(_FellBehind())

        try:
            await Reader(self._bus, on_record, after=board.last_seq).run()
        except Exception as error:
            for tail in self._tails:
                tail.queue.put_nowait(error)
