"""The worker: one owner a step, nothing taken that cannot be started, nothing written once the step has moved on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from kokuban.agents import Worker, sandbox
from kokuban.agents._output import Output
from kokuban.agents._owner import Fenced, claim
from kokuban.agents._work import StepFailed, Work
from kokuban.blackboard.wire import Bus, Delivery, Fence, Pull, Written, write
from kokuban.schemas import (
    Failed,
    Lease,
    Plan,
    PlanStep,
    seal,
    subjects,
)
from support.at_work import PLAN, at_once, at_work, ended, for_ever, settled
from support.desk import Desk, Program, contract, kinds
from support.nats_server import NatsServer
from support.processes import gone, linux_only
from support.waiting import eventually

pytestmark = pytest.mark.anyio

# ---------------------------------------------------------------------- ownership


async def test_of_two_that_claim_one_order_one_owns_it(nats_server: NatsServer, bus: Bus) -> None:
    desk = await Desk.open(bus)
    for n in range(10):
        step = f"s{n}"
        at = await desk.assignment(await desk.order(step=step))
        async with await Bus.connect(nats_server.url) as other:
            owners = await asyncio.gather(claim(bus, at), claim(other, at))
        (owner,) = [owner for owner in owners if owner is not None]
        assert kinds(await desk.register(step=step)) == ["claimed"]
        assert owner.fence


async def test_many_orders_and_workers_each_step_is_done_once(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    performed: list[str] = []

    async def perform(work: Work) -> list[Output]:
        performed.append(work.assignment.step)
        return [PLAN]

    steps = [f"s{n}" for n in range(20)]
    async with (
        at_work(nats_server.url, tmp_path / "a", perform, concurrency=3),
        at_work(nats_server.url, tmp_path / "b", perform, concurrency=3),
    ):
        for step in steps:
            await desk.order(step=step)
        for step in steps:
            await ended(desk, step)
        await eventually(lambda: settled(desk), what="every order is acknowledged")
    assert sorted(performed) == sorted(steps)
    for step in steps:
        claimed, done = await desk.register(step=step)
        assert (claimed.type, done.type) == ("step.claimed", "step.done")
        assert claimed.worker == done.worker
        assert done.fence
        assert done.attempt == claimed.attempt == 1


async def test_an_owner_that_wakes_late_writes_nothing(bus: Bus) -> None:
    desk = await Desk.open(bus)
    late = await desk.claimed(await desk.order())
    released = await desk.release(late.fence)
    new = await desk.claimed(await desk.order(attempt=2, reg=released))
    await new.done([PLAN], None, "system", None)
    before = await bus.last_seq()
    large = Output("plan", Plan((PlanStep("a", "coder", "x" * 2_000),) * 64))
    for attempt in (
        lambda: late.journal(None, None),
        lambda: late.done([PLAN], None, "system", None),
        lambda: late.done([large] * 4, None, "system", None),
        lambda: late.failed(Failed("bug", "x")),
    ):
        late.lost.clear()  # it has not been told: the server alone stands in its way
        with pytest.raises(Fenced):
            await attempt()
    assert await bus.last_seq() == before
    assert not await late.still_owned()
    assert not await new.still_owned()


@pytest.mark.parametrize("hinted", [True, False])
async def test_a_fenced_owner_stops_and_acknowledges_nothing(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, hinted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by the server's hint, or, when that is lost, by asking the register with every heartbeat."""
    desk = await Desk.open(bus)
    if hinted:
        monkeypatch.setattr("kokuban.agents.worker.HEARTBEAT_SECONDS", 600)
    else:
        monkeypatch.setattr("kokuban.schemas.subjects.HINTS", "kl.elsewhere")
    seen: dict[str, asyncio.Event] = {"began": asyncio.Event(), "stopped": asyncio.Event()}

    async def perform(work: Work) -> list[Output]:
        seen["began"].set()
        try:
            return await for_ever(work)
        finally:
            seen["stopped"].set()

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await asyncio.wait_for(seen["began"].wait(), 10)
        (claimed,) = await desk.register()
        last = await bus.last(subjects.register(desk.task, "coder", "fix"))
        assert last is not None
        await desk.release(last.seq)
        await asyncio.wait_for(seen["stopped"].wait(), 5)
        await desk.order(step="next")  # the slot is free again
        await eventually(lambda: on_register(desk, "next"))
        assert (await desk.pending())[0] == 2  # the first order is neither acknowledged nor given back
    assert kinds(await desk.register()) == ["claimed", "released"]
    assert claimed.worker


async def on_register(desk: Desk, step: str) -> bool:
    return bool(await desk.register(step=step))


@linux_only
async def test_a_fenced_owner_kills_what_its_command_started(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    pids = tmp_path / "pids"

    async def perform(work: Work) -> list[Output]:
        await sandbox.run(
            f"sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; sleep 600", cwd=work.home, home=work.home,
            timeout_seconds=600, asked="none",
        )  # fmt: skip
        return []

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        last = await bus.last(subjects.register(desk.task, "coder", "fix"))
        assert last is not None
        await desk.release(last.seq)
        for pid in pids.read_text().split():
            assert await asyncio.to_thread(gone, int(pid))


async def test_every_heartbeat_says_what_is_held(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: object) -> None:
        await heard.put(message.data)  # type: ignore[attr-defined]

    await bus.subscribe("kl.heartbeat.coder.*", hear)
    async with at_work(nats_server.url, tmp_path / "a", for_ever):
        await desk.order()
        beat = await asyncio.wait_for(heard.get(), 10)
        last = await bus.last(subjects.register(desk.task, "coder", "fix"))
        assert last is not None
        assert msgspec.json.decode(beat) == {"holds": [[desk.task, "fix", last.seq]]}


async def test_the_next_attempt_at_once_on_the_same_worker_is_held_too(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    """The first attempt's clearing up, made slow here, must not take the second one's place among what is held."""
    desk = await Desk.open(bus)
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: object) -> None:
        await heard.put(message.data)  # type: ignore[attr-defined]

    async def perform(work: Work) -> list[Output]:
        if work.assignment.attempt == 2:
            return await for_ever(work)
        for number in range(3_000):
            (work.home / str(number)).touch()
        raise StepFailed("model", "not this time")

    await bus.subscribe("kl.heartbeat.coder.*", hear)
    async with at_work(nats_server.url, tmp_path / "a", perform, concurrency=2):
        await desk.order()
        failed = await ended(desk)
        assert failed.type == "step.failed"
        last = await bus.last(subjects.register(desk.task, "coder", "fix"))
        assert last is not None
        await desk.order(attempt=2, reg=last.seq)

        async def second() -> int | None:
            now = await bus.last(subjects.register(desk.task, "coder", "fix"))
            return now.seq if now is not None and now.seq > last.seq else None

        fence = await eventually(second)
        for _ in range(2):
            held = msgspec.json.decode(await asyncio.wait_for(heard.get(), 10))["holds"]
            while [desk.task, "fix", fence] not in held:
                held = msgspec.json.decode(await asyncio.wait_for(heard.get(), 10))["holds"]


# ---------------------------------------------------------------------- taking work


async def test_no_more_is_taken_than_can_be_started(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    gate = asyncio.Event()

    async def perform(work: Work) -> list[Output]:
        await gate.wait()
        return [PLAN]

    for n in range(5):
        await desk.order(step=f"s{n}")
    async with at_work(nats_server.url, tmp_path / "a", perform, concurrency=2):
        await eventually(lambda: taken(desk, 2))
        async with at_work(nats_server.url, tmp_path / "b", at_once):  # the others do not wait behind a busy worker
            for n in (2, 3, 4):
                assert (await ended(desk, f"s{n}")).type == "step.done"
            await eventually(lambda: taken(desk, 2))  # it has said so, too: who ends before that leaves an order behind
        gate.set()
        for n in (0, 1):
            await ended(desk, f"s{n}")


async def taken(desk: Desk, count: int) -> bool:
    return (await desk.pending())[0] == count


async def nothing(pull: Pull) -> None: ...


async def test_an_order_that_reaches_a_dead_pull_is_delivered_again_at_once(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    """Not after the time that a worker has to acknowledge: nobody has it."""
    desk = await Desk.open(bus)

    async def take(pull: Pull, delivery: Delivery) -> None:
        raise AssertionError("it is dead")

    pull = Pull(bus, "coder", take, nothing)
    await pull.start()
    await pull.request(1)
    pull.die("the connection came back")
    await desk.order()
    await eventually(lambda: pull.outstanding == 0)
    await pull.stop()
    async with at_work(nats_server.url, tmp_path / "a", at_once):
        assert (await ended(desk)).type == "step.done"


async def test_an_order_given_back_is_delivered_again(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    await desk.order()
    taken_by_another: asyncio.Queue[Delivery] = asyncio.Queue()

    async def take(pull: Pull, delivery: Delivery) -> None:
        await taken_by_another.put(delivery)

    pull = Pull(bus, "coder", take, nothing)
    await pull.start()
    await pull.request(1)
    await bus.send((await asyncio.wait_for(taken_by_another.get(), 10)).ack, b"-NAK")
    await pull.stop()
    async with at_work(nats_server.url, tmp_path / "a", at_once):
        assert (await ended(desk)).type == "step.done"


async def test_a_void_order_is_settled_and_not_run(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)
    owner = await desk.claimed(await desk.order())
    await owner.done([PLAN], None, "system", None)
    async with at_work(nats_server.url, tmp_path / "a", for_ever):
        await eventually(lambda: settled_past(desk, owner.assignment.seq))
    assert kinds(await desk.register()) == ["claimed", "done"]


async def settled_past(desk: Desk, seq: int) -> bool:
    return (await desk.pending())[1] >= seq


async def test_an_order_whose_record_is_gone_is_let_go(bus: Bus) -> None:
    desk = await Desk.open(bus)
    at = await desk.assignment(await desk.order())
    await bus.api("STREAM.MSG.DELETE.BOARD", {"seq": at.seq})
    worker = Worker(bus, contract(), Program(at_once), home=Path("unused"))
    assert await worker._claim(at) is None
    assert kinds(await desk.register()) == ["claimed", "failed"]


async def test_an_order_of_a_newer_release_is_left_for_who_can_read_it(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    newer = seal(Lease("x"), id="newer", type="step.order", task=desk.task, step="new", role="coder", version=99)
    first = await put(bus, subjects.work(desk.task, "coder", "new"), newer, "newer")
    shapes = b'{"id":"later","version":7,"type":"step.order.of.the.future","shape":[1,2]}'
    await put(bus, subjects.work(desk.task, "coder", "newest"), shapes, "later")
    async with at_work(nats_server.url, tmp_path / "a", at_once):
        await desk.order()
        await ended(desk)  # the worker has gone past them
        await eventually(lambda: taken(desk, 2))
        await eventually(lambda: come_again(desk), seconds=9)  # nobody else took it: it is offered again soon
    assert (await desk.pending())[1] < first
    assert await desk.register(step="new") == []
    assert await desk.register(step="newest") == []


async def come_again(desk: Desk) -> bool:
    info = await desk.bus.api(f"CONSUMER.INFO.BOARD.{subjects.consumer('coder')}")
    return bool(info["num_redelivered"])


@pytest.mark.parametrize("junk", [b"", b"[" * 100_000, b'{"id":"x"}', b"\xff\xfe", b"null"])
async def test_junk_is_settled_once_and_stops_nobody(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, junk: bytes
) -> None:
    desk = await Desk.open(bus)
    await put(bus, subjects.work(desk.task, "coder", "junk"), junk, "junk")
    elsewhere = await desk.order(step="elsewhere")
    stored = await bus.read(elsewhere)
    assert stored is not None
    await put(bus, subjects.work(desk.task, "coder", "lies"), stored.data, "lies")  # an order for another step
    last = await desk.order()
    async with at_work(nats_server.url, tmp_path / "a", at_once):
        await ended(desk)
        await eventually(lambda: settled_past(desk, last))
    assert await desk.register(step="junk") == []
    assert await desk.register(step="lies") == []


async def put(bus: Bus, subject: str, data: bytes, op: str) -> int:
    stored = await write(bus, subject, data, op=op, fence=Fence(subject, 0))
    assert isinstance(stored, Written)
    return stored.seq


async def test_drained_it_ends_with_its_last_step_and_takes_no_other(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    gate, began = asyncio.Event(), asyncio.Event()

    async def perform(work: Work) -> list[Output]:
        began.set()
        await gate.wait()
        return [PLAN]

    async with await Bus.connect(nats_server.url) as own:
        worker = Worker(own, contract(), Program(perform), home=tmp_path / "a")
        run = asyncio.create_task(worker.run())
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        worker.drain()
        await desk.order(step="later")
        gate.set()
        await asyncio.wait_for(run, 10)
    assert kinds(await desk.register()) == ["claimed", "done"]
    assert await desk.register(step="later") == []
    assert not (tmp_path / "a").exists()


async def test_each_step_has_a_folder_of_its_own_that_goes_with_it(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    homes: list[Path] = []

    async def perform(work: Work) -> list[Output]:
        homes.append(work.home)
        (work.home / "left").write_text("x")
        assert [path.name for path in work.home.iterdir()] == ["left"]
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        for step in ("one", "two"):
            await desk.order(step=step)
            await ended(desk, step)
        await eventually(lambda: not any(home.exists() for home in homes))
    assert len(set(homes)) == 2


async def test_a_server_that_restarts_under_a_step_does_not_lose_it(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    began, gate = asyncio.Event(), asyncio.Event()

    async def perform(work: Work) -> list[Output]:
        began.set()
        await gate.wait()
        await work.workspace()  # reads ride out the outage too
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        await asyncio.wait_for(began.wait(), 10)
        nats_server.kill()
        gate.set()
        nats_server.restart()
        assert (await ended(desk)).type == "step.done"
    assert kinds(await desk.register()) == ["claimed", "done"]
