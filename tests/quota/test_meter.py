"""A meter with a gate: every request at the endpoint has a slot, and the gate hears how it ended."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from kokuban.agents.models import Meter, ModelDeadline, RetryPolicy, open_model
from kokuban.agents.models._gate import worst_tokens
from kokuban.blackboard.wire import Bus, change_limits, endpoint_use
from kokuban.schemas.quota import Endpoint as Use
from kokuban.schemas.quota import EndpointLimits
from models.chat_server import DONE, answer, delta, serving, stream, usage
from quota.conftest import Gates
from quota.endpoint import CONTEXT, REQUEST, Endpoint, recording
from support.waiting import cancelled, eventually

pytestmark = pytest.mark.anyio
UNKNOWN_USAGE = stream(delta("ok", finish="stop"), DONE)
WANTS_NO_TEMPERATURE = answer(
    400, {"error": {"message": "Unsupported parameter: 'temperature'", "param": "temperature"}}
)
QUICK = RetryPolicy(first_wait_seconds=0.01)


def asking(url: str, gate: Any, name: str = "m") -> Meter:
    return Meter(open_model(f"openai-compatible:{name}", base_url=url, env={}), gate=gate, retry=QUICK)


async def say(meter: Meter, seconds: float = 10) -> str:
    return (await meter.call(REQUEST, CONTEXT, deadline=time.monotonic() + seconds)).content


async def settled(bus: Bus, requests: int) -> Use:
    """What is stored once nothing is held and so many requests are counted."""

    async def look() -> Use | None:
        use = await endpoint_use(bus, "e")
        done = not use.holders and sum(moment.requests for moment in use.window) == requests
        return use if done else None

    found = await eventually(look)
    assert found is not None
    return found


def tokens(use: Use) -> int:
    return sum(moment.tokens for moment in use.window)


async def test_known_tokens_are_settled_and_unknown_ones_stay_reserved(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(tokens_per_minute=10_000))
    known = stream(delta("ok", finish="stop"), usage(25, 5), DONE)
    async with serving(known, UNKNOWN_USAGE) as server:
        meter = asking(server.url, await gate("one"))
        assert await say(meter) == "ok"
        assert tokens(await settled(bus, 1)) == 30
        assert await say(meter) == "ok"
        await meter.aclose()
    assert tokens(await settled(bus, 2)) == 30 + worst_tokens(REQUEST)


async def test_a_refusal_used_no_tokens_but_was_a_request(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(tokens_per_minute=10_000))
    async with recording() as endpoint:
        endpoint.refuse = lambda n: (429, 0.0) if n == 0 else None
        meter = asking(endpoint.url, await gate("one"))
        assert await say(meter) == "ok"
        await meter.aclose()
    assert tokens(await settled(bus, 2)) == endpoint.tokens


async def test_the_other_workers_wait_too_when_one_is_told_to(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(concurrency=5))
    async with recording() as endpoint:
        endpoint.refuse = lambda n: (429, 0.5) if n == 0 else None
        one, two = asking(endpoint.url, await gate("one"), "one"), asking(endpoint.url, await gate("two"), "two")
        first = asyncio.create_task(say(one))

        async def known() -> bool:
            return (await endpoint_use(bus, "e")).not_before > 0

        await eventually(known)
        assert await asyncio.gather(say(two), first) == ["ok", "ok"]
        await one.aclose()
        await two.aclose()
    refused, *rest = endpoint.log
    assert {entry.caller for entry in rest} == {"one", "two"}
    assert all(entry.start >= (refused.end or 0) + 0.5 for entry in rest)


async def test_asking_again_without_an_option_is_another_request(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(requests_per_minute=2))
    async with serving(WANTS_NO_TEMPERATURE, UNKNOWN_USAGE) as server:
        meter = asking(server.url, await gate("one"))
        assert await say(meter) == "ok"
        assert len(server.bodies) == 2
        await settled(bus, 2)
        with pytest.raises(ModelDeadline, match="2 requests a minute are allowed") as raised:
            await say(meter, 0.3)
        await meter.aclose()
    assert raised.value.code == "slot"
    assert not raised.value.spent
    assert len(server.bodies) == 2


async def test_waiting_for_a_slot_is_no_attempt(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(concurrency=0))
    meter = asking("http://127.0.0.1:9/v1", await gate("one"))
    with pytest.raises(ModelDeadline, match="no free slot at the endpoint 'e' in time"):
        await say(meter, 0.2)
    assert meter.totals.attempts == 0
    await meter.aclose()


async def under_way(endpoint: Endpoint, bus: Bus) -> None:
    async def look() -> bool:
        return bool(endpoint.log) and len((await endpoint_use(bus, "e")).holders) == 1

    await eventually(look)


async def test_a_cancelled_call_holds_its_slot_until_the_endpoint_has_noticed(bus: Bus, gate: Gates) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(concurrency=1))
    async with recording() as endpoint:
        endpoint.busy_seconds = lambda n: 0.3 if n == 0 else 0.0
        meter = asking(endpoint.url, await gate("one", linger_seconds=0.5))
        calling = asyncio.create_task(say(meter))
        await under_way(endpoint, bus)
        await cancelled(calling)
        assert await say(meter) == "ok"
        await meter.aclose()
    assert endpoint.most_at_once() == 1
    assert len(endpoint.log) == 2
