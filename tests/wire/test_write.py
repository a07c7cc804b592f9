"""Writing: what happened is always known, or said to be unknown."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from kokuban.blackboard.wire import Bus, Conflict, Fence, NoAnswer, Refused, Written, ensure_board, write
from kokuban.schemas import Lease, seal
from support.nats_server import NatsServer
from support.tcp_proxy import proxied
from support.waiting import eventually

pytestmark = pytest.mark.anyio

REGISTER = "kb.task.t.step.coder.fix"


def record(op: str, size: int = 0) -> bytes:
    return seal(Lease("s" + "x" * size), id=op, type="ctl.lease")


async def put(bus: Bus, after: int, *, subject: str = REGISTER, op: str = "") -> tuple[type, int]:
    op = op or secrets.token_hex(8)
    return told(await write(bus, subject, record(op), op=op, fence=Fence(subject, after)))


def told(outcome: Written | Conflict) -> tuple[type, int]:
    """What came of a write, and the sequence that it names."""
    return type(outcome), outcome.seq if isinstance(outcome, Written) else outcome.last


async def test_a_chain_takes_only_its_next_link(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        assert await put(bus, 0) == (Written, 1)
        assert await put(bus, 0) == (Conflict, 1)
        assert await put(bus, 1) == (Written, 2)
        assert await put(bus, 1) == (Conflict, 2)
        assert [s.seq for s in await bus.history(REGISTER)] == [1, 2]


async def test_another_subject_can_be_the_fence(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await put(bus, 0)
        for wanted, fence in [((Written, 2), 1), ((Written, 3), 1), ((Conflict, 1), 0)]:
            op = secrets.token_hex(8)
            journal = "kb.task.t.journal.coder.fix"
            assert told(await write(bus, journal, record(op), op=op, fence=Fence(REGISTER, fence))) == wanted


async def test_of_many_writers_exactly_one_wins_each_link(nats_server: NatsServer) -> None:
    links, writers = 10, 8
    buses = [await Bus.connect(nats_server.url) for _ in range(writers)]
    try:
        await ensure_board(buses[0])
        last = 0
        for _ in range(links):
            ops = [secrets.token_hex(8) for _ in buses]
            outcomes = await asyncio.gather(*(put(bus, last, op=op) for bus, op in zip(buses, ops, strict=True)))
            ((seq, op),) = [(o[1], op) for o, op in zip(outcomes, ops, strict=True) if o[0] is Written]
            assert outcomes.count((Conflict, seq)) == writers - 1
            stored = await buses[0].last(REGISTER)
            assert stored is not None
            assert stored.seq == seq
            assert op.encode() in stored.data
            last = stored.seq
        assert len(await buses[0].history(REGISTER)) == links
    finally:
        for bus in buses:
            await bus.close()


async def test_a_write_whose_answer_was_lost_is_recognised(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as direct, proxied(nats_server.url) as proxy:
        await ensure_board(direct)
        async with await Bus.connect(proxy.url) as bus:
            proxy.hold_answers()
            writing = asyncio.create_task(put(bus, 0))
            await eventually(lambda: direct.last(REGISTER), what="the write has landed")
            proxy.cut()  # the held answer goes with the connection
            proxy.let_answers_pass()
            assert await asyncio.wait_for(writing, 10) == (Written, 1)
            assert len(await direct.history(REGISTER)) == 1


async def test_a_lost_answer_and_a_later_writer_is_a_conflict(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as direct, proxied(nats_server.url) as proxy:
        await ensure_board(direct)
        async with await Bus.connect(proxy.url) as bus:
            proxy.refuse = True
            proxy.cut()
            writing = asyncio.create_task(put(bus, 0))  # it waits in the client for the connection to come back
            assert await put(direct, 0) == (Written, 1)
            proxy.refuse = False
            assert await asyncio.wait_for(writing, 10) == (Conflict, 1)
            assert len(await direct.history(REGISTER)) == 1


async def test_own_record_found_in_place_is_a_write_that_landed(nats_server: NatsServer) -> None:
    """Also when the server's memory of message ids does not help."""
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await bus.publish(REGISTER, record("mine"))
        assert await put(bus, 0, op="mine") == (Written, 1)
        assert await put(bus, 0, op="other") == (Conflict, 1)


async def test_the_same_operation_twice_is_one_record(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        assert await put(bus, 0, op="same") == (Written, 1)
        assert await put(bus, 0, op="same") == (Written, 1)
        assert await bus.last_seq() == 1


async def test_without_a_server_it_is_unknown_after_the_patience(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        nats_server.kill()
        with pytest.raises(NoAnswer) as caught:
            await asyncio.wait_for(
                write(bus, REGISTER, record("op"), op="op", fence=Fence(REGISTER, 0), patience_seconds=0.2), 20
            )
        assert caught.value.landed is None


async def test_a_write_rides_out_a_restart(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        nats_server.kill()
        writing = asyncio.create_task(put(bus, 0))
        nats_server.restart()
        assert await asyncio.wait_for(writing, 20) == (Written, 1)
        assert len(await bus.history(REGISTER)) == 1


async def test_a_full_store_refuses_and_keeps_what_it_has(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus, max_bytes=4_096)
        assert await put(bus, 0) == (Written, 1)
        with pytest.raises(Refused, match="maximum bytes") as caught:
            await write(bus, REGISTER, record("big", 5_000), op="big", fence=Fence(REGISTER, 1))
        assert caught.value.landed is False
        assert caught.value.code
        assert await put(bus, 1) == (Written, 2)


async def test_reads(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await ensure_board(bus)  # again: nothing changes
        assert await bus.last(REGISTER) is None
        assert await bus.read(1) is None
        assert await bus.history(REGISTER) == []
        await put(bus, 0)
        await put(bus, 0, subject="kb.task.t.step.coder.other")
        await put(bus, 1)
        assert [s.seq for s in await bus.history(REGISTER)] == [1, 3]
        assert [s.seq for s in await bus.history(REGISTER, after=1)] == [3]
        stored = await bus.read(2)
        assert stored is not None
        assert stored.subject == "kb.task.t.step.coder.other"
        assert stored.time > 1.6e9
