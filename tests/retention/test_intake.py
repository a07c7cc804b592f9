"""A store that fills up takes no new tasks, ends what it has taken, makes room, and takes tasks again: by itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kokuban.blackboard import Client, StoreFull
from kokuban.blackboard.core import Board
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.schemas import Intake, open_record, subjects
from kokuban.supervisor._intake import Gauge
from retention.keeper import Keeper, keeping
from support.nats_server import NatsServer
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, audited, edit, finish, plan, records, script, team, workspace
from support.waiting import eventually

pytestmark = pytest.mark.anyio

STORE_BYTES = 900_000


async def is_open(bus: Bus) -> bool:
    last = await bus.last(subjects.INTAKE)
    return last is None or msgspec.json.decode(open_record(last.data).body, type=Intake).open


async def size(bus: Bus) -> int:
    return int((await bus.api(f"STREAM.INFO.{subjects.BOARD}"))["state"]["bytes"])


async def submit_for_ever(board: Client, source: Path, accepted: list[str]) -> None:
    """As fast as tasks are worked off: the store fills with work that is done, not with waiting."""
    while True:
        accepted.append(await board.submit(f"Fix {len(accepted)}", workspace=source, checks=[CHECK]))
        if len(accepted) % 8 == 0:
            await board.result(accepted[-1], timeout=60)


async def test_a_full_store_recovers_by_itself(nats_server: NatsServer, tmp_path: Path) -> None:
    fixing = [
        {**edit(None, FIX_ADD), "when": {"role": "coder", "turn": 1}, "times": None},
        {**edit(None, FIX_DOUBLE), "when": {"role": "coder", "turn": 2}, "times": None},
        {**finish(None), "times": None},
    ]
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *fixing)
    source = workspace(tmp_path / "ws")
    async with await Bus.connect(nats_server.url) as bus, await Client.connect(nats_server.url) as board:
        await bus.api(f"STREAM.DELETE.{subjects.BOARD}")
        await ensure_board(bus, max_bytes=STORE_BYTES)
        async with team(nats_server.url, model, tmp_path / "home", workers=2):
            accepted: list[str] = []
            with pytest.raises(StoreFull, match=r"full \([0-9,]+ of 900,000 bytes\).* nothing was written"):
                await submit_for_ever(board, source, accepted)
            assert await size(bus) < STORE_BYTES
            outcomes = [await board.result(task, timeout=90) for task in accepted]
            assert {outcome.state for outcome in outcomes} <= {"done", "refused"}
            refused = [outcome for outcome in outcomes if outcome.state == "refused"]
            assert len(refused) < len(accepted) / 2  # those that were on their way while intake was closed
            await eventually(lambda: is_open(bus), seconds=60)
            assert await size(bus) < 0.7 * STORE_BYTES
            again = await board.submit("Fix it again", workspace=source, checks=[CHECK])
            assert (await board.result(again, timeout=60)).state == "done"
            assert (await board.result(accepted[0])).state == "done"  # from its archive
    folded, _ = audited(await records(nats_server.url))
    assert all(task.final is not None for task in folded.tasks.values())


async def gauge(keeper: Keeper) -> Gauge:
    found = Gauge(keeper.bus, keeper.board, "keeper", keeper.folded)
    await keeper.up_to_date()
    return found


async def fill(keeper: Keeper, until: int) -> None:
    number = len(keeper.board.tasks)
    while await size(keeper.bus) < until:
        number += 1
        await keeper.finished(f"t-{number}", text="x" * 500)
    await keeper.up_to_date()


async def test_it_closes_at_the_high_water_mark_and_opens_below_the_low_one(nats_server: NatsServer) -> None:
    most = 400_000
    async with keeping(nats_server.url, max_bytes=most) as keeper:
        level = await gauge(keeper)
        await fill(keeper, int(0.78 * most))
        await level.look()
        assert not level.pressed
        await fill(keeper, int(0.80 * most))
        await level.look()
        assert level.pressed
        assert keeper.board.intake is not None
        assert (keeper.board.intake.limit_bytes, keeper.board.intake.used_bytes >= 0.8 * most) == (most, True)
        before = await keeper.bus.last_seq()
        await level.look()
        assert await keeper.bus.last_seq() == before  # it is said once
        names = [name for name, task in keeper.board.tasks.items() if task.tombstone is None]
        while await size(keeper.bus) >= 0.72 * most:
            await keeper.archiver._archive_one(names.pop())
        await level.look()
        assert level.pressed
        while await size(keeper.bus) >= 0.70 * most:
            await keeper.archiver._archive_one(names.pop())
        await level.look()
        assert not level.pressed


async def test_a_store_without_a_limit_never_closes(nats_server: NatsServer) -> None:
    async with keeping(nats_server.url, max_bytes=-1) as keeper:
        await keeper.finished("t-1")
        level = await gauge(keeper)
        await level.look()
        assert await keeper.bus.last(subjects.INTAKE) is None


def test_many_new_records_call_for_a_look() -> None:
    level = Gauge(None, Board(), "keeper", None)  # type: ignore[arg-type]
    level._limit = 1_000_000
    for number in range(9):
        assert not level._full.is_set(), number
        level.saw(_stored(1_000))
    assert level._full.is_set()


def _stored(size_bytes: int) -> object:
    from kokuban.blackboard.core import Stored

    return Stored(1, "kb.task.t-1.spec", 0.0, b"x" * size_bytes)
