"""Slots over a real server: they wait, they go back whatever happens, and nothing stays behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from kokuban.blackboard.wire import Bus, Quota, change_limits, endpoint_use
from kokuban.schemas import subjects
from kokuban.schemas.quota import Endpoint, EndpointLimits
from quota.conftest import Gates
from support.nats_server import NatsServer
from support.tcp_proxy import proxied
from support.waiting import cancelled, eventually

pytestmark = pytest.mark.anyio


async def limit(bus: Bus, *limits: int | None) -> None:
    await change_limits(bus, "e", lambda _: EndpointLimits(*limits))


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


async def in_line(bus: Bus, workers: int) -> None:
    async def look() -> bool:
        return len((await endpoint_use(bus, "e")).waiting) == workers

    await eventually(look)


async def holders(bus: Bus) -> list[str]:
    return [holder.worker for holder in (await endpoint_use(bus, "e")).holders]


async def free(bus: Bus) -> None:
    async def look() -> bool:
        use = await endpoint_use(bus, "e")
        return not use.holders and not use.waiting

    await eventually(look)


async def test_without_limits_nothing_is_written_and_nobody_waits(bus: Bus, gate: Gates) -> None:
    one = await gate("one")
    for _ in range(50):
        slot = await one.enter(tokens=5, deadline=soon())
        assert slot.id is None
        one.leave(slot, tokens=5)
    assert one.writes == 0
    assert await bus.last(subjects.endpoint("e"), stream=subjects.CONTROL) is None


async def test_without_the_stream_there_are_no_limits(nats_server: NatsServer, gate: Gates) -> None:
    """A board from before there were any; the first limit that is set counts for who already runs."""
    one = await gate("one")
    assert (await one.enter(tokens=5, deadline=soon())).id is None
    async with await Bus.connect(nats_server.url) as bus:
        from kokuban.blackboard.wire import ensure_control

        await ensure_control(bus)
        await limit(bus, 0)

        async def held_back() -> bool:  # from when it has heard of the limit on
            try:
                return (await one.enter(tokens=5, deadline=soon(0.2))).id is not None
            except TimeoutError as error:
                return "'e' in time: 0 requests at once" in str(error)

        await eventually(held_back)


async def test_who_waits_is_served_in_order_across_processes(bus: Bus, gate: Gates) -> None:
    await limit(bus, 1)
    gates = [await gate(f"w{n}") for n in range(3)]
    slot = await gates[0].enter(tokens=0, deadline=soon())
    order: list[int] = []

    async def wait(n: int) -> None:
        mine = await gates[n].enter(tokens=0, deadline=soon())
        order.append(n)
        gates[n].leave(mine)

    waiting = []
    for place, n in enumerate((2, 0, 1), 1):
        waiting.append(asyncio.create_task(wait(n)))
        await in_line(bus, place)
    gates[0].leave(slot)
    await asyncio.gather(*waiting)
    assert order == [2, 0, 1]
    await free(bus)


async def test_a_caller_that_is_cancelled_or_too_late_leaves_nothing_behind(bus: Bus, gate: Gates) -> None:
    await limit(bus, 1)
    one, two = await gate("one"), await gate("two")
    slot = await one.enter(tokens=0, deadline=soon())
    waiting = asyncio.create_task(two.enter(tokens=0, deadline=soon()))
    await in_line(bus, 1)
    await cancelled(waiting)
    await in_line(bus, 0)
    with pytest.raises(TimeoutError, match=r"no free slot at the endpoint 'e' in time: 1 requests at once are allowed"):
        await two.enter(tokens=0, deadline=soon(0.1))
    await in_line(bus, 0)
    one.leave(slot)
    await free(bus)
    assert (await two.enter(tokens=0, deadline=soon())).id


async def test_cancelling_at_any_moment_leaks_no_slot(bus: Bus, gate: Gates) -> None:
    await limit(bus, 2)
    one = await gate("one")
    for n in range(60):
        waiting = asyncio.create_task(one.enter(tokens=0, deadline=soon()))
        await asyncio.sleep(n * 0.000_03)
        done = waiting.done()
        if done:
            one.leave(waiting.result())
        else:
            await cancelled(waiting)
    await free(bus)
    slots = await asyncio.gather(*(one.enter(tokens=0, deadline=soon()) for _ in range(2)))
    assert len({slot.id for slot in slots}) == 2


async def test_what_is_not_given_back_expires_and_the_record_with_it(bus: Bus, gate: Gates) -> None:
    await limit(bus, 1)
    options = {"window_seconds": 0.5, "margin_seconds": 0.2}
    one, two = await gate("one", **options), await gate("two", **options)
    began = time.monotonic()
    await one.enter(tokens=3, deadline=soon(0.4))  # and its worker dies
    slot = await two.enter(tokens=0, deadline=soon())
    assert time.monotonic() - began >= 0.6
    assert await holders(bus) == ["two"]
    two.leave(slot)

    async def gone() -> bool:
        return await bus.last(subjects.endpoint("e"), stream=subjects.CONTROL) is None

    await eventually(gone)
    assert (await two.enter(tokens=0, deadline=soon())).id, "the sequence to compare with is gone, and it is noticed"


async def test_a_slot_is_for_no_longer_than_a_call_may_take(bus: Bus, gate: Gates) -> None:
    await limit(bus, 1)
    one = await gate("one", longest_call_seconds=0.3, margin_seconds=0.1)
    slot = await one.enter(tokens=0, deadline=soon(3_600))
    assert slot.deadline <= soon(0.3)
    await one.enter(tokens=0, deadline=soon(5))


async def test_what_was_given_up_counts_a_little_longer(bus: Bus, gate: Gates) -> None:
    await limit(bus, 1)
    one = await gate("one", linger_seconds=0.3)
    slot = await one.enter(tokens=0, deadline=soon(100))
    given_up = time.monotonic()
    one.leave(slot, gave_up=True)
    await one.enter(tokens=0, deadline=soon())
    assert 0.3 <= time.monotonic() - given_up < 5


@pytest.mark.parametrize("limited", [True, False])
async def test_a_retry_after_holds_everyone_back(bus: Bus, gate: Gates, limited: bool) -> None:
    if limited:
        await limit(bus, 5)
    one, two = await gate("one"), await gate("two")
    slot = await one.enter(tokens=0, deadline=soon())
    await two.enter(tokens=0, deadline=soon())
    asked = time.monotonic()
    one.leave(slot, retry_after_seconds=0.5)

    async def known() -> bool:
        return (await endpoint_use(bus, "e")).not_before > 0

    await eventually(known)
    with pytest.raises(TimeoutError, match="the endpoint asked everyone to wait"):
        await two.enter(tokens=0, deadline=asked + 0.3)
    for other in (two, one):
        await other.enter(tokens=0, deadline=soon())
        assert time.monotonic() >= asked + 0.5


async def test_a_retry_after_is_bounded(bus: Bus, gate: Gates) -> None:
    one = await gate("one")
    before = time.time()  # the server is on this machine
    one.leave(await one.enter(tokens=0, deadline=soon()), retry_after_seconds=1e9)

    async def use() -> Endpoint | None:
        found = await endpoint_use(bus, "e")
        return found if found.not_before else None

    found = await eventually(use)
    assert found is not None
    assert before + 590 < found.not_before < before + 660


async def test_a_restarted_server_loses_no_slot(server_factory: object, nats_server: NatsServer, gate: Gates) -> None:
    """What was held stays held, what ends meanwhile is given back afterwards, who waits goes on waiting."""
    from kokuban.blackboard.wire import ensure_control

    async with await Bus.connect(nats_server.url) as bus:
        await ensure_control(bus)
        await limit(bus, 2)
        one, two = await gate("one"), await gate("two")
        ends, stays = [await one.enter(tokens=0, deadline=soon(100)) for _ in range(2)]
        waiting = asyncio.create_task(two.enter(tokens=0, deadline=soon(30)))
        await in_line(bus, 1)
        nats_server.kill()
        one.leave(ends)
        nats_server.restart()
        slot = await waiting
        assert sorted(await holders(bus)) == ["one", "two"]
        one.leave(stays)
        two.leave(slot)
        await free(bus)


async def test_writes_of_unknown_outcome_are_not_made_twice(nats_server: NatsServer, bus: Bus, gate: Gates) -> None:
    await limit(bus, 3, 1_000)
    async with proxied(nats_server.url) as proxy:
        one = await gate("one", url=proxy.url)
        slot = await one.enter(tokens=7, deadline=soon(60))
        for _ in range(3):  # the server stores it, and its answer is lost
            proxy.hold_answers()
            waiting = asyncio.create_task(one.enter(tokens=7, deadline=soon(60)))

            async def stored() -> bool:
                return len(await holders(bus)) == 2

            await eventually(stored)
            proxy.cut()
            proxy.let_answers_pass()
            other = await waiting
            assert len(await holders(bus)) == 2
            one.leave(other, tokens=1)
            one.leave(slot, tokens=1)
            slot = await one.enter(tokens=7, deadline=soon(60))
        use = await endpoint_use(bus, "e")
        assert len(use.holders) == 1
        assert sum(moment.requests for moment in use.window) == 6
        assert sum(moment.tokens for moment in use.window) == 6
        one.leave(slot)
        await free(bus)


async def test_closing_gives_back_what_was_held(nats_server: NatsServer, bus: Bus) -> None:
    await limit(bus, 1)
    async with await Bus.connect(nats_server.url) as own:
        async with Quota(own, "e", "one") as one:
            slot = await one.enter(tokens=0, deadline=soon())
            one.leave(slot)
        assert await holders(bus) == []


async def test_a_grant_that_comes_after_a_change_of_the_limits_keeps_the_new_ones(
    nats_server: NatsServer, bus: Bus, gate: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECHECK_SECONDS", "LIMITS_FRESH_SECONDS"):
        monkeypatch.setattr(f"kokuban.blackboard.wire._quota.{name}", 30.0)  # what it knows is recent enough
    await limit(bus, 1)
    async with proxied(nats_server.url) as proxy:
        one = await gate("one", url=proxy.url)
        one.leave(await one.enter(tokens=0, deadline=soon()))
        await free(bus)
        proxy.hold_answers()  # so that it does not hear of the change before it writes
        await limit(bus, 0)
        waiting = asyncio.create_task(one.enter(tokens=0, deadline=soon(20)))

        async def stored() -> bool:
            return await holders(bus) == ["one"]

        await eventually(stored)
        proxy.let_answers_pass()
        await free(bus)
        assert not waiting.done()
        await limit(bus, 1)
        one.leave(await waiting)
        await free(bus)
