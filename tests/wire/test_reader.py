"""The reader: every record once and in order, whatever happens to the server or the consumer."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, BusError, Fence, Reader, Written, ensure_board, write
from kokuban.schemas import Lease, seal
from support.nats_server import NatsServer
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio


async def put(bus: Bus, subject: str, after: int = 0) -> int:
    op = secrets.token_hex(8)
    stored = await write(bus, subject, seal(Lease("s"), id=op, type="ctl.lease"), op=op, fence=Fence(subject, after))
    assert isinstance(stored, Written)
    return stored.seq


class Seen:
    """What a reader handed over."""

    def __init__(self) -> None:
        self.seqs: list[int] = []

    async def __call__(self, stored: Stored) -> None:
        self.seqs.append(stored.seq)


async def consumers(bus: Bus) -> list[str]:
    listed = await bus.api("CONSUMER.NAMES.BOARD")
    return list(listed["consumers"] or [])


async def test_what_is_stored_and_what_comes(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for n in range(1_200):  # more than one batch
            await bus.send(f"kb.task.t.step.coder.s{n}", b"{}")
        await put(bus, "kb.task.t.spec")
        last = await bus.last_seq()
        seen = Seen()
        reader = Reader(bus, seen)
        async with running(reader.run()):
            await asyncio.wait_for(reader.caught_up.wait(), 10)
            assert seen.seqs == list(range(1, last + 1))
            assert reader.position == last
            new = await put(bus, "kb.task.t.final")
            await eventually(lambda: reader.position == new)
        assert seen.seqs == list(range(1, new + 1))


async def test_it_starts_after_a_position_and_reads_one_subject_when_asked(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for n in range(10):
            await put(bus, f"kb.task.t{n % 2}.step.coder.s{n}")
        late, one = Seen(), Seen()
        readers = Reader(bus, late, after=7), Reader(bus, one, subject="kb.task.t1.>")
        async with running(*(reader.run() for reader in readers)):
            for reader in readers:
                await asyncio.wait_for(reader.caught_up.wait(), 10)
        assert late.seqs == [8, 9, 10]
        assert one.seqs == [2, 4, 6, 8, 10]
        await eventually(lambda: consumers_gone(bus), what="its consumer does not stay behind")


async def consumers_gone(bus: Bus) -> bool:
    return not await consumers(bus)


async def test_gapless_through_kill_and_restart_with_writers_at_work(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url)
    watcher = await Bus.connect(nats_server.url)
    await ensure_board(bus)
    acknowledged: list[int] = []

    async def keep_writing(name: str) -> None:
        last = n = 0
        while True:
            last = await put(bus, f"kb.task.t.step.coder.{name}", last)
            acknowledged.append(last)
            n += 1

    seen = Seen()
    reader = Reader(watcher, seen)
    try:
        async with running(reader.run()):
            async with running(*(keep_writing(f"w{i}") for i in range(3))):
                for _ in range(2):
                    mark = len(acknowledged) + 100
                    await eventually(lambda mark=mark: len(acknowledged) >= mark, seconds=20)
                    await asyncio.to_thread(nats_server.kill)
                    await asyncio.to_thread(nats_server.restart)
                    back = asyncio.get_running_loop().time()
                    last = await asyncio.wait_for(bus.patiently(bus.last_seq), 5)
                    await eventually(lambda last=last: reader.position >= last, seconds=5)
                    assert asyncio.get_running_loop().time() - back < 5
            last = await bus.last_seq()
            await eventually(lambda: reader.position >= last, seconds=5)
        newest = seen.seqs[-1]  # what the writers were about to write when they were cancelled may come after `last`
        assert newest >= last
        assert seen.seqs == list(range(1, newest + 1))  # in order, none twice, none missing
        assert set(acknowledged) <= set(seen.seqs)
    finally:
        await bus.close()
        await watcher.close()


async def test_a_consumer_deleted_under_it_is_replaced(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        seen = Seen()
        reader = Reader(bus, seen)
        async with running(reader.run()):
            await asyncio.wait_for(reader.caught_up.wait(), 10)
            for n in range(3):
                (name,) = await consumers(bus)
                await bus.api(f"CONSUMER.DELETE.BOARD.{name}")
                last = await put(bus, f"kb.task.t.step.coder.s{n}")
                await eventually(lambda last=last: reader.position == last, seconds=5)
        assert seen.seqs == [1, 2, 3]


async def test_deleted_records_are_no_gap(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for n in range(6):
            await put(bus, f"kb.task.t.step.coder.s{n}")
        for seq in (2, 3, 6):
            await bus.api("STREAM.MSG.DELETE.BOARD", {"seq": seq})
        seen = Seen()
        reader = Reader(bus, seen)
        async with running(reader.run()):
            await asyncio.wait_for(reader.caught_up.wait(), 10)
        assert seen.seqs == [1, 4, 5]


async def test_it_has_caught_up_though_what_it_waited_for_is_gone(nats_server: NatsServer) -> None:
    """What expires or is deleted between the reader's beginning and its turn is never delivered."""
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for n in range(1_200):
            await bus.send(f"kb.task.t.step.coder.s{n}", b"{}")
        last = await put(bus, "kb.task.t.spec")

        async def take(stored: Stored) -> None:
            if stored.seq == 1:
                for seq in range(last - 50, last + 1):
                    await bus.api("STREAM.MSG.DELETE.BOARD", {"seq": seq, "no_erase": True})

        reader = Reader(bus, take)
        async with running(reader.run()):
            await asyncio.wait_for(reader.caught_up.wait(), 10)
            assert reader.position == last - 51


async def test_what_the_taker_raises_ends_it_before_that_record(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        for n in range(3):
            await put(bus, f"kb.task.t.step.coder.s{n}")

        async def fussy(stored: Stored) -> None:
            if stored.seq == 2:
                raise RuntimeError("not this one")

        reader = Reader(bus, fussy)
        with pytest.raises(RuntimeError, match="not this one"):
            await asyncio.wait_for(reader.run(), 10)
        assert reader.position == 1


async def test_a_slow_taker_keeps_its_consumer(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who pauses a watch is no dead server: nothing is read twice, no consumer after the other is made."""
    monkeypatch.setattr("kokuban.blackboard.wire._pull.DEAD_AFTER_SECONDS", 0.1)
    monkeypatch.setattr("kokuban.blackboard.wire._pull.HEARTBEAT_SECONDS", 0.05)
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        gate, taken = asyncio.Event(), list[int]()

        async def slow(stored: Stored) -> None:
            taken.append(stored.seq)
            await gate.wait()

        reader = Reader(bus, slow)
        async with running(reader.run()):
            await put(bus, "kb.task.t.spec")
            last = await put(bus, "kb.task.t.final")
            await eventually(lambda: taken)
            before = await consumers(bus)
            loop = asyncio.get_running_loop()
            until = loop.time() + 0.5  # several times what silence is allowed to be here
            await eventually(lambda: loop.time() > until)
            assert await consumers(bus) == before
            gate.set()
            await eventually(lambda: reader.position == last)
        assert taken == [1, last]


async def test_it_ends_when_the_connection_is_closed_for_good(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url)
    await ensure_board(bus)
    reader = Reader(bus, Seen())
    reading = asyncio.create_task(reader.run())
    await asyncio.wait_for(reader.caught_up.wait(), 10)
    await bus.close()

    with pytest.raises(BusError):
        await asyncio.wait_for(reading, 5)


async def test_no_server_time_is_invented(nats_server: NatsServer) -> None:
    """A delivered record and the same record read are equal: position, subject, server time, bytes."""
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await put(bus, "kb.task.t.spec")
        got: list[Stored] = []

        async def keep(stored: Stored) -> None:
            got.append(stored)

        reader = Reader(bus, keep)
        async with running(reader.run()):
            await asyncio.wait_for(reader.caught_up.wait(), 10)
        read = await bus.read(1)
        assert read is not None
        assert got[0]._replace(time=0) == read._replace(time=0)
        assert abs(got[0].time - read.time) < 1e-5
