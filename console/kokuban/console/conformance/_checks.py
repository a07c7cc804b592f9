"""The rules, one check each. A check provokes what the rule is about and says what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
from nats.aio.msg import Msg

from kokuban.blackboard.wire import Bus, BusError
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.console.conformance._folder import RoleFolder
from kokuban.console.conformance._leader import TASK, Failed, Leader, eventually
from kokuban.console.conformance._programs import Instance, answers, is_claim, is_commit
from kokuban.schemas import VERSION, Claimed, Feedback, subjects
from kokuban.schemas.contracts import builtin_crew

QUIET_SECONDS = 3.0
"""How long nothing must happen where nothing may."""


@dataclass
class Examination:
    """A board, its leader, and the program at work on it. `beats` is every heartbeat heard."""

    server: EmbeddedServer
    leader: Leader
    start: Callable[[], Awaitable[Instance]]
    one: Instance
    beats: list[tuple[str, str, int]] = field(default_factory=list)

    async def heard(self, message: Msg) -> None:
        """Note a heartbeat; one that cannot be read is none."""
        try:
            holds = msgspec.json.decode(message.data)["holds"]
            self.beats += [(str(task), str(step), int(fence)) for task, step, fence in holds]
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            return

    async def keep_commit(self, step: str) -> int:
        """Offer a step and keep its commit back, on the way to the server; returns the order's sequence."""
        self.one.proxy.keep = is_commit
        seq = await self.leader.order(step)

        async def kept() -> bool:
            return bool(self.one.proxy.kept)

        await self.leader.eventually(kept, f"no commit of step {step} was sent", work=True)
        return seq

    async def answered(self, order: int, *wanted: str, by: Sequence[Instance] = ()) -> str:
        """How the order was answered, once it was in one of these ways."""

        async def look() -> str | None:
            said = [word for one in by or (self.one,) for word in answers(one.proxy.sent, order)]
            return next((word for word in said if word in wanted), None)

        return await self.leader.eventually(look, f"the order at {order} was not answered with {' or '.join(wanted)}")

    async def exactly(self, step: str, *types: str) -> None:
        """Check what stands on a step's register."""
        found = await self.leader.types(step)
        if found != list(types):
            raise Failed(f"the register of step {step} holds {', '.join(found)}; expected {', '.join(types)}")


async def takes(exam: Examination) -> str:
    """takes an order: claims it by compare-and-set, commits under the claim's fence, then acknowledges"""
    order = await exam.leader.order("first")
    fence, claim = await exam.leader.claim("first")
    gave = await exam.leader.done("first")
    body = msgspec.json.decode(claim.body, type=Claimed)
    if (body.order, body.reg, claim.attempt) != (order, 0, 1):
        raise Failed(f"it claimed order {body.order}, register {body.reg}, attempt {claim.attempt}; not {order}, 0, 1")
    if not claim.worker:
        raise Failed("its records do not say which worker writes them")
    await exam.exactly("first", "claimed", "done")
    seq, done = await exam.leader.end("first")
    if (done.fence, done.worker) != (fence, claim.worker):
        raise Failed(f"its commit carries fence {done.fence} of {done.worker}; it claimed at {fence} as {claim.worker}")
    await exam.answered(order, "+ACK")
    return f"claimed at {fence}, gave {gave} at {seq}, acknowledged"


async def beats(exam: Examination) -> str:
    """heartbeats: says each second what it holds, as long as it holds it"""
    order = await exam.keep_commit("beating")
    fence, _ = await exam.leader.claim("beating")
    exam.beats.clear()

    async def twice() -> bool:
        return exam.beats.count((TASK, "beating", fence)) >= 2

    await eventually(
        twice, f"no two heartbeats that hold [{TASK}, beating, {fence}] were heard", seconds=8, gone=exam.leader.gone
    )
    heard = exam.beats.count((TASK, "beating", fence))
    await exam.one.proxy.let_go()
    await exam.leader.done("beating")
    await exam.answered(order, "+ACK")
    return f"{heard} heartbeats that hold fence {fence} while its commit was on the way"


async def fetches(exam: Examination) -> str:
    """no prefetch: takes no more orders than it has free slots (one)"""
    before = await exam.leader.pending()
    await exam.keep_commit("busy")
    waiting = [f"waiting-{n}" for n in range(3)]
    for step in waiting:
        await exam.leader.order(step)
    most = 0
    for _ in range(10):
        await asyncio.sleep(0.1)
        most = max(most, await exam.leader.pending() - before)
    await exam.one.proxy.let_go()
    for step in ("busy", *waiting):
        await exam.leader.done(step)
    if most > 1:
        raise Failed(f"with one slot it held {most} orders at once")
    return "held one order while three more waited; did them afterwards"


async def doubts(exam: Examination) -> str:
    """in doubt: when the answer to its commit is lost it reads back, and neither repeats nor gives up"""
    proxy = exam.one.proxy
    order = await exam.keep_commit("doubtful")
    proxy.deafen()
    await proxy.let_go()
    await exam.leader.end("doubtful")
    proxy.cut()
    await exam.answered(order, "+ACK")
    await exam.leader.done("doubtful")
    await exam.exactly("doubtful", "claimed", "done")
    return "its commit had landed; after the cut it found that out and acknowledged"


async def fenced(exam: Examination) -> str:
    """fenced: once its register has moved it writes nothing more and acknowledges nothing"""
    order = await exam.keep_commit("fenced")
    fence, _ = await exam.leader.claim("fenced")
    moved = await exam.leader.release("fenced", fence)
    await asyncio.sleep(2.5)  # time to notice, with a heartbeat in it
    await exam.one.proxy.let_go()
    again = await exam.leader.order("fenced", attempt=2, reg=moved)
    await exam.leader.done("fenced", after=moved)
    await exam.answered(again, "+ACK")
    await exam.exactly("fenced", "claimed", "released", "claimed", "done")
    said = answers(exam.one.proxy.sent, order, delivered=1)
    if said:
        raise Failed(f"it answered the order that it had lost with {', '.join(said)}")
    stopped = any(one.subject == subjects.stopped(TASK, exam.leader.role, "fenced") for one in exam.one.proxy.sent)
    return f"nothing more under fence {fence}, the next attempt done" + ("" if stopped else "; did not say it stopped")


async def refused(exam: Examination) -> str:
    """refused: takes a step up again, on the moved register, with the feedback in its order"""
    await exam.leader.order("refused")
    await exam.leader.done("refused")
    reg, _ = await exam.leader.end("refused")
    feedback = (Feedback(1, "refused", "the artifact does not count: say it again"),)
    order = await exam.leader.order("refused", attempt=2, reg=reg, feedback=feedback, tries=1)
    _, claim = await exam.leader.claim("refused", after=reg)
    body = msgspec.json.decode(claim.body, type=Claimed)
    if (body.order, body.reg, claim.attempt) != (order, reg, 2):
        raise Failed(
            f"it claimed order {body.order}, register {body.reg}, attempt {claim.attempt}; not {order}, {reg}, 2"
        )
    await exam.leader.done("refused", after=reg)
    return f"attempt 2 claimed on register {reg} and done"


async def contends(exam: Examination) -> str:
    """two instances: never both own a step, whatever is delivered to whom"""
    other = await exam.start()
    both = (exam.one, other)
    try:
        steps = [f"shared-{n}" for n in range(6)]
        orders = [await exam.leader.order(step) for step in steps]
        for step, order in zip(steps, orders, strict=True):
            await exam.leader.done(step)
            await exam.answered(order, "+ACK", by=both)
        for instance in both:  # the same step to both, and their claims reach the server together
            instance.proxy.keep = is_claim
        twice = [await exam.leader.order("contested") for _ in both]

        async def both_claim() -> bool:
            return all(instance.proxy.kept for instance in both)

        await exam.leader.eventually(both_claim, "of two instances with a free slot each, not both took an order")
        for instance in both:
            await instance.proxy.let_go()
        await exam.leader.end("contested")
        for order in twice:
            await exam.answered(order, "+ACK", "+TERM", by=both)
        for step in (*steps, "contested"):
            await exam.exactly(step, "claimed", "done")
    finally:
        await other.stop()
    return f"{len(steps)} steps, and one that both claimed at once: each claimed once, done once"


async def restarts(exam: Examination) -> str:
    """server restart: a kill -9 of the server under its commit costs nothing"""
    await exam.keep_commit("restarted")
    exam.server.kill()
    await exam.server.wait()
    await exam.server.start()
    await exam.one.proxy.let_go()  # over a connection that is gone: lost
    await exam.leader.done("restarted")
    await exam.exactly("restarted", "claimed", "done")
    await exam.leader.order("afterwards")
    await exam.leader.done("afterwards")
    return "committed once the server was back, and took the next order"


async def produces(exam: Examination) -> str:
    """contract: gives nothing that its order does not ask for"""
    kind = exam.leader.foreign_kind()
    await exam.leader.order("foreign", produces=(kind,), kinds=())
    await asyncio.sleep(QUIET_SECONDS)
    found = await exam.leader.types("foreign")
    if "done" in found:
        raise Failed(f"an order for {kind!r} alone was committed")
    return f"an order for {kind!r} alone was {'failed' if 'failed' in found else 'left'}"


async def newer(exam: Examination) -> str:
    """newer schema: leaves an order of a schema version that it does not know to others, and goes on"""
    order = await exam.leader.order("newer", version=VERSION + 97)
    await exam.leader.order("known")
    await exam.leader.done("known")
    await asyncio.sleep(1)
    if found := await exam.leader.types("newer"):
        raise Failed(f"it wrote {', '.join(found)} on the register of a step whose order it cannot read")
    said = set(answers(exam.one.proxy.sent, order)) - {"-NAK"}
    if said:
        raise Failed(f"it answered the order with {', '.join(sorted(said))}: nobody else will ever get it")
    return f"the order of version {VERSION + 97} was left, the next one done"


async def ends(exam: Examination) -> str:
    """end: SIGTERM ends it when it holds nothing"""
    await exam.leader.order("last")
    await exam.leader.done("last")
    code = await exam.one.terminate(10)
    if code is None:
        raise Failed("it still ran 10 s after SIGTERM")
    return f"exit code {code}"


Check = Callable[[Examination], Awaitable[str]]
CHECKS: tuple[Check, ...] = (
    takes, beats, fetches, doubts, fenced, refused, contends, restarts, produces, newer, ends,
)  # fmt: skip


class Outcome(NamedTuple):
    """What a check found: `seen` says what happened, or what was wrong."""

    name: str
    rule: str
    passed: bool
    seen: str


async def examine(
    folder: RoleFolder,
    command: Sequence[str],
    place: Path,
    home: Path,
    checks: Sequence[Check] = CHECKS,
    *,
    protected: bool = False,
    patience_seconds: float = 20.0,
) -> AsyncGenerator[Outcome, None]:
    """Run the program `command` in the folder `place` through the checks, each with an outcome; `home` is for the
    server's store and the program's logs. Close it when you leave it early (`contextlib.aclosing`).

    A program that ends by itself is examined no further: the outcome that saw it is a failure, and the last one. On a
    `protected` server the program gets its role's credential and no other. What it should do at once is waited for
    `patience_seconds`. Raises `EmbeddedServerError`, `BusError`, `OSError` (no such program).
    """
    async with AsyncExitStack() as stack:
        contract = folder.contract
        crew = {**builtin_crew(), contract.role: contract}
        server = EmbeddedServer(home / "store", sync="default", protected=protected, crew=crew if protected else None)
        await stack.enter_async_context(server)
        secret = server.credential("supervisor")
        bus = await Bus.connect(server.url, name="kokuban conformance", credentials=secret)
        await stack.enter_async_context(bus)
        leader = Leader(bus, folder, patience_seconds)
        await leader.open()
        numbers = iter(range(1_000))

        async def start() -> Instance:
            log = home / f"program-{next(numbers)}.log"
            instance = Instance(
                command, place, leader.role, server.url, log, server.credential(f"role-{contract.role}")
            )
            stack.push_async_callback(instance.stop)
            await instance.start()
            return instance

        exam = Examination(server, leader, start, await start())
        leader.gone = lambda: exam.one.ended is not None
        await bus.subscribe(f"{subjects.HEARTBEATS}.{leader.role}.*", exam.heard)
        for check in checks:
            rule = (check.__doc__ or "").strip()
            try:
                outcome = Outcome(check.__name__, rule, True, await check(exam))
            except (Failed, BusError) as error:
                outcome = Outcome(check.__name__, rule, False, _explained(str(error), exam.one))
            gone = leader.gone()
            if gone and outcome.passed and check is not ends:
                outcome = outcome._replace(passed=False, seen=_explained("it did not go on", exam.one))
            yield outcome
            if gone:
                return
            if not outcome.passed and check is not checks[-1]:  # what it holds now must not spoil the next check
                await exam.one.stop()
                exam.one = await start()


def _explained(why: str, instance: Instance) -> str:
    if instance.ended is not None:
        why += f"; the program ended with code {instance.ended}"
    words = instance.last_words()
    return why + (f"; it said: {words}" if words else "")
