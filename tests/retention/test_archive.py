"""What has been over for long enough becomes one object and a tombstone, and nothing brings it back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from core import contents
from kokuban.blackboard import Client, KeyInUse
from kokuban.blackboard._archive import ArchiveMissing, past, tombstone_of
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.wire import Fence, Payloads
from kokuban.schemas import Final, Journal, Tombstone, Usage, Vote, subjects
from kokuban.supervisor._archive import Retention
from retention.keeper import BURIED, keeping, on_board
from support.nats_server import NatsServer
from support.team import records
from support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_finished_task_becomes_one_object_and_a_tombstone(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper:
        await keeper.finished("t-1", contents.spec(key="once", tenant="acme"))
        await keeper.up_to_date()
        before = [stored for stored, applied in keeper.applied if stored.subject.startswith("kb.task.t-1.")]
        assert await keeper.sweep() == 1
        assert await on_board(keeper.bus, "t-1") == BURIED
        stone = await tombstone_of(keeper.bus, "t-1")
        assert stone is not None
        assert (stone.state, stone.key, stone.tenant, stone.usage) == (
            "failed",
            "once",
            "acme",
            Usage(10, 5, 1, seconds=1),
        )
        told = await past(keeper.bus, Payloads(keeper.bus), "t-1", stone)
        assert [stored for stored, _ in told.applied] == before  # byte for byte
        assert not any(applied.ignored for _, applied in told.applied)
        assert told.task.steps["fix"].status == "done"
        assert told.final == Final("failed", "it cannot be done")
        live = keeper.board.tasks["t-1"]
        board = Board(slim=True)
        for stored in await records(nats_server.url):
            fold(board, stored)
        assert board.tasks["t-1"] == live  # who reads only the tombstone knows the same
        assert board.spent == keeper.board.spent


async def test_the_result_of_an_archived_task_is_there(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        await keeper.delivered("t-1", {"a.txt": "old"})
        await keeper.up_to_date()
        outcome, task = await board.result("t-1"), await board.status("t-1")
        events = [event async for event in board.watch("t-1")]
        await keeper.sweep()
        assert await on_board(keeper.bus, "t-1") == BURIED
        assert await board.result("t-1") == outcome
        assert outcome.deliverable is not None
        again = await board.status("t-1")
        assert again.tombstone is not None
        assert replace(again, tombstone=None, last_seq=0) == replace(task, last_seq=0)
        told = [event async for event in board.watch("t-1")]
        assert told[:-1] == events
        assert told[-1].event == "archived"
        everything = [event async for event in board.watch(follow=False)]
        assert [event.event for event in everything if event.task == "t-1"] == ["archived"]  # once, without its copy
        half = [event async for event in board.watch("t-1", after=events[2].seq)]
        assert half[:-1] == events[3:]


async def test_a_lost_archive_is_said_and_the_end_is_still_known(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        await keeper.delivered("t-1", {"a.txt": "old"})
        await keeper.sweep()
        stone = await tombstone_of(keeper.bus, "t-1")
        assert stone is not None
        payloads = Payloads(keeper.bus)
        (entry,) = [entry for entry in await payloads.entries() if entry.name == stone.archive]
        assert await payloads.drop(entry)
        with pytest.raises(ArchiveMissing, match="t-1 ended done and was archived"):
            await board.result("t-1")
        task = await board.status("t-1")
        assert task.final is not None
        assert (task.final.state, task.spec.goal) == ("done", "(archived)")
        assert [event.event async for event in board.watch("t-1")] == ["archived"]


async def test_the_key_of_an_archived_task_is_still_taken(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        task = await board.submit("mend it", key="once", checks=["true"])
        await keeper.end(task)
        await keeper.sweep()
        assert await on_board(keeper.bus, task) == BURIED
        assert await board.submit("mend it", key="once", checks=["true"]) == task
        with pytest.raises(KeyInUse, match="once"):
            await board.submit("something else", key="once")
        assert await on_board(keeper.bus, task) == BURIED
        assert (await board.result(task)).state == "failed"


async def test_nothing_that_comes_late_brings_a_task_back(nats_server: NatsServer) -> None:
    """An order that was on its way, a claim, a journal line, a vote, an end, a spec without its condition: whatever the
    server stores under a tombstone counts for nothing, and is swept."""
    async with keeping(nats_server.url) as keeper:
        spec = await keeper.submit("t-1")
        order = await keeper.order("t-1", spec)
        await keeper.end("t-1", Final("cancelled", "ann wants it no more"))
        await keeper.sweep()
        claim = await keeper.claim("t-1", order)  # its register is as if nothing had ever been there
        await keeper.done("t-1", claim, [("change", contents.patch())])
        await keeper.order("t-1", spec)
        await keeper.end("t-1")
        journal, late = subjects.journal("t-1", "coder", "fix"), {"task": "t-1", "step": "fix", "role": "coder"}
        await keeper.write(journal, Journal(), "step.journal", Fence(journal, 0), fence=claim, **late)
        vote = subjects.gate_vote("t-1", "coder", "g", "ann")
        await keeper.write(
            vote, Vote("approve", contents.NOTHING), "gate.vote", Fence(vote, 0), task="t-1", role="coder"
        )
        last = await keeper.bus.last(subjects.spec("t-1"))
        assert last is not None
        subject = subjects.spec("t-1")
        await keeper.write(subject, contents.spec("again"), "task.spec", Fence(subject, last.seq), task="t-1")
        await keeper.up_to_date()
        assert {applied.ignored for _, applied in keeper.applied[-7:]} == {"after the end", "the task exists"}
        assert await keeper.sweep() == 1
        assert await on_board(keeper.bus, "t-1") == BURIED
        task = keeper.board.tasks["t-1"]
        assert task.final is not None
        assert (task.final.state, task.steps, task.registers) == ("cancelled", {}, {})
        assert +keeper.board.running == {}
        with pytest.raises(AssertionError, match="was not stored"):
            await keeper.done("t-1", claim, [("change", contents.patch())])  # the swept claim is no fence


async def test_what_is_written_under_no_task_is_removed(nats_server: NatsServer) -> None:
    """It would stand in the way of a task that comes: a claim wants an untouched register."""
    async with keeping(nats_server.url) as keeper:
        await keeper.claim("t-1", 5)
        await keeper.up_to_date()
        spec = await keeper.submit("t-1")
        await keeper.up_to_date()
        await keeper.sweep()
        assert await on_board(keeper.bus, "t-1") == ["task.spec"]
        claim = await keeper.claim("t-1", await keeper.order("t-1", spec))
        await keeper.done("t-1", claim, [("change", contents.patch())])
        await keeper.up_to_date()
        assert keeper.board.tasks["t-1"].steps["fix"].status == "done"


async def test_age_is_measured_on_the_servers_clock(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url, retention=Retention(finished=timedelta(days=7))) as keeper:
        await keeper.finished("t-1")
        await keeper.submit("t-2")
        keeper.ahead = timedelta(days=7).total_seconds() - 60
        assert await keeper.sweep() == 0
        keeper.ahead += 120
        assert await keeper.sweep() == 1
        assert await on_board(keeper.bus, "t-2") == ["task.spec"]  # it has not ended, however old it is


async def test_a_task_that_others_need_stays(nats_server: NatsServer) -> None:
    """One that another waits for, one below another that runs, and one above."""
    async with keeping(nats_server.url) as keeper:
        await keeper.finished("t-first")
        await keeper.submit("t-next", contents.spec(after=("t-first",)))
        await keeper.submit("t-top")
        await keeper.finished("t-middle", parent="t-top")
        await keeper.finished("t-leaf", parent="t-middle")
        await keeper.finished("t-above")
        await keeper.submit("t-below", parent="t-above")
        await keeper.sweep()
        assert not [task.id for task in keeper.board.tasks.values() if task.tombstone is not None]
        for name in ("t-next", "t-top", "t-below"):
            await keeper.end(name)
        await keeper.up_to_date()
        keeper.ahead = 3_600
        await keeper.sweep()
        assert all(task.tombstone is not None for task in keeper.board.tasks.values())


async def test_a_task_may_wait_for_one_that_is_archived(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper:
        await keeper.delivered("t-first", {"a.txt": "old"})
        await keeper.sweep()
        await keeper.submit("t-next", contents.spec(after=("t-first",)))
        await keeper.up_to_date()
        first = keeper.board.tasks["t-first"]
        assert first.final is not None
        assert (first.final.state, first.dependents) == ("done", ["t-next"])


async def test_a_tombstone_has_its_time_and_the_key_is_free_then(nats_server: NatsServer) -> None:
    soon = Retention(finished=timedelta(0), tombstones=timedelta(seconds=1))
    async with keeping(nats_server.url, retention=soon) as keeper:
        await keeper.finished("t-1")
        await keeper.sweep()
        old = keeper.board.tasks["t-1"]
        with pytest.raises(AssertionError, match="was not stored"):
            await keeper.submit("t-1")

        async def gone() -> bool:
            return await keeper.bus.last(subjects.spec("t-1")) is None

        await eventually(gone, seconds=10)
        seq = await keeper.submit("t-1")
        await keeper.up_to_date()
        new = keeper.board.tasks["t-1"]
        assert (new.spec_seq, new.final, new.tombstone) == (seq, None, None)
        assert keeper.board.spent == {"default": Usage()}
        assert old.tombstone is not None
        await keeper.sweep()
        assert await on_board(keeper.bus, "t-1") == ["task.spec"]


async def test_junk_on_the_specs_subject_does_not_stop_the_archiver(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as keeper:
        await keeper.finished("t-1")
        subject = subjects.spec("t-1")
        last = await keeper.bus.last(subject)
        assert last is not None
        await keeper.write(
            subject, Tombstone("done", "mine", 1, 2, "default"), "task.tombstone", Fence(subject, last.seq)
        )
        await keeper.sweep()
        assert await on_board(keeper.bus, "t-1") == BURIED
        stone = await tombstone_of(keeper.bus, "t-1")
        assert stone is not None
        assert stone.state == "failed"


async def test_a_deposed_leader_buries_nothing(nats_server: NatsServer) -> None:
    """Woken late, the server refuses its tombstone: it deletes nothing, and the one who leads archives the task."""
    async with keeping(nats_server.url) as old:
        seq = await old.finished("t-1")
        await old.up_to_date()
        async with keeping(nats_server.url) as new:
            await old.up_to_date()
            before = await new.bus.last_seq()
            assert await old.sweep() == 0
            assert await new.bus.last_seq() == before
            assert old.board.tasks["t-1"].tombstone is None
            await new.sweep()
            assert await on_board(new.bus, "t-1") == BURIED
            await old.up_to_date()
            assert old.board.tasks["t-1"] == new.board.tasks["t-1"]
            assert new.board.tasks["t-1"].final_seq == seq


async def test_a_leader_that_was_deposed_for_a_while_archives_later(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as old:
        await old.finished("t-1")
        async with keeping(nats_server.url):
            assert await old.sweep() == 0
        await old.folded(await old.leadership.raise_epochs())
        assert await old.sweep() == 0  # not at once
        old.ahead = 60
        assert await old.sweep() == 1
        assert await on_board(old.bus, "t-1") == BURIED


async def test_what_is_buried_under_another_epoch_counts_for_nothing(nats_server: NatsServer) -> None:
    """On a server without credentials anybody can write there. It is swept with the rest, and is in no archive."""
    async with keeping(nats_server.url) as keeper, await Client.connect(nats_server.url) as board:
        spec = await keeper.submit("t-1")
        subject, forged = subjects.buried("t-1"), Tombstone("done", "mine", spec, spec + 1, "default")
        await keeper.write(subject, forged, "task.tombstone", Fence(subject, 0), task="t-1", fence=1)
        await keeper.up_to_date()
        assert keeper.applied[-1][1].ignored == "epoch 1 is not the leader's"
        await keeper.claim("t-1", await keeper.order("t-1", spec))
        await keeper.end("t-1")
        await keeper.sweep()
        assert await on_board(keeper.bus, "t-1") == BURIED
        task = await board.status("t-1")
        assert task.final is not None
        assert task.tombstone is not None
        assert (task.final.state, task.steps["fix"].status) == ("failed", "revoked")


async def test_two_archivers_at_once_are_one(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url) as one, keeping(nats_server.url) as two:
        one.leadership.epochs = two.leadership.epochs
        for number in range(20):
            await one.finished(f"t-{number}")
        await asyncio.gather(one.sweep(), two.sweep())
        await asyncio.gather(one.sweep(), two.sweep())
        for number in range(20):
            assert await on_board(one.bus, f"t-{number}") == BURIED
        assert one.board.tasks == two.board.tasks
