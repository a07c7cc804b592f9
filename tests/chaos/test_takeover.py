"""Taking over: hot, and whatever the one before was doing when it was stopped."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chaos.decisions import Decisions, Limits, Message
from chaos.several import Member, team_script
from kokuban.agents import Worker
from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles import program_for
from kokuban.blackboard import Client
from kokuban.blackboard.core import Board, Stored
from kokuban.blackboard.wire import Bus, Conflict, Fence, NoAnswer, Written, ensure_board
from kokuban.schemas import encode, subjects
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import Supervisor, service
from kokuban.supervisor._lease import Leadership
from kokuban.supervisor._sweep import Sweeper
from models.chat_server import SSE_HEAD, ChatServer, serving
from support.nats_server import NatsServer
from support.processes import linux_only
from support.team import audited, records, team, types, workspace
from support.waiting import cancelled, eventually, running

pytestmark = [pytest.mark.anyio, linux_only]

NO_LIMITS = Limits({}, {}, 100)


async def test_a_follower_takes_over_without_reading_again(nats_server: NatsServer) -> None:
    """It has folded all along: what it folds between the end of the leader and its own lead is what came meanwhile."""
    async with (
        await Bus.connect(nats_server.url) as one, await Bus.connect(nats_server.url) as two,
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip
        first, second = Supervisor(one), Supervisor(two)
        leading = asyncio.create_task(first.run())
        await asyncio.wait_for(first.leading.wait(), 10)
        for number in range(150):
            await board.submit(f"Task {number}")
        async with running(second.run()):
            await eventually(lambda: len(second.board.tasks) == 150)
            seen: list[int] = []
            fold = second._reader._on_record

            async def count(stored: Stored) -> None:
                seen.append(stored.seq)
                await fold(stored)

            second._reader._on_record = count
            await cancelled(leading)
            before, started = second.board.last_seq, time.monotonic()
            await asyncio.wait_for(second.leading.wait(), 10)
            print(f"led after {time.monotonic() - started:.3f} s, {len(seen)} records folded")
            assert subjects.EPOCH_SHARDS <= len(seen) < subjects.EPOCH_SHARDS + 20
            assert min(seen) > before


async def test_who_gives_up_a_lease_that_it_has_renewed_leaves_nothing_to_wait_for(nats_server: NatsServer) -> None:
    """The records before it live on for their time; they go with it."""
    async with await Bus.connect(nats_server.url) as one, await Bus.connect(nats_server.url) as two:
        await ensure_board(one)
        first, second = Leadership(one, "first", ttl_seconds=9), Leadership(two, "second", ttl_seconds=9)
        await first.acquire()
        for _ in range(3):
            await first._write_lease(first._stored[-1])
        first._seq = first._stored[-1]
        waiting = asyncio.create_task(second.acquire())
        await first.give_up()
        await asyncio.wait_for(waiting, 4)


class Writes:
    """Decisions of a kind that a leader writes: under which epoch, and how it ended. The first can stay unanswered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, *, lose_one: bool = False) -> None:
        self._kind = kind
        self.made: list[tuple[int, type]] = []
        self._lose = lose_one
        self._write = service.write
        monkeypatch.setattr(service, "write", self)

    async def __call__(self, bus: Bus, subject: str, data: bytes, *, op: str, fence: Fence) -> Written | Conflict:
        if self._kind not in subject:
            return await self._write(bus, subject, data, op=op, fence=fence)
        if self._lose:
            self._lose = False
            raise NoAnswer("no answer in time")
        stored = await self._write(bus, subject, data, op=op, fence=fence)
        self.made.append((fence.seq, type(stored)))
        return stored


async def test_what_an_earlier_leadership_decided_does_not_come_under_the_epoch_of_the_next(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end waits for workers to stop, others may have led meanwhile, and what it was decided on may be past."""
    writes, waits, go_on = Writes(monkeypatch, ".final"), asyncio.Event(), asyncio.Event()

    async def confirmed(self: Supervisor, task: object, end: object) -> object:
        waits.set()
        await go_on.wait()
        return end

    monkeypatch.setattr(Supervisor, "_confirmed", confirmed)
    async with await Bus.connect(nats_server.url) as bus, await Client.connect(nats_server.url) as board:
        leader = Supervisor(bus)
        async with running(leader.run()):
            await asyncio.wait_for(leader.leading.wait(), 10)
            old = set(leader._leadership.epochs.values())
            await board.cancel(await board.submit("Fix it"), "no need", person="ann")
            await asyncio.wait_for(waits.wait(), 10)
            await leader._leadership.raise_epochs()
            go_on.set()
            await eventually(lambda: writes.made and writes.made[-1][1] is Written, what="it is decided anew")
            (first, outcome), (second, _) = writes.made
            assert (first in old, outcome, second in old) == (True, Conflict, False)


async def test_a_decision_of_unknown_outcome_is_made_again_under_new_epochs_only(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be on its way, and come after the next one: with new epochs the server refuses it then."""
    writes = Writes(monkeypatch, ".work.", lose_one=True)
    async with await Bus.connect(nats_server.url) as bus, await Client.connect(nats_server.url) as board:
        leader = Supervisor(bus)
        async with running(leader.run()):
            await asyncio.wait_for(leader.leading.wait(), 10)
            old = set(leader._leadership.epochs.values())
            await board.submit("Fix it")
            await eventually(lambda: writes.made)
            ((epoch, outcome),) = writes.made
            assert (epoch in old, outcome) == (False, Written)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    "point",
    [
        "before-write:kb.task.*.work.coder.add", "after-write:kb.task.*.work.coder.add",
        "before-write:kb.task.*.final", "after-write:kb.task.*.final",
    ],
)  # fmt: skip
async def test_a_leader_stopped_in_the_middle_of_a_write(nats_server: NatsServer, tmp_path: Path, point: str) -> None:
    """Another leads and ends the task. The one that wakes then sends what it was about to, or hears that it was stored:
    neither makes a second decision of it."""
    url, model, log = nats_server.url, team_script(tmp_path), tmp_path / "old.log"
    old = Member("supervisor", url, str(tmp_path), model, "lease=1", f"stop={point}", log=log)
    new = Member("supervisor", url, str(tmp_path), model, "lease=1", log=tmp_path / "new.log")
    workers = Member("workers", url, str(tmp_path / "w"), model, log=tmp_path / "w.log")
    async with AsyncExitStack() as stack:
        for member in (old, workers):
            stack.push_async_callback(member.kill)
            await member.start()
        board = await stack.enter_async_context(await Client.connect(url))
        await eventually(lambda: old.ready and workers.ready)
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"))
        await eventually(lambda: is_stopped(old.pid), seconds=30, what="it stops itself")
        stack.push_async_callback(new.kill)
        await new.start()
        await eventually(lambda: "leading" in (tmp_path / "new.log").read_text(), what="the other leads")
        assert (await board.result(task, timeout=30)).state == "done"
        old.send(signal.SIGCONT)
        await eventually(lambda: "following" in log.read_text(), what="it finds that it leads no more")
        again = await board.submit("Fix it again", workspace=workspace(tmp_path / "ws"))
        assert (await board.result(again, timeout=30)).state == "done"
    stored = await records(url)
    found = Decisions(NO_LIMITS).read([Message(*one) for one in stored])
    assert found.wrong == []
    assert found.ends == {"done": 2}
    assert len(found.leaders) >= 2
    folded, applied = audited(stored)
    assert folded.ignored == 0
    orders = Counter(
        (did.record.task, did.record.step) for did in applied if did.record and did.record.type == "step.order"
    )
    assert set(orders.values()) == {1}


class Mute(Bus):
    """A connection whose hints, and heartbeats with them, are lost on the way; all else arrives."""

    async def hint(self, subject: str, data: bytes) -> None:
        self.lost = getattr(self, "lost", 0) + 1


async def test_an_owner_whose_heartbeats_are_lost_stops_when_its_step_is_taken_back(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Its connection to the stream lives, so it learns of it there: it writes nothing more, and gives its call up."""
    asked, dropped = asyncio.Event(), asyncio.Event()

    async def never(writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.write(SSE_HEAD)
        try:
            while True:
                writer.write(b": still thinking\n\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        finally:
            dropped.set()

    url, model, coder = nats_server.url, team_script(tmp_path), builtin_crew()["coder"]
    others = [role for role in builtin_crew() if role != "coder"]
    chat: ChatServer
    async with (
        serving(never, never) as chat,
        team(url, model, tmp_path / "team", roles=others, silence_seconds=2.0),
        await Client.connect(url) as board,
        await Mute.connect(url) as mute,
        await Bus.connect(url) as bus,
    ):
        deaf = Meter(open_model("openai-compatible:m", base_url=chat.url, env={}))
        silent = Worker(mute, coder, program_for("coder"), home=tmp_path / "silent", meter=deaf, concurrency=1)
        async with running(silent.run()):
            task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"))
            await asyncio.wait_for(asked.wait(), 20)
            silent.drain()  # it takes no other
            meter = Meter(open_model(model, env={}))
            heard = Worker(bus, coder, program_for("coder"), home=tmp_path / "heard", meter=meter, concurrency=2)
            async with running(heard.run()):
                outcome = await board.result(task, timeout=40)
            assert outcome.state == "done", outcome.reason
            await asyncio.wait_for(dropped.wait(), 5)
    assert getattr(mute, "lost", 0) > 1
    folded, applied = audited(await records(url))
    assert folded.ignored == 0
    assert types(applied)["step.released"] == 1
    released = next(n for n, did in enumerate(applied) if did.record and did.record.type == "step.released")
    assert {did.record.worker for did in applied[released:] if did.record} >= {heard.id}
    assert silent.id not in {did.record.worker for did in applied[released:] if did.record}


async def test_the_heartbeat_of_a_past_owner_holds_nothing(nats_server: NatsServer) -> None:
    """Who woke late goes on to say that the step is its own: under an old fence, which keeps nobody from taking it."""
    async with await Bus.connect(nats_server.url) as bus:
        sweeper = Sweeper(bus, Board(), silence_seconds=5)
        long_ago = time.monotonic() - 60
        sweeper._heard = {("t", "past"): (7, long_ago), ("t", "present"): (8, long_ago)}
        async with running(sweeper.listen()):

            async def heard() -> bool:
                holds = [("t", "past", 6), ("t", "present", 8)]
                await bus.hint(subjects.heartbeat("coder", "w"), encode({"holds": holds}))
                return sweeper._heard[("t", "present")][1] > long_ago

            await eventually(heard)
        assert sweeper._heard[("t", "past")] == (7, long_ago)
