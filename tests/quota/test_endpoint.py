"""What the endpoint itself saw of three worker processes, of which one is killed and one stopped and continued."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kokuban.blackboard.wire import Bus, change_limits, endpoint_use, ensure_control
from kokuban.schemas.quota import EndpointLimits
from quota.endpoint import Endpoint, recording
from support.nats_server import NatsServer
from support.processes import KILL_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.anyio
WINDOW = 1.0
MARGIN = 1.002
CALLER = Path(__file__).parent / "run_caller.py"


@asynccontextmanager
async def callers(nats: str, url: str, calls: int, at_once: int = 4) -> AsyncIterator[list[Process]]:
    """Three processes, which begin their calls together; what still runs at the end is killed."""
    environment = os.environ | {"PYTHONPATH": str(CALLER.parent.parent)}
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, str(CALLER), nats, url, f"w{n}", str(calls), str(at_once), str(WINDOW * MARGIN),
            env=environment, stdin=PIPE, stdout=PIPE,
        )
        for n in range(3)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await asyncio.wait_for(process.communicate(), KILL_SECONDS)


async def said_done(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode()


def by(endpoint: Endpoint) -> Counter[str]:
    return Counter(entry.caller for entry in endpoint.log)


NONE = 10_000


@pytest.mark.parametrize(
    ("limits", "reached"),
    [(EndpointLimits(3, 15), (2, 8, 0)), (EndpointLimits(tokens_per_minute=600), (0, 0, 240))],
    ids=["requests", "tokens"],
)
async def test_the_endpoints_log_shows_no_limit_passed(
    limits: EndpointLimits, reached: tuple[int, int, int], nats_server: NatsServer
) -> None:
    async with await Bus.connect(nats_server.url) as bus, recording() as endpoint:
        await ensure_control(bus)
        await change_limits(bus, "tested", lambda _: limits)
        async with callers(nats_server.url, endpoint.url, 20) as (killed, stopped, other):
            await eventually(lambda: all(by(endpoint)[f"w{n}"] >= 3 for n in range(3)))
            killed.send_signal(signal.SIGKILL)
            stopped.send_signal(signal.SIGSTOP)
            seen = by(endpoint)
            await eventually(lambda: by(endpoint)["w2"] >= min(20, seen["w2"] + 8))
            await eventually(lambda: only_held_by(bus, "w2"))  # the slots of both have expired
            stopped.send_signal(signal.SIGCONT)
            for process in (stopped, other):
                assert "done" in await asyncio.wait_for(said_done(process), 40)

        most = (endpoint.most_at_once(), endpoint.most_requests(WINDOW), endpoint.most_tokens(WINDOW))
        allowed = (limits.concurrency, limits.requests_per_minute, limits.tokens_per_minute)
        assert all(n <= (NONE if limit is None else limit) for n, limit in zip(most, allowed, strict=True)), most
        # That they came near, also on a busy machine (without limits these callers go far beyond):
        assert all(n >= least for n, least in zip(most, reached, strict=True)), most
        assert by(endpoint)["w2"] == 20
        assert by(endpoint)["w1"] >= 20
        await eventually(lambda: unheld(bus))


async def only_held_by(bus: Bus, worker: str) -> bool:
    return all(holder.worker == worker for holder in (await endpoint_use(bus, "tested")).holders)


async def unheld(bus: Bus) -> bool:
    """Whether nobody holds a slot or waits for one, by what is stored."""
    use = await endpoint_use(bus, "tested")
    return not use.holders and not use.waiting


async def test_limits_change_while_workers_run(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus, recording() as endpoint:
        await ensure_control(bus)
        await change_limits(bus, "tested", lambda _: EndpointLimits(concurrency=1))
        async with callers(nats_server.url, endpoint.url, 30) as processes:
            await eventually(lambda: len(endpoint.log) >= 10)
            assert endpoint.most_at_once() == 1
            await change_limits(bus, "tested", lambda _: EndpointLimits(concurrency=5))
            await eventually(lambda: endpoint.most_at_once() == 5)
            await change_limits(bus, "tested", lambda _: EndpointLimits(concurrency=0))
            begun = len(endpoint.log)
            await eventually(lambda: all(entry.end for entry in endpoint.log))
            stood = len(endpoint.log)
            assert stood <= begun + 5, "at most what was granted before"
            await asyncio.sleep(0.3)  # more than any call takes: nothing may come
            assert len(endpoint.log) == stood
            await change_limits(bus, "tested", lambda _: EndpointLimits())
            for process in processes:
                assert "done" in await asyncio.wait_for(said_done(process), 40)
        assert endpoint.most_at_once() > 5, "no limit is no limit"
        assert len(endpoint.log) == 90
