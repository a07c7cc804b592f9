"""Many watchers of one process share a reader and a fold, and none of them misses or repeats anything."""

from __future__ import annotations

import asyncio

import pytest

from kokuban.blackboard import Client, Event, _feed
from kokuban.blackboard.wire import Bus
from support.nats_server import NatsServer
from support.waiting import cancelled, eventually

pytestmark = pytest.mark.anyio


class Watcher:
    """Keeps what it sees; `slow` makes it wait for leave before it takes the next event."""

    def __init__(self, board: Client, after: int = 0, *, slow: asyncio.Event | None = None) -> None:
        self.seen: list[Event] = []
        self._board, self._after, self._slow = board, after, slow
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self._board.watch(after=self._after):
            self.seen.append(event)
            if self._slow is not None:
                await self._slow.wait()

    @property
    def goals(self) -> list[str]:
        return [event.text for event in self.seen if event.event == "submitted"]


async def consumers(url: str) -> int:
    async with await Bus.connect(url) as bus:
        info = await bus.api("STREAM.INFO.BOARD")
        return int(info["state"]["consumer_count"])


async def test_watchers_share_one_reader_and_each_sees_everything_once(nats_server: NatsServer) -> None:
    async with await Client.connect(nats_server.url) as board, await Client.connect(nats_server.url) as writer:
        for number in range(5):
            await writer.submit(f"before {number}")
        watchers = [Watcher(board) for _ in range(20)]
        await eventually(lambda: all(len(w.goals) == 5 for w in watchers))
        late = Watcher(board, after=watchers[0].seen[2].seq)
        await asyncio.gather(*(writer.submit(f"meanwhile {number}") for number in range(20)))
        await eventually(lambda: all(len(w.goals) == 25 for w in watchers) and len(late.goals) == 22)
        await eventually(lambda: _at_most(nats_server.url, 1), what="only the shared reader is left")
        nats_server.kill()
        nats_server.restart()
        await writer.submit("after the restart")
        await eventually(lambda: all(w.goals[-1] == "after the restart" for w in (*watchers, late)))
        first = watchers[0].seen
        assert [event.seq for event in first] == sorted(event.seq for event in first)
        assert all(w.seen == first for w in watchers)
        assert late.seen == [event for event in first if event.seq > first[2].seq]
        assert len({event.seq for event in first}) == len(first)
        await cancelled(*(w.task for w in watchers), late.task)
        await eventually(lambda: _at_most(nats_server.url, 0), what="the last watcher takes the reader along")


async def _at_most(url: str, count: int) -> bool:
    return await consumers(url) <= count


async def test_a_watcher_that_is_too_slow_holds_nobody_up_and_misses_nothing(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "BEHIND", 8)
    leave = asyncio.Event()
    async with await Client.connect(nats_server.url) as board, await Client.connect(nats_server.url) as writer:
        await writer.submit("first")
        quick, slow = Watcher(board), Watcher(board, slow=leave)
        await eventually(lambda: quick.goals == slow.goals == ["first"])
        leave.set()
        await writer.submit("second")  # both read on in the shared feed now
        await eventually(lambda: len(slow.goals) == 2)
        leave.clear()
        for number in range(30):
            await writer.submit(f"task {number}")
        await eventually(lambda: len(quick.goals) == 32)
        assert len(slow.goals) < 32
        leave.set()
        await eventually(lambda: len(slow.goals) == 32)
        assert slow.seen == quick.seen
        await cancelled(quick.task, slow.task)
