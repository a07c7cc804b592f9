"""A worker that lost its step stops everything, says so once that is true, and touches nothing more."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kokuban.agents import sandbox
from kokuban.agents._output import Output
from kokuban.agents._work import Work
from kokuban.agents.loop import Loop
from kokuban.agents.models import CallContext, Meter, Reply, Request
from kokuban.agents.tools import Registry, Tool, ToolContext, execute
from kokuban.blackboard.wire import Bus
from kokuban.schemas import subjects
from support.at_work import at_once, at_work, ended
from support.bench import DONE, OPTIONAL, Says, Talk, call, says
from support.desk import Desk, kinds
from support.nats_server import NatsServer
from support.processes import gone, linux_only
from support.waiting import eventually

pytestmark = pytest.mark.anyio

STOPPED_WITHIN_SECONDS = 1.0
Perform = Callable[[Work], Any]


class Stopped:
    """A leader that listens for workers that stopped."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    @classmethod
    async def listen(cls, desk: Desk) -> Stopped:
        stopped = cls(desk)

        async def hear(message: Any) -> None:
            await stopped.heard.put((message.subject, msgspec.json.decode(message.data)["fence"]))

        await desk.bus.subscribe(f"{subjects.STOPPED}.>", hear)
        return stopped

    async def revoke(self) -> float:
        """Take the step back, wait until its worker has stopped, and tell how long that took in seconds."""
        fence = await self._desk.stands_at()
        before = time.monotonic()
        await self._desk.release(fence)
        subject, told = await asyncio.wait_for(self.heard.get(), 10)
        assert (subject, told) == (subjects.stopped(self._desk.task, "coder", "fix"), fence)
        return time.monotonic() - before


async def nothing_more(desk: Desk, since: int) -> None:
    """The worker wrote nothing after the release, and its order is neither acknowledged nor given back."""
    assert await desk.bus.last_seq() == since
    assert (await desk.pending())[0] == 1


@asynccontextmanager
async def letting_go(enough: asyncio.Event) -> AsyncIterator[None]:
    """A program that clings to life ends with the test, however that ends."""
    try:
        yield
    finally:
        enough.set()


class Streams(Says):
    """A model in the middle of a long reply."""

    def __init__(self) -> None:
        super().__init__(DONE)
        self.began, self.cancelled = asyncio.Event(), asyncio.Event()

    async def call(self, request: Request, context: CallContext, progress: Any) -> Reply:
        self.began.set()
        try:
            while True:
                progress.text("word ")
                await asyncio.sleep(0.01)
        finally:
            self.cancelled.set()


def loops(tool: Tool) -> Perform:
    """A program whose model calls this tool at once."""

    async def perform(work: Work) -> list[Output]:
        work.meter = Meter(Says(says(call(tool.name)), DONE))
        context = ToolContext(work.home, work.home)
        return await Loop(work, Talk(), Registry([tool]), context).run()  # type: ignore[no-any-return]

    return perform


async def test_a_model_call_is_cancelled(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk, model = await Desk.open(bus), Streams()
    stopped = await Stopped.listen(desk)

    async def perform(work: Work) -> list[Output]:
        work.meter = Meter(model)
        return await Loop(work, Talk()).run()  # type: ignore[no-any-return]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await asyncio.wait_for(model.began.wait(), 10)
        assert await stopped.revoke() < STOPPED_WITHIN_SECONDS
        assert model.cancelled.is_set()
        await nothing_more(desk, await desk.stands_at())


@linux_only
async def test_a_shell_tool_ends_with_its_children(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk, pids = await Desk.open(bus), tmp_path / "pids"
    stopped = await Stopped.listen(desk)

    async def run(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        script = f"(sleep 600 & echo $! >> {pids}; sleep 600) & setsid sleep 600 & echo $! >> {pids}; wait"
        await sandbox.run(script, cwd=context.home, home=context.home, timeout_seconds=600, asked="none")
        return ""

    async with at_work(
        nats_server.url, tmp_path / "a", loops(Tool("shell", "", OPTIONAL, run, "read", "read", timeout_seconds=600))
    ):
        await desk.order()
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        assert await stopped.revoke() < STOPPED_WITHIN_SECONDS
        for pid in pids.read_text().split():
            assert await asyncio.to_thread(gone, int(pid), 0)  # it said so when it was so
        await nothing_more(desk, await desk.stands_at())


@pytest.mark.parametrize("busy", ["computing", "waiting in short naps"])
async def test_a_tool_that_blocks_its_thread_is_interrupted(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, busy: str
) -> None:
    desk, began, over = await Desk.open(bus), threading.Event(), threading.Event()
    stopped = await Stopped.listen(desk)

    def block(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        began.set()
        try:
            give_up = time.monotonic() + 60
            while time.monotonic() < give_up:
                if busy != "computing":
                    time.sleep(0.05)
            return "slept it out"
        finally:
            over.set()

    async with at_work(
        nats_server.url, tmp_path / "a", loops(Tool("block", "", OPTIONAL, block, "read", "read", timeout_seconds=600))
    ):
        await desk.order()
        await eventually(began.is_set)
        assert await stopped.revoke() < STOPPED_WITHIN_SECONDS
        assert over.is_set()


async def test_what_cannot_be_stopped_is_not_said_to_have_stopped(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    """A call into the system that does not come back: the worker goes on, and keeps silent until it has come back."""
    desk, began, release = await Desk.open(bus), threading.Event(), threading.Lock()
    stopped = await Stopped.listen(desk)
    release.acquire()

    def block(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        began.set()
        with release:
            return ""

    async with at_work(
        nats_server.url, tmp_path / "a", loops(Tool("block", "", OPTIONAL, block, "read", "read", timeout_seconds=600))
    ) as worker:
        await desk.order()
        await eventually(began.is_set)
        await desk.release(await desk.stands_at())
        await eventually(lambda: not worker._steps)  # its place is free for other work
        assert worker._telling
        assert stopped.heard.empty()
        release.release()
        await asyncio.wait_for(stopped.heard.get(), 10)


async def test_a_program_that_swallows_its_cancellation_is_told_again(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk, began = await Desk.open(bus), asyncio.Event()
    stopped = await Stopped.listen(desk)

    async def perform(work: Work) -> list[Output]:
        for _ in range(2):
            try:
                began.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        return []

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        await stopped.revoke()
    assert kinds(await desk.register()) == ["claimed", "released"]


async def test_one_that_learns_it_from_its_own_write_says_so_too(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kokuban.schemas.subjects.HINTS", "kl.elsewhere")
    monkeypatch.setattr("kokuban.agents.worker.HEARTBEAT_SECONDS", 600)
    desk, began, go = await Desk.open(bus), asyncio.Event(), asyncio.Event()
    stopped = await Stopped.listen(desk)

    async def perform(work: Work) -> list[Output]:
        began.set()
        await go.wait()
        return await at_once(work)

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        revoking = asyncio.create_task(stopped.revoke())
        await eventually(lambda: released(desk))
        go.set()
        await revoking
        await nothing_more(desk, await desk.stands_at())


async def released(desk: Desk) -> bool:
    return kinds(await desk.register())[-1] == "released"


# ---------------------------------------------------------------------- heartbeats beside a busy tool


@pytest.mark.parametrize("tool", ["computes", "sleeps"])
async def test_a_tool_that_blocks_holds_up_no_heartbeat(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, tool: str
) -> None:
    desk, beats = await Desk.open(bus), asyncio.Queue[float]()
    began, enough = threading.Event(), threading.Event()

    def block(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        began.set()
        while not enough.is_set():
            if tool == "sleeps":
                time.sleep(0.2)
        return ""

    async def hear(message: Any) -> None:
        if began.is_set():
            await beats.put(time.monotonic())

    await bus.subscribe("kl.heartbeat.coder.*", hear)
    async with at_work(nats_server.url, tmp_path / "a", loops(Tool("block", "", OPTIONAL, block, "read", "read"))):
        await desk.order()
        times = [await asyncio.wait_for(beats.get(), 5) for _ in range(3)]
        enough.set()
        await ended(desk)
    assert max(b - a for a, b in itertools.pairwise(times)) < 2.5


async def test_a_lost_owner_is_in_no_heartbeat(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kokuban.agents.worker.HEARTBEAT_SECONDS", 0.05)
    desk, beats, began = await Desk.open(bus), asyncio.Queue[Any](), asyncio.Event()

    async def perform(work: Work) -> list[Output]:
        began.set()
        while True:  # it clings to life
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if enough.is_set():
                    raise

    async def hear(message: Any) -> None:
        await beats.put(msgspec.json.decode(message.data)["holds"])

    enough = asyncio.Event()
    await bus.subscribe("kl.heartbeat.coder.*", hear)
    async with at_work(nats_server.url, tmp_path / "a", perform) as worker, letting_go(enough):
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        await asyncio.wait_for(beats.get(), 5)
        await desk.release(await desk.stands_at())
        ((owner, _),) = worker._owners.values()
        await asyncio.wait_for(owner.lost.wait(), 5)
        await bus.api("STREAM.INFO.BOARD")  # what was said before has arrived
        while not beats.empty():
            beats.get_nowait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(beats.get(), 0.5)


async def test_nothing_is_said_about_the_order_of_a_lost_step(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even that it is still worked on, while the program is being stopped."""
    monkeypatch.setattr("kokuban.agents.worker.ACK_WAIT_SECONDS", 0.09)
    desk, said, began, enough = await Desk.open(bus), asyncio.Queue[bytes](), asyncio.Event(), asyncio.Event()

    async def perform(work: Work) -> list[Output]:
        began.set()
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                pass
        return []

    async def hear(message: Any) -> None:
        await said.put(message.data)

    await bus.subscribe("$JS.ACK.BOARD.coder.>", hear)
    stopped = await Stopped.listen(desk)
    async with at_work(nats_server.url, tmp_path / "a", perform) as worker, letting_go(enough):
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        assert await asyncio.wait_for(said.get(), 5) == b"+WPI"
        await desk.release(await desk.stands_at())
        ((owner, _),) = worker._owners.values()
        await asyncio.wait_for(owner.lost.wait(), 5)
        await bus.api("STREAM.INFO.BOARD")  # what was said before has arrived
        while not said.empty():
            said.get_nowait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(said.get(), 0.4)
        enough.set()
        await asyncio.wait_for(stopped.heard.get(), 5)
        assert said.empty()


# ---------------------------------------------------------------------- threads of tools


async def test_a_tool_that_is_a_plain_function_runs_beside_the_loop(tmp_path: Path) -> None:
    seen: list[str] = []

    def run(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        seen.append(threading.current_thread().name)
        return "x"

    judged = Registry([Tool("t", "", OPTIONAL, run, "read", "read")]).validate("t", {})
    assert (await execute(judged, ToolContext(tmp_path, tmp_path))).text == "x"  # type: ignore[arg-type]
    assert seen == ["tool"]


async def test_its_time_is_bounded_and_its_failure_is_data(tmp_path: Path) -> None:
    def slow(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        while True:
            time.sleep(0.01)

    def breaks(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        raise ZeroDivisionError

    tools = Registry(
        [
            Tool("slow", "", OPTIONAL, slow, "read", "read", timeout_seconds=0.05),
            Tool("breaks", "", OPTIONAL, breaks, "read", "read"),
        ]
    )
    for name, said in (("slow", "stopped after 0.05 s"), ("breaks", "ZeroDivisionError")):
        done = await execute(tools.validate(name, {}), ToolContext(tmp_path, tmp_path))  # type: ignore[arg-type]
        assert said in done.text
        assert not done.ok
    await eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "tool"])
