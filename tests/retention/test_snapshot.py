"""A restart goes on from a snapshot, and never believes one that the log contradicts."""

from __future__ import annotations

import asyncio
import functools
import secrets
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from kokuban.blackboard.core import Board, fold, snapshot
from kokuban.blackboard.wire import Bus, Payloads
from kokuban.schemas import BoardLimits, Final, Snapshot, open_record, seal, subjects
from kokuban.supervisor import Supervisor
from kokuban.supervisor._snapshot import SnapshotWrong, this_release
from retention.keeper import Keeper, keeping
from support.nats_server import NatsServer
from support.team import records
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def leading(url: str, every: int = 20) -> AsyncIterator[Supervisor]:
    """A supervisor with hardly anything to do but to lead."""
    async with await Bus.connect(url) as bus:
        supervisor = Supervisor(bus, snapshot_every=every, lease_seconds=1)
        async with running(supervisor.run()):
            await asyncio.wait_for(supervisor.leading.wait(), 10)
            yield supervisor


async def pointers(bus: Bus) -> list[Snapshot]:
    found = await bus.history(subjects.SNAPSHOT)
    return [msgspec.json.decode(open_record(stored.data).body, type=Snapshot) for stored in found]


async def fill(url: str, tasks: int = 12) -> None:
    """Some tasks that are over and one that is under way."""
    async with keeping(url) as keeper:
        for number in range(tasks):
            await keeper.finished(f"t-{number}")
        await keeper.claim("t-open", await keeper.order("t-open", await keeper.submit("t-open")))


async def snapshot_of(url: str) -> Snapshot:
    """Fill a board and have it taken."""
    await fill(url)
    async with await Bus.connect(url) as bus, leading(url):
        return (await eventually(lambda: pointers(bus)))[-1]


async def from_the_log(url: str) -> Board:
    board = Board(slim=True)
    for stored in await records(url):
        fold(board, stored)
    return board


async def test_a_restart_goes_on_from_a_snapshot(nats_server: NatsServer) -> None:
    taken = await snapshot_of(nats_server.url)
    reads: list[int] = []
    async with await Bus.connect(nats_server.url) as bus:
        supervisor = Supervisor(bus, lease_seconds=1)
        on_record = supervisor._reader._on_record

        async def note(stored: Any) -> None:
            reads.append(stored.seq)
            await on_record(stored)

        supervisor._reader._on_record = note
        async with running(supervisor.run()):
            await asyncio.wait_for(supervisor.leading.wait(), 10)
            await eventually(lambda: supervisor._upkeep._check and supervisor._upkeep._check.agreed.is_set())
            assert reads[0] > taken.position  # nothing before it was read again
            assert snapshot.differences(supervisor.board, await from_the_log(nats_server.url)) == []
            step = supervisor.board.under_way[("t-open", "fix")]
            assert step is supervisor.board.tasks["t-open"].steps["fix"]
            assert supervisor.board.running["coder"] == 1
            assert ("t-open", "fix") in supervisor._sweeper._heard  # it is watched: silence takes it back


async def test_old_snapshots_are_removed(nats_server: NatsServer) -> None:
    async with (
        keeping(nats_server.url) as keeper,
        leading(nats_server.url) as leader,
        await Bus.connect(nats_server.url) as bus,
    ):
        keeper.leadership.epochs = dict(leader.board.epochs)
        last = 0
        for number in range(6):
            for part in range(6):
                await keeper.finished(f"t-{number}-{part}")
            last = await eventually(functools.partial(newer, bus, last))
        assert len(await pointers(bus)) <= 3


async def newer(bus: Bus, position: int) -> int | None:
    """Where the newest snapshot stands, once it is past this."""
    found = await pointers(bus)
    return found[-1].position if found and found[-1].position > position else None


async def point(keeper: Keeper, payload: bytes, **fields: Any) -> None:
    """Write a pointer to this content, as a supervisor would."""
    last = await keeper.bus.last(subjects.SNAPSHOT)
    assert last is not None
    body = msgspec.json.decode(open_record(last.data).body, type=Snapshot)
    name = await Payloads(keeper.bus).put(payload)
    forged = msgspec.structs.replace(body, payload=name, **fields)
    op = secrets.token_hex(8)
    ack = await keeper.bus.publish(subjects.SNAPSHOT, seal(forged, id=op, type="ctl.snapshot"))
    assert ack.code == 0


def unreadable(board: Board) -> bytes:
    return zlib.compress(b'{"not":"a board"}')


def cut(board: Board) -> bytes:
    return zlib.compress(snapshot.dump(board))[:-20]


def whole(board: Board) -> bytes:
    return zlib.compress(snapshot.dump(board))


WRONG: dict[str, tuple[Callable[[Board], bytes], dict[str, Any]]] = {
    "no board": (unreadable, {}),
    "cut off": (cut, {}),
    "another release": (whole, {"format": "0" * 64}),
    "ahead of the log": (whole, {"position": 1_000_000}),
    "another record there": (whole, {"record": "not-the-one"}),
    "another position": (whole, {"position": 17}),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_snapshot_that_does_not_fit_is_passed_over(nats_server: NatsServer, name: str) -> None:
    """The newest is wrong: the one before it is taken, or the log is read from its beginning."""
    make, fields = WRONG[name]
    taken = await snapshot_of(nats_server.url)
    async with keeping(nats_server.url) as keeper:
        board = snapshot.load(zlib.decompress(await Payloads(keeper.bus).get(taken.payload)))
        board.tasks["t-0"].final = Final("done", "forged")
        await point(keeper, make(board), **fields)
    async with leading(nats_server.url) as leader:
        final = leader.board.tasks["t-0"].final
        assert final is not None
        assert final.state == "failed"
        assert snapshot.differences(leader.board, await from_the_log(nats_server.url)) == []


async def test_a_lost_payload_is_passed_over(nats_server: NatsServer) -> None:
    taken = await snapshot_of(nats_server.url)
    async with await Bus.connect(nats_server.url) as bus:
        payloads = Payloads(bus)
        (entry,) = [entry for entry in await payloads.entries() if entry.name == taken.payload]
        assert await payloads.drop(entry)
    async with leading(nats_server.url) as leader:
        assert leader._upkeep._check is None
        assert len(leader.board.tasks) == 13


def done(board: Board) -> None:
    board.tasks["t-open"].final, board.tasks["t-open"].final_seq = Final("done", "forged"), board.last_seq


def lost(board: Board) -> None:
    del board.tasks["t-open"]


def owned(board: Board) -> None:
    board.tasks["t-open"].steps["fix"].worker = "mallory"


def unlimited(board: Board) -> None:
    board.limits = BoardLimits({"coder": 10_000})


@pytest.mark.parametrize("forge", [done, lost, owned, unlimited])
async def test_a_forged_snapshot_is_found_out_and_thrown_away(
    nats_server: NatsServer, forge: Callable[[Board], None]
) -> None:
    """Everything about it fits, only what it says is not so: the supervisor ends, and the next starts from the log."""
    taken = await snapshot_of(nats_server.url)
    async with keeping(nats_server.url) as keeper:
        board = snapshot.load(zlib.decompress(await Payloads(keeper.bus).get(taken.payload)))
        forge(board)
        await point(keeper, whole(board))
    async with await Bus.connect(nats_server.url) as bus:
        supervisor = Supervisor(bus, lease_seconds=1)
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(supervisor.run(), 20)
        assert caught.group_contains(SnapshotWrong)
        assert await pointers(bus) == []
    async with leading(nats_server.url) as leader:
        assert leader.board.tasks["t-open"].final is None
        assert leader.board.tasks["t-open"].steps["fix"].worker == "w-1"


def test_the_release_is_told_by_its_code() -> None:
    assert len(this_release()) == 64
    assert this_release.__wrapped__() == this_release()
