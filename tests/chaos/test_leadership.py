"""One supervisor leads; whoever stops leading decides nothing more."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

import pytest

from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, Conflict, Fence, Written, ensure_board, write
from kokuban.schemas import Epoch, Final, WorkOrder, seal, subjects
from kokuban.supervisor import Supervisor
from kokuban.supervisor._lease import Leadership
from support.nats_server import NatsServer
from support.tcp_proxy import proxied
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, audited, edit, plan, records, script, team, workspace
from support.waiting import cancelled, eventually, running

pytestmark = pytest.mark.anyio


async def test_the_lease_is_held_by_one_and_expires_by_the_servers_clock(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        first, second = (Leadership(bus, name, ttl_seconds=1) for name in ("first", "second"))
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        keeping = asyncio.create_task(first.keep())
        async with running():
            held_until = asyncio.get_running_loop().time() + 2.5
            await eventually(lambda: asyncio.get_running_loop().time() > held_until)
            assert not waiting.done()
            assert not keeping.done()
        await cancelled(keeping)  # it dies without a word
        await asyncio.wait_for(waiting, 5)


async def test_one_told_to_end_as_its_renewal_is_answered_ends(nats_server: NatsServer) -> None:
    class Told(Leadership):
        async def _write_lease(self, after: int) -> Written | Conflict:
            stored = await super()._write_lease(after)
            written.set()
            return stored

    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        lease, written = Told(bus, "first", ttl_seconds=1), asyncio.Event()
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        written.clear()
        await written.wait()
        keeping.cancel()
        _, left = await asyncio.wait({keeping}, timeout=3)
        keeping.cancel()
        assert not left, "it went on renewing for ever"


async def test_a_leader_that_ends_lets_the_next_lead_at_once(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as one, await Bus.connect(nats_server.url) as two:
        first, second = Supervisor(one), Supervisor(two)
        leading = asyncio.create_task(first.run())
        await asyncio.wait_for(first.leading.wait(), 10)
        async with running(second.run()):
            await cancelled(leading)
            assert not first.leading.is_set()
            lease = await two.last(subjects.LEASE)
            assert lease is None or first.id.encode() not in lease.data
            await asyncio.wait_for(second.leading.wait(), 5)


async def test_a_leader_cut_off_is_replaced_within_5_s_and_decides_nothing_late(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    model = script(
        tmp_path / "s.json", plan(("fix", "coder", ())), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE),
        edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE),
    )  # fmt: skip
    async with proxied(nats_server.url) as proxy, await Bus.connect(proxy.url) as cut_off:
        old = Supervisor(cut_off)
        async with running(old.run()):
            await asyncio.wait_for(old.leading.wait(), 10)
            proxy.hold_answers()  # as if stopped: it sends, and hears nothing
            started = time.monotonic()
            async with team(nats_server.url, model, tmp_path / "home") as (new,):
                await asyncio.wait_for(new.leading.wait(), 10)
                assert time.monotonic() - started < 5
                async with await Client.connect(nats_server.url) as board:
                    task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
                    proxy.let_answers_pass()  # it wakes late, with all that it missed, while the task runs
                    outcome = await board.result(task, timeout=30)
                assert outcome.state == "done"
                await eventually(lambda: not old.leading.is_set())
                assert new.leading.is_set()
    board_now, applied = audited(await records(nats_server.url))
    deciders = {did.record.worker for did in applied if did.record and did.record.type in ("step.order", "task.final")}
    assert deciders == {new.id}
    assert board_now.ignored == 0


async def test_the_server_refuses_what_a_deposed_leader_decides(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        first, second = Leadership(bus, "first"), Leadership(bus, "second")
        await first.raise_epochs()
        await second.raise_epochs()
        task = "t-1"
        shard = subjects.shard(task)

        async def decide(leader: Leadership, kind: str) -> Written | Conflict:
            op, epoch = secrets.token_hex(8), leader.epochs[shard]
            body = Final("failed", "x") if kind == "task.final" else WorkOrder(0, 1, "g", ("plan",))
            subject = subjects.final(task) if kind == "task.final" else subjects.work(task, "planner", "plan")
            data = seal(body, id=op, type=kind, task=task, fence=epoch)
            return await write(bus, subject, data, op=op, fence=Fence(subjects.epoch(shard), epoch))

        before = await bus.last_seq()
        for kind in ("step.order", "task.final"):
            assert isinstance(await decide(first, kind), Conflict)
        assert await bus.last_seq() == before
        for kind in ("step.order", "task.final"):
            assert isinstance(await decide(second, kind), Written)


async def test_the_lease_is_kept_while_taking_over_takes_long(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk, longer than the lease lives: nobody else may lead meanwhile, and it does come to lead."""
    go_on, raise_epochs = asyncio.Event(), Leadership.raise_epochs

    async def slowly(self: Leadership) -> int:
        await go_on.wait()
        return await raise_epochs(self)

    monkeypatch.setattr(Leadership, "raise_epochs", slowly)
    async with await Bus.connect(nats_server.url) as one, await Bus.connect(nats_server.url) as two:
        await ensure_board(two)
        slow = Supervisor(one, lease_seconds=1)
        async with running(slow.run()):
            await eventually(lambda: two.last(subjects.LEASE))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Leadership(two, "other").acquire(), 2.5)
            go_on.set()
            await asyncio.wait_for(slow.leading.wait(), 5)


async def test_two_that_raise_epochs_at_once_end_with_one_in_force(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        leaders = [Leadership(bus, f"s{n}") for n in range(3)]
        await asyncio.gather(*(leader.raise_epochs() for leader in leaders))
        for shard in range(subjects.EPOCH_SHARDS):
            last = await bus.last(subjects.epoch(shard))
            assert last is not None
            assert [leader.epochs[shard] == last.seq for leader in leaders].count(True) == 1


async def test_a_decision_refused_by_the_epoch_ends_the_leadership_and_it_comes_back(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), edit(None, FIX_ADD), edit(None, FIX_DOUBLE))
    async with (
        await Client.connect(nats_server.url) as board,
        await Bus.connect(nats_server.url) as bus,
        team(nats_server.url, model, tmp_path / "home") as (leader,),
    ):
        await asyncio.wait_for(leader.leading.wait(), 10)
        for shard in range(subjects.EPOCH_SHARDS):  # somebody else has come and gone
            last = await bus.last(subjects.epoch(shard))
            op = secrets.token_hex(8)
            data = seal(Epoch("ghost", shard), id=op, type="ctl.epoch")
            assert last is not None
            fence = Fence(subjects.epoch(shard), last.seq)
            await write(bus, subjects.epoch(shard), data, op=op, fence=fence)
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        assert (await board.result(task, timeout=30)).state == "done"
    _, applied = audited(await records(nats_server.url))
    assert all(not did.ignored for did in applied)


async def test_a_reviving_supervisor_does_not_take_back_what_is_held(nats_server: NatsServer) -> None:
    """Stopped for longer than the silence that it allows, it has heard nobody: that is not their silence."""
    from kokuban.blackboard.core import Board
    from kokuban.supervisor import _sweep

    async with await Bus.connect(nats_server.url) as bus:
        sweeper = _sweep.Sweeper(bus, Board())
        sweeper._heard = {("t", "s"): (7, time.monotonic())}
        assert await sweeper.sweep() == []
        long_ago = time.monotonic() - _sweep.SILENCE_SECONDS - 60
        sweeper._heard = {("t", "s"): (7, long_ago)}
        sweeper._swept = long_ago
        assert await sweeper.sweep() == []
        assert sweeper._heard[("t", "s")][1] > long_ago
