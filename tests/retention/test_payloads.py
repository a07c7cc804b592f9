"""Content outside the board is removed when nothing names it any more, and never while something does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from core import contents
from kokuban.blackboard import Client
from kokuban.blackboard._archive import tombstone_of
from kokuban.blackboard.wire import Payloads
from kokuban.supervisor._archive import Retention
from kokuban.supervisor._garbage import PayloadSweep
from retention.keeper import Keeper, keeping, on_board
from support.nats_server import NatsServer
from support.waiting import eventually

pytestmark = pytest.mark.anyio

BRIEF = Retention(finished=timedelta(0), tombstones=timedelta(seconds=1))


async def stored(keeper: Keeper) -> set[str]:
    return {entry.name for entry in await Payloads(keeper.bus).entries()}


async def forgotten(keeper: Keeper, task: str) -> None:
    """Wait until the server has taken the tombstone away, and fold something that comes after."""

    async def gone() -> bool:
        return await on_board(keeper.bus, task) == []

    await eventually(gone, seconds=10)
    await keeper.finished("t-after")
    await keeper.sweep()


async def test_content_goes_with_the_last_who_names_it(nats_server: NatsServer) -> None:
    """Two tasks share a workspace. It stays with the live one, with the archived one, and goes with the tombstone."""
    async with keeping(nats_server.url, retention=BRIEF) as keeper:
        sweep = PayloadSweep(keeper.bus, keeper.board, timedelta(0))
        loose = await Payloads(keeper.bus).put(b"nobody ever named this")
        shared = await keeper.delivered("t-1", {"a.txt": "old"})
        await keeper.submit("t-2", contents.spec(workspace=shared))
        await keeper.sweep()
        stone = await tombstone_of(keeper.bus, "t-1")
        assert stone is not None
        assert stone.archive is not None
        later = keeper.time + 60
        assert await sweep.sweep(later) == 1
        assert await stored(keeper) == {shared, stone.archive}
        assert loose not in await stored(keeper)
        await forgotten(keeper, "t-1")
        assert await sweep.sweep(later + 60) == 1
        assert stone.archive not in await stored(keeper)
        assert shared in await stored(keeper)  # the live one names it
        await keeper.end("t-2")
        await keeper.sweep()
        assert await sweep.sweep(later + 60) == 0
        assert shared in await stored(keeper)  # its archive names it


async def test_young_content_stays(nats_server: NatsServer) -> None:
    """Between its storing and the record that names it."""
    async with keeping(nats_server.url) as keeper:
        name = await Payloads(keeper.bus).put(b"about to be named")
        sweep = PayloadSweep(keeper.bus, keeper.board, timedelta(hours=1))
        (entry,) = await Payloads(keeper.bus).entries()
        assert await sweep.sweep(entry.time + 3_500) == 0
        assert await Payloads(keeper.bus).get(name) == b"about to be named"
        assert await sweep.sweep(entry.time + 3_700) == 1
        assert await stored(keeper) == set()


async def test_putting_again_makes_old_content_young(nats_server: NatsServer) -> None:
    """Somebody wants it anew, and the sweeper has already seen it as old: the removal fails, the content stays."""
    async with keeping(nats_server.url) as keeper:
        payloads = Payloads(keeper.bus)
        name = await payloads.put(b"wanted again")
        (seen,) = await payloads.entries()
        assert await Payloads(keeper.bus).put(b"wanted again") == name
        (now,) = await payloads.entries()
        assert now.seq > seen.seq
        assert not await payloads.drop(seen)
        assert await payloads.get(name) == b"wanted again"
        assert await payloads.drop(now)
        assert not await payloads.drop(now)
        assert await Payloads(keeper.bus).put(b"wanted again") == name  # and stored anew
        assert await payloads.get(name) == b"wanted again"


async def test_no_payload_is_removed_while_an_archive_cannot_be_read(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper:
        sweep = PayloadSweep(keeper.bus, keeper.board, timedelta(0))
        shared = await keeper.delivered("t-1", {"a.txt": "old"})
        await keeper.sweep()
        stone = await tombstone_of(keeper.bus, "t-1")
        assert stone is not None
        payloads = Payloads(keeper.bus)
        (archive,) = [entry for entry in await payloads.entries() if entry.name == stone.archive]
        await payloads.drop(archive)
        assert await sweep.sweep(keeper.time + 60) == 0
        assert shared in await stored(keeper)


async def test_a_snapshot_and_a_submitted_workspace_are_named_by_their_records(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        task = await board.submit("mend it", checks=["true"])
        await keeper.up_to_date()
        sweep = PayloadSweep(keeper.bus, keeper.board, timedelta(0))
        assert await sweep.sweep(keeper.time + 60) == 0
        assert {keeper.board.tasks[task].spec.workspace} == await stored(keeper)
