"""Whatever ends an attempt: an effect that may have happened is not made again, and one that may be made again has its
key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kokuban.agents import Work
from kokuban.agents._failure import failure_of
from kokuban.agents._keys import key_stem
from kokuban.agents._orders import why_unfit
from kokuban.agents._output import Output
from kokuban.agents._tape import InDoubt, describe
from kokuban.agents._work import StepFailed
from kokuban.agents.tools import Registry, Tool, ToolContext, ToolError
from kokuban.blackboard.wire import Bus
from kokuban.schemas import Allotment, Gate, Opens, Ref, Settles, Usage, Waiting, digest
from support.at_work import PLAN, at_once, at_work, ended, failure
from support.bench import DONE, OPTIONAL, Benches, call, says
from support.desk import Desk, contract
from support.nats_server import NatsServer
from support.team import audited, records
from support.waiting import eventually

pytestmark = pytest.mark.anyio

SEND = {"to": "bob"}


@pytest.fixture
async def bench(bus: Bus, tmp_path: Path) -> Benches:
    return Benches(await Desk.open(bus), tmp_path)


async def opened(desk: Desk) -> list[dict[str, Any]]:
    """What the journal opened."""
    bodies = [msgspec.json.decode(record.body) for record in await desk.journal()]
    return [body["opens"] for body in bodies if "opens" in body]


def opening(work: Work, tool: str = "mail") -> Callable[[int], Opens]:
    return lambda n: Opens(n, "tool", tool, describe(SEND), work.key(tool, SEND))


def tool(run: Any, effect: Any, name: str = "send", **fields: Any) -> Registry:
    return Registry([Tool(name, "", OPTIONAL, run, tier="write", effect=effect, **fields)])


class Slow:
    """A tool that does not come back the first times; `keys` are those that it was called with."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.times, self.error, self.keys = times, error, list[str]()

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> str:
        self.keys.append(context.key)
        if len(self.keys) <= self.times:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        return "sent"


# ---------------------------------------------------------------------- what stands in the journal


async def test_a_call_says_what_effect_it_has(bench: Benches) -> None:
    b = await bench()
    calls = [call("look", '{"path":"a"}'), call("change", '{"path":"a"}'), call("mail"), call("post")]
    assert await b.run(says(*calls), DONE) == "done"
    effects = [(one["kind"], one.get("tool", ""), one.get("effect", "")) for one in await opened(bench.desk)]
    assert effects == [
        ("model", "", ""),
        ("tool", "look", "read"),
        ("tool", "change", "keyed"),
        ("tool", "mail", "other"),
        ("tool", "post", "keyed"),
        ("model", "", ""),
    ]


@pytest.mark.parametrize(
    ("how", "effect"), [({}, "read"), ({"keyed": True}, "keyed"), ({"repeatable": False}, "other")]
)
async def test_so_does_a_role_of_ones_own(bench: Benches, how: dict[str, bool], effect: str) -> None:
    work = (await bench()).work

    async def send() -> tuple[object, Usage]:
        return "sent", Usage(tool_calls=1)

    await work.tape.call(opening(work), send, **how)
    assert [one["effect"] for one in await opened(bench.desk)] == [effect]


# ---------------------------------------------------------------------- how an attempt ends


async def fails(work: Work) -> None:
    raise StepFailed("no_progress", "went in circles")


async def breaks(work: Work) -> None:
    raise ZeroDivisionError("a bug")


async def hangs(work: Work) -> None:
    await asyncio.Event().wait()


async def doubts(work: Work) -> None:
    raise InDoubt("mail: call 1 of key " + work.key("mail", SEND))


@pytest.mark.parametrize(
    ("end", "swallowed"),
    [(fails, ""), (breaks, ""), (hangs, ""), (doubts, ""), (fails, "done"), (fails, "goes on"), (fails, "waits")],
)
async def test_an_attempt_that_ends_while_an_effect_is_under_way_is_in_doubt(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, end: Any, swallowed: str
) -> None:
    desk = await Desk.open(bus)
    keys: list[str] = []

    async def perform(work: Work) -> list[Output]:
        keys.append(work.key("mail", SEND))

        async def send() -> tuple[object, Usage]:
            await end(work)
            raise AssertionError

        try:
            await work.tape.call(opening(work), send, repeatable=False)
        except StepFailed:
            if swallowed == "goes on":
                await work.tape.call(opening(work, "look"), send)
            if swallowed == "waits":
                await work.wait(Gate("g", "question", "May I?"))
            if not swallowed:
                raise
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order(allotment=Allotment(seconds=1 if end is hangs else 90))
        body = await failure(desk)
    assert (body.why, body.retryable, body.settles) == ("in_doubt", False, None)
    assert "mail" in body.reason
    assert "call 1" in body.reason
    assert keys[0] in body.reason


@pytest.mark.parametrize(("effect", "why"), [("read", "deadline"), ("keyed", "deadline"), ("other", "in_doubt")])
async def test_only_what_may_not_be_made_again_is_in_doubt(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, effect: str, why: str
) -> None:
    desk = await Desk.open(bus)

    async def perform(work: Work) -> list[Output]:
        async def send() -> tuple[object, Usage]:
            await asyncio.Event().wait()
            raise AssertionError

        await work.tape.call(opening(work), send, repeatable=effect != "other", keyed=effect == "keyed")
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order(allotment=Allotment(seconds=1))
        body = await failure(desk)
    assert (body.why, body.retryable) == (why, why == "deadline")


async def test_what_is_settled_is_in_no_doubt(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    desk = await Desk.open(bus)

    async def perform(work: Work) -> list[Output]:
        async def send() -> tuple[object, Usage]:
            return "sent", Usage(tool_calls=1)

        await work.tape.call(opening(work), send, repeatable=False)
        raise StepFailed("no_progress", "went in circles")

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        body = await failure(desk)
    assert (body.why, body.retryable) == ("no_progress", True)
    assert body.settles == Settles(1, Usage(tool_calls=1), msgspec.Raw(b'"sent"'))


async def test_who_takes_the_work_up_and_fails_of_something_else_leaves_it_in_doubt(bench: Benches) -> None:
    """Another attempt would not see the journal, and send again."""
    first = await bench()

    async def send() -> tuple[object, Usage]:
        raise ConnectionAbortedError("as if killed")

    with pytest.raises(ConnectionAbortedError):
        await first.work.tape.call(opening(first.work), send, repeatable=False)
    later = await bench(resumes=True)
    doubt = later.work.tape.doubt
    assert doubt is not None
    assert (doubt.tool, doubt.call) == ("mail", 1)
    body = failure_of(StepFailed("tokens", "none is left"), 90, None, doubt)
    assert body is not None
    assert (body.why, body.retryable) == ("in_doubt", False)
    assert "none is left" in body.reason


async def test_time_that_is_up_before_an_effect_is_begun_leaves_no_doubt(bench: Benches) -> None:
    work = (await bench()).work
    owner = work.tape._owner
    write, writing, go = owner.journal, asyncio.Event(), asyncio.Event()

    async def slowly(*line: Any) -> int:
        writing.set()
        await go.wait()
        return await write(*line)

    async def send() -> tuple[object, Usage]:
        raise AssertionError

    owner.journal = slowly  # type: ignore[method-assign]
    calling = asyncio.ensure_future(work.tape.call(opening(work), send, repeatable=False))
    await writing.wait()
    calling.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert [one["effect"] for one in await opened(bench.desk)] == ["other"]  # it stands
    assert work.tape.doubt is None
    assert work.tape.last() == Settles(1, Usage())


# ---------------------------------------------------------------------- tools without an answer


@pytest.mark.parametrize("error", [None, ConnectionResetError("in the middle")])
async def test_a_tool_without_an_answer_is_in_doubt(bench: Benches, error: Exception | None) -> None:
    b, slow = await bench(), Slow(9, error)
    b.tools = tool(slow.run, "other", timeout_seconds=0.05)
    with pytest.raises(InDoubt, match=r"call 2 \(send, key .*fix/send:"):
        await b.run(says(call("send")), DONE)
    assert len(slow.keys) == 1
    assert b.work.tape.last() is None
    assert b.work.tape.doubt is not None


async def test_a_tool_that_knows_that_it_failed_is_not(bench: Benches) -> None:
    b, slow = await bench(), Slow(1, ToolError("no such address"))
    b.tools = tool(slow.run, "other")
    assert await b.run(says(call("send")), says(call("send")), DONE) == "done"
    assert [(seen.text, seen.ok) for seen in b.talk.seen] == [("no such address", False), ("sent", True)]


@pytest.mark.parametrize("error", [None, ConnectionResetError("in the middle")])
async def test_a_keyed_call_without_an_answer_is_made_once_more_as_the_same_call(
    bench: Benches, error: Exception | None
) -> None:
    b, slow = await bench(), Slow(1, error)
    b.tools = tool(slow.run, "keyed", timeout_seconds=0.05)
    assert await b.run(says(call("send")), DONE) == "done"
    assert b.talk.seen[0].ok
    assert len(slow.keys) == 2
    assert [one["key"] for one in await opened(bench.desk) if one["kind"] == "tool"] == [slow.keys[0]]
    assert set(slow.keys) == {slow.keys[0]}


async def test_without_an_answer_twice_the_model_may_call_it_again_under_the_same_key(bench: Benches) -> None:
    b, slow = await bench(), Slow(2)
    b.tools = tool(slow.run, "keyed", timeout_seconds=0.05)
    assert await b.run(says(call("send")), says(call("send")), DONE) == "done"
    lost, sent = b.talk.seen
    assert not lost.ok
    assert "outcome is unknown" in lost.text
    assert "same arguments is safe" in lost.text
    assert sent.ok
    assert len(slow.keys) == 3
    assert len(set(slow.keys)) == 1


# ---------------------------------------------------------------------- keys


async def test_a_key_counts_what_succeeded(bench: Benches) -> None:
    work = (await bench()).work
    stem = key_stem(bench.desk.task, "fix", "mail", '{"to":"bob"}')
    results: list[Any] = [{"ok": False}, {"ok": True}, {"number": 7}, None]
    keys = []
    for result in results:

        async def send(result: Any = result) -> tuple[object, Usage]:
            return result, Usage()

        keys.append(work.key("mail", SEND))
        await work.tape.call(opening(work), send, keyed=True)
    assert keys == [f"{stem}:{n}" for n in (0, 0, 1, 2)]
    assert work.key("mail", {"to": "ann"}) != work.key("mail", SEND)
    assert work.key("mail", {"n": 1.0}) == work.key("mail", {"n": 1})
    await work.tape._owner.journal(work.tape.last(), None)
    replayed = (await bench(resumes=True)).work  # who plays the calls back comes to the same keys
    for key in keys:
        assert replayed.key("mail", SEND) == key
        played = await replayed.tape.call(opening(replayed), hangs, keyed=True)  # type: ignore[arg-type]
        assert played.replayed


def test_a_key_fits_whatever_the_names() -> None:
    stems = {
        key_stem(*names, "{}") for names in (("t", "s", "x" * 64), ("t" * 64, "s" * 64, "x" * 64), ("t", "s", "y"))
    }
    assert len(stems) == 3
    assert all(len(stem) <= 113 for stem in stems)


# ---------------------------------------------------------------------- a call that was never made


async def breaks_at_once(work: Work) -> list[Output]:
    raise ZeroDivisionError


@pytest.mark.parametrize("perform", [at_once, breaks_at_once])
async def test_a_call_that_the_claim_opened_and_nobody_made_costs_nothing(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, perform: Any
) -> None:
    desk = await Desk.open(bus)
    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()
        body = msgspec.json.decode((await ended(desk)).body)
    assert body["settles"]["call"] == 1
    board, _ = audited(await records(nats_server.url))
    assert board.tasks[desk.task].steps["fix"].usage.tokens == 0


async def test_nor_does_it_when_the_step_waits_and_who_comes_next_makes_it(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    desk = await Desk.open(bus)
    gate = Gate("fix-1-1", "question", "Which?")
    asked: list[object] = []

    async def perform(work: Work) -> list[Output]:
        if work.assignment.attempt == 1:
            await work.wait(gate)

        async def ask() -> tuple[object, Usage]:
            return "said", Usage(input_tokens=5, model_calls=1)

        asked.append((await work.tape.call(lambda n: Opens(n, "model"), ask)).result)
        return [PLAN]

    async with at_work(nats_server.url, tmp_path / "a", perform):
        await desk.order()

        async def parked() -> bool:
            return [r.type for r in await desk.register()][-1:] == ["step.waiting"]

        await eventually(parked)
        (waiting,) = [r for r in await desk.register() if r.type == "step.waiting"]
        assert msgspec.json.decode(waiting.body, type=Waiting).settles == Settles(1, Usage())
        await desk.order(attempt=2, reg=await desk.stands_at(), resumes=1)
        await ended(desk)
    assert asked == ["said"]


# ---------------------------------------------------------------------- orders for others


async def test_an_order_with_inputs_that_the_contract_does_not_take_is_for_others(bus: Bus) -> None:
    desk, mine = await Desk.open(bus), contract("coder")
    for kind, fits in ((mine.consumes[0], True), ("poem", False)):
        seq = await desk.order(step=f"s-{kind}", inputs=(Ref("a", kind, "x", digest(b""), 1),))
        why = why_unfit(mine, await desk.assignment(seq))
        assert (why == "") == fits
        assert fits or "poem" in why
