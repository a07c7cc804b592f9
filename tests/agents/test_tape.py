"""The tape: what is settled is never run again, what is in doubt is never simply repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kokuban.agents._owner import Owner
from kokuban.agents._tape import InDoubt, Tape, describe
from kokuban.blackboard.wire import Bus
from kokuban.schemas import Opens, Usage
from support.desk import Desk, kinds
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio

MODEL, READ = ("model", ""), ("tool", "read_file")


class Life:
    """One attempt at a step, and what it really ran."""

    def __init__(self, tape: Tape, owner: Owner) -> None:
        self.tape, self.owner = tape, owner
        self.ran: list[str] = []

    async def call(
        self, what: str, kind: tuple[str, str] = MODEL, *, key: str = "", repeatable: bool = True, dies: bool = False,
        keyed: bool = False,
    ) -> str:  # fmt: skip
        async def perform() -> tuple[object, Usage]:
            self.ran.append(what)
            if dies:
                raise ConnectionAbortedError("as if killed")
            return {"answer": what}, Usage(input_tokens=10, model_calls=1)

        played = await self.tape.call(
            lambda n: Opens(n, kind[0], kind[1], describe(what), key),  # type: ignore[arg-type]
            perform,
            repeatable=repeatable,
            keyed=keyed,
        )
        assert played.replayed == (what not in self.ran)
        answer: str = played.result["answer"]
        return answer


@pytest.fixture
async def lives(nats_server: NatsServer) -> AsyncIterator[Callable[[], Awaitable[Life]]]:
    """Each call is the next attempt at the same step; the one before is taken back first."""
    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus)
        before: list[Owner] = []

        async def begin() -> Life:
            reg = await desk.release(before[-1].fence) if before else 0
            attempt = len(before) + 1
            first = Opens(1, "model") if attempt == 1 else None
            owner = await desk.claimed(
                await desk.order(attempt=attempt, reg=reg, resumes=1 if attempt > 1 else 0), first
            )
            before.append(owner)
            tape = Tape(owner, first)
            await tape.load()
            return Life(tape, owner)

        begin.desk = desk  # type: ignore[attr-defined]
        yield begin


Lives = Callable[[], Awaitable[Life]]


async def test_settled_calls_are_played_back_and_the_open_one_is_made(lives: Lives) -> None:
    one = await lives()
    for what in ("a", "b"):
        assert await one.call(what) == what
    with pytest.raises(ConnectionAbortedError):
        await one.call("c", dies=True)
    two = await lives()
    assert [await two.call(what) for what in ("a", "b", "c", "d")] == ["a", "b", "c", "d"]
    assert two.ran == ["c", "d"]
    assert two.tape.spent == Usage(input_tokens=40, model_calls=4)
    three = await lives()
    assert [await three.call(what) for what in ("a", "b", "c")] == ["a", "b", "c"]
    assert three.ran == []


async def test_a_call_whose_settlement_was_never_stored_is_made_again(lives: Lives) -> None:
    one = await lives()
    await one.call("a")  # its settlement travels with the next line, which never comes
    two = await lives()
    await two.call("a")
    assert two.ran == ["a"]


async def test_one_call_costs_one_record_and_the_claim_carries_the_first(lives: Lives) -> None:
    one = await lives()
    for what in ("a", "b", "c"):
        await one.call(what)
    await one.owner.done([], one.tape.last(), "model", None)
    desk: Desk = lives.desk  # type: ignore[attr-defined]
    assert kinds(await desk.journal()) == ["journal"] * 2
    assert kinds(await desk.register()) == ["claimed", "done"]


async def test_a_first_call_that_is_no_model_call_is_opened_by_a_line(lives: Lives) -> None:
    one = await lives()
    await one.call("x", READ)
    with pytest.raises(ConnectionAbortedError):
        await one.call("a", dies=True)
    two = await lives()
    await two.call("x", READ)
    await two.call("a")
    assert two.ran == ["a"]


@pytest.mark.parametrize("change", [{"what": "other"}, {"kind": READ}, {"key": "k2"}])
async def test_a_tape_that_tells_of_another_call_ends_there(lives: Lives, change: dict[str, object]) -> None:
    one = await lives()
    for what in ("a", "b", "c", "d"):
        await one.call(what, key="k1" if what == "b" else "")
    two = await lives()
    await two.call("a")
    other = {"what": "b", "key": "k1", **change}
    await two.call(**other)  # type: ignore[arg-type]
    await two.call("c")
    assert two.ran == [other["what"], "c"]


async def test_what_followed_a_line_that_was_not_followed_is_void(lives: Lives) -> None:
    one = await lives()
    for what in ("a", "b", "c", "d"):
        await one.call(what)  # a to c are settled on the board
    two = await lives()
    await two.call("a")
    await two.call("other")
    with pytest.raises(ConnectionAbortedError):
        await two.call("c", dies=True)
    three = await lives()
    for what in ("a", "other", "c"):
        await three.call(what)
    assert three.ran == ["c"]  # the first life settled a c, but after its b, which nobody has seen now


async def test_an_effect_that_may_have_happened_is_in_doubt_for_ever(lives: Lives) -> None:
    send = ("tool", "send_mail")
    one = await lives()
    await one.call("a")
    with pytest.raises(ConnectionAbortedError):
        await one.call("mail", send, repeatable=False, dies=True)
    for _ in range(2):
        later = await lives()
        await later.call("a")
        with pytest.raises(InDoubt, match="send_mail"):
            await later.call("mail", send, repeatable=False)
        assert later.ran == []


async def test_re_worded_by_the_model_it_is_in_doubt_all_the_same(lives: Lives) -> None:
    send = ("tool", "send_mail")
    one = await lives()
    await one.call("a")
    with pytest.raises(ConnectionAbortedError):
        await one.call("mail", send, repeatable=False, dies=True)
    two = await lives()
    await two.call("a")
    with pytest.raises(InDoubt):
        await two.call("mail in other words", send, repeatable=False)


@pytest.mark.parametrize("settled", [False, True])
async def test_an_effect_is_not_repeated_at_another_place_of_a_history_that_turned_out_differently(
    lives: Lives, settled: bool
) -> None:
    send = ("tool", "send_mail")
    one = await lives()
    await one.call("a")
    if settled:
        await one.call("mail", send, repeatable=False)
        await one.call("b")
    else:
        with pytest.raises(ConnectionAbortedError):
            await one.call("mail", send, repeatable=False, dies=True)
    two = await lives()
    await two.call("not a")
    await two.call("nor b")
    with pytest.raises(InDoubt):
        await two.call("mail", send, repeatable=False)
    assert await two.call("fax", ("tool", "send_fax"), repeatable=False) == "fax"


async def test_a_settled_effect_is_played_back(lives: Lives) -> None:
    send = ("tool", "send_mail")
    one = await lives()
    await one.call("mail", send, repeatable=False)
    await one.call("a")
    two = await lives()
    assert await two.call("mail", send, repeatable=False) == "mail"
    assert two.ran == []


@pytest.mark.parametrize("settled", [False, True])
async def test_a_keyed_effect_may_be_repeated_under_the_very_key_that_it_had(lives: Lives, settled: bool) -> None:
    post = ("tool", "post")
    one = await lives()
    await one.call("a")
    if settled:
        await one.call("post", post, key="k2", keyed=True)
        await one.call("b")
    else:
        with pytest.raises(ConnectionAbortedError):
            await one.call("post", post, key="k2", keyed=True, dies=True)
    two = await lives()
    await two.call("a")
    assert await two.call("post", post, key="k2", keyed=True) == "post"
    assert two.ran == ([] if settled else ["post"])
    three = await lives()
    await three.call("a")
    await three.call("not the post")
    with pytest.raises(InDoubt):  # at another place its key is another one, and nobody would know it for the same
        await three.call("post", post, key="k3", keyed=True)
    assert three.ran == ["not the post"]


async def test_what_a_failed_call_cost_is_carried_by_the_next_line(lives: Lives) -> None:
    one = await lives()
    with pytest.raises(ConnectionAbortedError):
        await one.call("a", dies=True)
    await one.tape.lost(Usage(input_tokens=5, model_calls=1, estimated=True))
    settles = one.tape.last()
    assert settles is not None
    assert settles.usage.input_tokens == 5
    assert one.tape.spent.input_tokens == 5


async def test_another_attempt_after_a_failure_starts_afresh(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus)
        owner = await desk.claimed(await desk.order(), Opens(1, "model"))
        life = Life(Tape(owner, Opens(1, "model")), owner)
        for what in ("a", "b"):
            await life.call(what)
        done = await owner.done([], life.tape.last(), "model", None)
        again = await desk.claimed(await desk.order(attempt=2, reg=done))  # resumes nothing: new work
        tape = Tape(again)
        await tape.load()
        fresh = Life(tape, again)
        for what in ("a", "b"):
            await fresh.call(what)
        assert fresh.ran == ["a", "b"]
