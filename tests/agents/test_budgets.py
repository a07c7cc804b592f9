"""No overspend: the worst case is in the journal before each call, work that is taken up counts what was left open, and
more than the order allows comes from the leader alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kokuban.agents import Worker, _owner
from kokuban.agents._orders import read_order
from kokuban.agents._owner import Fenced
from kokuban.agents._work import StepFailed
from kokuban.agents.models import (
    CallContext,
    Meter,
    ModelCutOff,
    Prices,
    Reply,
    Request,
    RetryPolicy,
    Usage,
    worst_request_tokens,
)
from kokuban.agents.tools import Registry, Tool
from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.wire import Bus, Delivery
from kokuban.schemas import Allotment
from support.at_work import at_once
from support.bench import DONE, OPTIONAL, Bench, Benches, Says, Talk, call, says
from support.desk import Desk, Program, contract, kinds
from support.nats_server import NatsServer
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio

KILLED = ConnectionAbortedError("as if killed")
LOOK = says(call("look", '{"path":"a"}'))
PRICED = Prices("test").declare("test=1,2")  # a dollar a million tokens in, two out


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


async def lines(bench: Benches) -> list[Any]:
    return [msgspec.json.decode(record.body) for record in await bench.desk.journal()]


# ---------------------------------------------------------------------- what was left open


class Dies(Says):
    """Ends as a killed process does: nothing is booked by the one that made the call."""

    async def call(self, request: Request, context: CallContext, progress: object) -> Reply:
        raise SystemExit(9)


async def die_in_a_model_call(b: Bench) -> None:
    b.work.meter = Meter(Dies(DONE))
    with pytest.raises(SystemExit):
        await b.loop().run()


async def test_each_call_that_was_left_open_is_booked_at_its_reservation_once(bench: Benches) -> None:
    reserved = []
    for resumes in (False, True, True):
        await die_in_a_model_call(await bench(resumes=resumes))
        reserved.append((await lines(bench))[-1]["opens"]["reserved_tokens"])
    assert all(tokens > 100 for tokens in reserved)  # with room for the whole reply
    last = await bench(resumes=True)
    assert last.work.ledger.spent.tokens == sum(reserved)
    assert last.work.ledger.spent.model_calls == 3
    assert last.work.ledger.spent.estimated


async def test_taken_up_again_and_again_a_work_cannot_overspend(bench: Benches) -> None:
    allotted, b = 500, await bench(tokens=500)
    ended: StepFailed | None = None
    while ended is None:
        b.work.meter = Meter(Dies(DONE))
        with pytest.raises((SystemExit, StepFailed)) as caught:
            await b.loop().run()
        if isinstance(caught.value, StepFailed):
            ended = caught.value
        else:
            b = await bench(resumes=True, tokens=allotted)
    assert ended.why == "tokens"
    spent = sum(line["opens"]["reserved_tokens"] for line in await lines(bench))
    assert 0 < spent <= allotted
    assert b.work.ledger.spent.tokens == spent


async def test_a_tool_call_counts_when_it_is_opened(bench: Benches) -> None:
    first = await bench(tool_calls=1)

    async def dies(context: Any, arguments: Any) -> str:
        raise SystemExit(9)

    first.tools = Registry([Tool("list", "", OPTIONAL, dies, "read", "read")])
    with pytest.raises(SystemExit):
        await first.run(says(call("list")))
    second = await bench(resumes=True, tool_calls=1)
    with pytest.raises(StepFailed) as caught:
        await second.run(DONE)
    assert caught.value.why == "tool_calls"
    assert second.ran == []


async def test_what_is_played_back_is_paid_for_already(bench: Benches) -> None:
    worst = worst_request_tokens(await Talk().request()) + 100
    tokens = worst + 2 * (worst - 1)  # two turns and, at its worst, a third
    first = await bench(tokens=tokens)
    with pytest.raises(ConnectionAbortedError):
        await first.run(
            says(call("list"), tokens=worst - 1), says(call("look", '{"path":"a"}'), tokens=worst - 1), KILLED
        )
    second = await bench(resumes=True, tokens=tokens)
    with pytest.raises(StepFailed) as caught:
        await second.run(DONE)
    assert caught.value.why == "tokens"
    assert second.model.asked == 0
    assert len(second.talk.seen) == 2  # both turns were played back, though no new one could be afforded
    assert second.ran == []


async def test_under_a_budget_the_claim_opens_nothing_that_is_not_reserved(bench: Benches, tmp_path: Path) -> None:
    worker = Worker(bench.desk.bus, contract(), Program(at_once), home=tmp_path / "w")
    for budgeted in (False, True):
        at = await bench.desk.assignment(await bench.desk.order(step=f"s{budgeted:d}", budgeted=budgeted))
        assert (worker._first_call(at) is None) == budgeted


async def test_a_retry_after_tokens_were_spent_is_reserved_too(bench: Benches) -> None:
    """Each try may cost the worst: none is made for which there is no room beside what the others have cost."""

    class CutsOff(Says):
        async def call(self, request: Request, context: CallContext, progress: Any) -> Reply:
            self.asked += 1
            progress.report(200, 0, None)
            progress.text("hello")
            raise ModelCutOff("cut off")

    b = await bench(tokens=700)
    model = CutsOff(DONE)
    b.work.meter = Meter(model, retry=RetryPolicy(first_wait_seconds=0.001))
    with pytest.raises(StepFailed) as caught:
        await b.loop().run()
    assert caught.value.why == "model"
    reserved = [line["opens"]["reserved_tokens"] for line in await lines(bench)]
    assert reserved == sorted(reserved)
    assert len(reserved) == model.asked > 1
    assert reserved[-1] <= 700
    last = b.work.tape.last()
    assert last is not None
    assert last.usage.tokens <= 700


# ---------------------------------------------------------------------- money


async def test_money_is_reserved_at_worst_case_and_booked_as_it_was(bench: Benches) -> None:
    b = await bench(micros=1_000_000)
    assert await b.run(says(call("list"), tokens=100), DONE, prices=PRICED) == "done"
    assert b.work.ledger.spent.micros == 100 + 10
    opens = [line["opens"] for line in await lines(bench) if line.get("opens", {}).get("kind") == "model"]
    assert all(o["reserved_micros"] == o["reserved_tokens"] + 100 for o in opens)  # output is twice as dear
    settled = [line["settles"]["usage"] for line in await lines(bench) if "settles" in line]
    assert settled[0]["micros"] == 100


@pytest.mark.parametrize("micros", [0, 50])
async def test_no_money_left_is_none(bench: Benches, micros: int) -> None:
    b = await bench(micros=micros)
    with pytest.raises(StepFailed) as caught:
        await b.run(DONE, prices=PRICED)
    assert caught.value.why == "budget"
    assert caught.value.retryable
    assert b.model.asked == 0


async def test_an_unknown_price_is_refused_under_a_money_limit_only(bench: Benches) -> None:
    b = await bench(micros=10**9)
    with pytest.raises(StepFailed, match=r"price of test is not known.*--price 'test=IN,OUT'") as caught:
        await b.run(DONE)
    assert (caught.value.why, caught.value.retryable) == ("budget", False)
    assert b.model.asked == 0
    free = await bench()
    assert await free.run(DONE) == "done"


async def test_a_model_that_costs_nothing_needs_no_money(bench: Benches) -> None:
    b = await bench(micros=0)
    assert await b.run(DONE, prices=Prices("test").declare("test=0,0")) == "done"


async def test_the_price_table_that_held_is_named_in_every_record(bench: Benches, tmp_path: Path) -> None:
    prices = Prices("prices-7").declare("test=1,1")
    worker = Worker(
        bench.desk.bus, contract(), Program(at_once), home=tmp_path / "w", meter=Meter(Says(DONE), prices=prices)
    )
    stored = await bench.desk.bus.read(await bench.desk.order(step="p"))
    assert stored is not None
    at = read_order(Delivery(stored, "", 1), worker.id, clock=SYSTEM, policy=worker._policy)
    assert at is not None
    owner = await worker._claim(at)
    assert owner is not None
    await owner.journal(None, None)
    records = [*await bench.desk.register(step="p"), *await bench.desk.journal(step="p")]
    assert {record.policy for record in records} == {prices.version}


# ---------------------------------------------------------------------- asking for more


async def test_asked_for_more_the_leader_may_grant_it(bench: Benches) -> None:
    b = await bench(steps=1, order={"more": Allotment(steps=5)})

    async def leader() -> None:
        (asked,) = await eventually(lambda: asks(bench))
        assert asked["steps"] == 2
        await bench.desk.grant(bench.fence, Allotment(steps=3))

    async with running(leader()):
        assert await b.run(LOOK, says(call("list")), DONE) == "done"
    assert b.work.ledger.allotment.steps == 3
    (line,) = [line for line in await lines(bench) if "asks" in line]
    assert "opens" not in line
    assert line["settles"]["call"] == 2  # what was open is settled by it


async def asks(bench: Benches) -> list[Any]:
    return [line["asks"] for line in await lines(bench) if "asks" in line]


@pytest.mark.parametrize("answer", ["no", "none"])
async def test_a_no_and_no_answer_end_it_as_before(
    bench: Benches, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_owner, "GRANT_SECONDS", 0.3 if answer == "none" else 10)
    b = await bench(steps=1, order={"more": Allotment(steps=5)})

    async def leader() -> None:
        await eventually(lambda: asks(bench))
        if answer == "no":
            await bench.desk.grant(bench.fence, Allotment(steps=1))

    async with running(leader()):
        with pytest.raises(StepFailed) as caught:
            await b.run(LOOK, DONE)
    assert caught.value.why == "steps"
    assert len(await asks(bench)) == 1


async def test_a_grant_for_another_owner_is_none(bench: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_owner, "GRANT_SECONDS", 0.3)
    b = await bench(steps=1, order={"more": Allotment(steps=5)})

    async def leader() -> None:
        await eventually(lambda: asks(bench))
        await bench.desk.grant(bench.fence - 1, Allotment(steps=5))

    async with running(leader()):
        with pytest.raises(StepFailed):
            await b.run(LOOK, DONE)


async def test_there_is_no_use_in_asking_for_what_may_not_be_had(bench: Benches) -> None:
    for more in (None, Allotment(steps=1), Allotment(steps=0)):
        b = await bench(steps=1, order={"more": more})
        with pytest.raises(StepFailed):
            await b.run(LOOK, DONE)
    assert await asks(bench) == []


async def test_while_it_waits_for_the_answer_it_may_lose_the_step(bench: Benches) -> None:
    b = await bench(steps=1, order={"more": Allotment(steps=5)})

    async def leader() -> None:
        await eventually(lambda: asks(bench))
        await bench.desk.release(bench.fence)
        b.work.tape._owner.moved()

    async with running(leader()), asyncio.timeout(5):
        with pytest.raises(Fenced):
            await b.run(LOOK, DONE)
    assert kinds(await bench.desk.register()) == ["claimed", "released"]


@pytest.mark.parametrize(("short", "given", "more"), [
    ("tokens", {"tokens": 150}, Allotment(tokens=10_000)),
    ("tool_calls", {"tool_calls": 0}, Allotment(tool_calls=3)),
    ("micros", {"micros": 10}, Allotment(micros=10_000)),
])  # fmt: skip
async def test_every_dimension_can_be_asked_for(
    bench: Benches, short: str, given: dict[str, int], more: Allotment
) -> None:
    b = await bench(**given, order={"more": more})

    async def leader() -> None:
        while True:
            known = len(await asks(bench))
            asked = (await eventually(lambda: asks(bench)))[-1]
            assert asked[short] <= getattr(more, short)
            await bench.desk.grant(bench.fence, msgspec.convert({**asked}, Allotment))
            await eventually(lambda known=known: more_than(bench, known), seconds=30)  # type: ignore[misc]

    async with running(leader()):
        assert await b.run(LOOK, DONE, prices=PRICED) == "done"


async def more_than(bench: Benches, known: int) -> bool:
    return len(await asks(bench)) > known


def test_usage_of_models_knows_no_money() -> None:
    assert Prices("test").declare("m=3,15").cost("m", Usage(1_000_000, 0)) == 3_000_000
