"""What the wire promises, on one server and on three, the leader of the stream killed too."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time

import pytest

from cluster.nodes import Nodes
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, CannotConnect, Conflict, Fence, Reader, Written, ensure_board, ensure_roles
from kokuban.blackboard.wire import write as write_record
from kokuban.blackboard.wire._setup import ensure_payloads
from kokuban.schemas import Final, Lease, seal, subjects
from kokuban.supervisor._lease import Leadership
from support.processes import linux_only
from support.waiting import cancelled, eventually, running

pytestmark = [pytest.mark.anyio, linux_only]

REGISTER = "kb.task.t.step.coder.fix"


async def put(bus: Bus, after: int, *, subject: str = REGISTER, op: str = "") -> tuple[type, int]:
    op = op or secrets.token_hex(8)
    data = seal(Lease("s"), id=op, type="ctl.lease")
    outcome = await write_record(bus, subject, data, op=op, fence=Fence(subject, after))
    return type(outcome), outcome.seq if isinstance(outcome, Written) else outcome.last


async def test_a_chain_takes_only_its_next_link_and_of_many_writers_one(nodes: Nodes) -> None:
    buses = [await Bus.connect(nodes.url) for _ in range(6)]
    try:
        await ensure_board(buses[0], replicas=nodes.replicas)
        last = 0
        for _ in range(6):
            outcomes = await asyncio.gather(*(put(bus, last) for bus in buses))
            ((_, seq),) = [outcome for outcome in outcomes if outcome[0] is Written]
            assert outcomes.count((Conflict, seq)) == len(buses) - 1
            assert await put(buses[0], last) == (Conflict, seq)
            last = seq
        assert len(await buses[0].history(REGISTER)) == 6
    finally:
        for bus in buses:
            await bus.close()


async def test_the_same_operation_twice_is_one_record(nodes: Nodes) -> None:
    async with await Bus.connect(nodes.url) as bus:
        await ensure_board(bus, replicas=nodes.replicas)
        first = await put(bus, 0, op="same")
        assert await put(bus, 0, op="same") == first
        assert await asyncio.gather(*(put(bus, first[1], op="next") for _ in range(5))) == [(Written, first[1] + 1)] * 5
        assert len(await bus.history(REGISTER)) == 2


async def decide(bus: Bus, leader: Leadership, task: str) -> Written | Conflict:
    op, shard = secrets.token_hex(8), subjects.shard(task)
    data = seal(Final("failed", "x"), id=op, type="task.final", task=task, fence=leader.epochs[shard])
    fence = Fence(subjects.epoch(shard), leader.epochs[shard])
    return await write_record(bus, subjects.final(task), data, op=op, fence=fence)


async def test_decisions_of_one_shard_at_once_all_land_once_and_none_of_a_past_leader(nodes: Nodes) -> None:
    """Also without the leader's own lock, that is with many writes in flight on one fence."""
    tasks = [name for n in range(400) if subjects.shard(name := f"t-{n}") == 3][:13]
    async with await Bus.connect(nodes.url) as bus, await Bus.connect(nodes.url) as other:
        await ensure_board(bus, replicas=nodes.replicas)
        first, second = Leadership(bus, "first"), Leadership(other, "second")
        await first.raise_epochs()
        started = time.monotonic()
        outcomes = await asyncio.gather(*(decide(bus, first, task) for task in tasks[:5]))
        at_once, started = time.monotonic() - started, time.monotonic()
        outcomes += [await decide(bus, first, task) for task in tasks[5:10]]
        one_by_one = time.monotonic() - started
        print(f"{nodes.count} servers: 5 writes on one fence {at_once:.3f} s at once, {one_by_one:.3f} s one by one")
        assert all(isinstance(one, Written) for one in outcomes)
        for task in tasks[:10]:
            assert len(await bus.history(subjects.final(task))) == 1
        racing = [asyncio.create_task(decide(bus, first, task)) for task in tasks[10:]]
        await second.raise_epochs()
        raced = await asyncio.gather(*racing)
        epoch = second.epochs[3]
        for task, outcome in zip(tasks[10:], raced, strict=True):
            assert len(await bus.history(subjects.final(task))) == isinstance(outcome, Written)
            assert isinstance(outcome, Conflict) or outcome.seq < epoch
        late = [await decide(bus, first, task) for task in tasks[:3]]
        assert all(isinstance(one, Conflict) for one in late)
        assert await bus.history(subjects.final(tasks[0]), after=epoch) == []


async def test_one_reader_misses_nothing_while_the_leader_is_killed_under_writers(nodes: Nodes) -> None:
    async with await Bus.connect(nodes.url) as bus, await Bus.connect(nodes.url) as watcher:
        await ensure_board(bus, replicas=nodes.replicas)
        acknowledged: list[int] = []
        seen: list[int] = []

        async def keep_writing(name: str) -> None:
            last = 0
            while True:
                kind, last = await put(bus, last, subject=f"kb.task.t.step.coder.{name}")
                assert kind is Written
                acknowledged.append(last)

        async def keep(stored: Stored) -> None:
            seen.append(stored.seq)

        reader = Reader(watcher, keep)
        async with running(reader.run()):
            async with running(*(keep_writing(f"w{n}") for n in range(3))):
                await eventually(lambda: len(acknowledged) >= 30)
                killed = await nodes.kill_leader(bus)
                gone = time.monotonic()
                if nodes.count == 1:
                    nodes.start(killed)
                mark = len(acknowledged) + 30
                await eventually(lambda: len(acknowledged) >= mark, seconds=25)
                print(f"{nodes.count} servers: 30 more records {time.monotonic() - gone:.2f} s after the kill")
                nodes.start(killed)
            last = await bus.patiently(bus.last_seq)
            await eventually(lambda: reader.position >= last)
        assert seen == [*range(1, seen[-1] + 1)]
        assert seen[-1] >= last
        assert set(acknowledged) <= set(seen)
        assert len(set(acknowledged)) == len(acknowledged)


async def test_a_lease_passes_on_within_5_s_when_its_holder_dies(nodes: Nodes) -> None:
    async with await Bus.connect(nodes.url) as bus:
        await ensure_board(bus, replicas=nodes.replicas)
        first, second = Leadership(bus, "first"), Leadership(bus, "second")
        await first.acquire()
        keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire())
        renewed = first._seq
        await eventually(lambda: first._seq > renewed)
        await cancelled(keeping)
        died = time.monotonic()
        await asyncio.wait_for(waiting, 5)
        print(f"{nodes.count} servers: the lease was free after {time.monotonic() - died:.2f} s")


async def test_a_lease_has_one_holder_while_the_leader_of_the_stream_is_killed(nodes: Nodes) -> None:
    async with await Bus.connect(nodes.url) as bus, await Bus.connect(nodes.url) as watcher:
        await ensure_board(bus, replicas=nodes.replicas)
        leases: list[Stored] = []

        async def keep(stored: Stored) -> None:
            leases.append(stored)

        async def compete(name: str) -> None:
            leadership = Leadership(bus, name, ttl_seconds=1)
            while True:
                await leadership.acquire()
                await leadership.keep()

        async with running(Reader(watcher, keep).run(), compete("a"), compete("b")):
            await eventually(lambda: leases)
            killed = await nodes.kill_leader(bus)
            if nodes.count == 1:
                nodes.start(killed)
            mark = len(leases)
            await eventually(lambda: len(leases) > mark + 4, seconds=25)
            nodes.start(killed)
        for before, after in itertools.pairwise(leases):
            if before.data.count(b'"supervisor":"a"') != after.data.count(b'"supervisor":"a"'):
                assert after.time - before.time > 0.99


async def test_a_board_of_one_replica_is_given_three_with_all_that_belongs_to_it(nodes: Nodes) -> None:
    async with await Bus.connect(nodes.url) as bus:
        await ensure_board(bus)
        await ensure_roles(bus, ["coder"])
        await ensure_payloads(bus, "OBJ_KOKUBAN_PAYLOADS", ["$O.KOKUBAN_PAYLOADS.C.>", "$O.KOKUBAN_PAYLOADS.M.>"])
        _, first = await put(bus, 0)
        if nodes.count == 1:
            with pytest.raises(CannotConnect, match="replicas"):
                await ensure_board(bus, replicas=3)
            return
        await ensure_board(bus, replicas=3)
        await ensure_board(bus)  # nothing is taken away again
        for stream in ("BOARD", "OBJ_KOKUBAN_PAYLOADS", "CONTROL"):
            assert (await bus.api(f"STREAM.INFO.{stream}"))["config"]["num_replicas"] == 3

        async def follow() -> bool:
            info = await bus.api("CONSUMER.INFO.BOARD.coder")
            return len(info.get("cluster", {}).get("replicas") or []) == 2

        await eventually(follow, what="the consumer of work orders is on three servers too")
        assert await put(bus, first) == (Written, first + 1)
