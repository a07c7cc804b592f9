"""An effect of unknown outcome whose tool can look: it is done once, and in doubt only when the look says nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents import _acting
from kokuban.agents._tape import InDoubt
from kokuban.agents.models import Call
from kokuban.agents.tools import Observation, Tool, ToolContext, ToolError
from kokuban.blackboard.wire import Bus
from support.bench import DONE, OPTIONAL, Bench, Benches, Talk, call, says
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio
PAY = says(call("transfer", '{"limit":1}'))


class Dies(BaseException): ...


class Bank:
    """Books what it is told, keeps no keys apart, and can be asked what it booked. `dies` is where its caller does."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self.looks = 0
        self.dies = ""
        self.look_fails: Exception | None = None

    async def transfer(self, context: ToolContext, values: Mapping[str, Any]) -> str:
        if self.dies == "before":
            raise Dies
        self.booked.append(context.key)
        if self.dies == "after":
            raise Dies
        if self.dies == "silently":
            raise ConnectionResetError("no answer")
        return "paid"

    async def look(self, context: ToolContext, values: Mapping[str, Any]) -> str | None:
        self.looks += 1
        if self.look_fails is not None:
            raise self.look_fails
        if self.dies == "looking":
            raise Dies
        return "it had been paid" if context.key in self.booked else None

    def tool(self) -> Tool:
        return Tool("transfer", "", OPTIONAL, self.transfer, "write", "other", reconcile=self.look)


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Bank:
    monkeypatch.setattr(_acting, "PAUSE_SECONDS", 0.0)
    return Bank()


async def life(bench: Benches, bank: Bank, *replies: Any, dies: str = "", resumes: bool = True) -> Bench:
    b = await bench(resumes=resumes)
    b.tools.add(bank.tool())
    bank.dies = dies
    if dies in ("before", "after", "looking"):
        with pytest.raises(Dies):
            await b.run(*replies)
    else:
        assert await b.run(*replies) == "done"
    return b


@pytest.mark.parametrize(("dies", "told"), [("after", "it had been paid"), ("before", "paid")])
async def test_who_takes_the_work_up_looks_first(bench: Benches, bank: Bank, dies: str, told: str) -> None:
    await life(bench, bank, PAY, DONE, dies=dies, resumes=False)
    second = await life(bench, bank, DONE)
    assert [(seen.text, seen.ok) for seen in second.talk.seen] == [(told, True)]
    assert (len(bank.booked), bank.looks) == (1, 1)
    assert second.work.tape.doubt is None


async def test_dead_while_looking_or_after_it_the_next_one_looks_again(bench: Benches, bank: Bank) -> None:
    await life(bench, bank, PAY, DONE, dies="before", resumes=False)
    await life(bench, bank, DONE, dies="looking")
    await life(bench, bank, DONE, dies="after")  # it looked, found nothing, and paid
    assert len(bank.booked) == 1

    class DiesWhenTold(Talk):
        async def observe(self, call: Call, observation: Observation) -> None:
            raise Dies

    fourth = await bench(resumes=True)
    fourth.tools.add(bank.tool())
    bank.dies = ""
    with pytest.raises(Dies):
        await fourth.run(DONE, talk=DiesWhenTold())  # what it found is written down, and not settled
    fifth = await life(bench, bank, DONE)
    assert [seen.text for seen in fifth.talk.seen] == ["it had been paid"]
    assert len(bank.booked) == 1
    assert bank.looks == 4


async def test_what_was_reconciled_is_played_back(bench: Benches, bank: Bank) -> None:
    await life(bench, bank, PAY, DONE, dies="after", resumes=False)
    second = await bench(resumes=True)
    second.tools.add(bank.tool())
    bank.dies = ""
    with pytest.raises(Dies):
        await second.run(says(call("list", "{}")), Dies())
    third = await life(bench, bank, DONE)
    assert [seen.text for seen in third.talk.seen] == ["it had been paid", "list ran"]
    assert (len(bank.booked), bank.looks) == (1, 1)
    journal = [one for one in await bench.desk.journal() if b'"reconciled":"done"' in bytes(one.body)]
    assert len(journal) == 1


@pytest.mark.parametrize("error", [ToolError("the bank is closed"), ToolError("busy", transient=True), ValueError("x")])
async def test_without_an_answer_it_is_in_doubt(bench: Benches, bank: Bank, error: Exception) -> None:
    await life(bench, bank, PAY, DONE, dies="after", resumes=False)
    second = await bench(resumes=True)
    second.tools.add(bank.tool())
    bank.dies, bank.look_fails = "", error
    with pytest.raises(InDoubt, match="begun before; whether it was done cannot be told"):
        await second.run(DONE)
    assert bank.looks == (4 if getattr(error, "transient", False) else 1)
    assert second.work.tape.doubt is not None
    assert len(bank.booked) == 1


async def test_no_answer_in_this_life_is_looked_up_at_once(bench: Benches, bank: Bank) -> None:
    b = await life(bench, bank, PAY, DONE, dies="silently", resumes=False)
    assert [seen.text for seen in b.talk.seen] == ["it had been paid"]
    assert len(bank.booked) == 1


async def test_a_bug_before_anything_was_done_is_data(bench: Benches, bank: Bank) -> None:
    async def breaks(context: ToolContext, values: Mapping[str, Any]) -> str:
        raise KeyError("x")

    b = await bench()
    b.tools.add(Tool("transfer", "", OPTIONAL, breaks, "write", "other", reconcile=bank.look))
    await b.run(PAY, DONE)
    assert [(s.text, s.ok) for s in b.talk.seen] == [("transfer failed (KeyError); it was not done", False)]
