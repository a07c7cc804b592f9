"""Time is handed in: the sweeper's silence is its clock's, never the machine's, and never a worker's."""

from __future__ import annotations

import pytest

from core.history import begun
from kokuban.blackboard.clock import Clock
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus
from kokuban.schemas import encode
from kokuban.supervisor._sweep import SILENCE_SECONDS, Sweeper
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio


class Watch(Clock):
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


class Beat:
    def __init__(self, task: str, step: str, fence: int) -> None:
        self.data = encode({"holds": [(task, step, fence)]})


async def test_a_step_is_taken_back_once_the_clock_says_that_it_was_silent_too_long(nats_server: NatsServer) -> None:
    history, watch = begun(), Watch()
    history.order("look", "researcher")
    applied = history.claim("look")
    fence = history.board.tasks["t-1"].steps["look"].fence
    async with await Bus.connect(nats_server.url) as bus:
        sweeper = Sweeper(bus, history.board, clock=watch)
        sweeper.saw(applied, Stored(fence, "", 0.0, b""))
        for _ in range(int(SILENCE_SECONDS * 2)):
            watch.seconds += 0.5
            assert await sweeper.sweep() == []
        await sweeper._on_heartbeat(Beat("t-1", "look", fence - 1))  # type: ignore[arg-type]  # another's fence
        watch.seconds += 0.5
        ((task, release),) = await sweeper.sweep()
        assert (task, release.step, release.reg, release.body.why) == ("t-1", "look", fence, "silent")
        await sweeper._on_heartbeat(Beat("t-1", "look", fence))  # type: ignore[arg-type]
        watch.seconds += 0.5
        assert await sweeper.sweep() == []
