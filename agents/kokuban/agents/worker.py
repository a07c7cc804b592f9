"""A worker: takes work orders of one role, one per free slot, and runs the role's program as the step's owner."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import structlog
from nats.aio.msg import Msg

from kokuban.agents._failure import failure_of
from kokuban.agents._orders import differences, is_newer, read_order, why_unfit
from kokuban.agents._owner import Assignment, Fenced, Owner, claim
from kokuban.agents._reflection import reflect
from kokuban.agents._tape import Parked, Tape
from kokuban.agents._trust import handed
from kokuban.agents._work import Role, StepFailed, Work
from kokuban.agents.models import Meter
from kokuban.agents.policy import DEFAULT, Policy, PolicyFile
from kokuban.agents.sandbox import remove
from kokuban.agents.toolbox import Toolbox
from kokuban.agents.tools._addresses import bus_places, places
from kokuban.agents.tools._threads import ended, left_running
from kokuban.blackboard._content import Content
from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Ledger
from kokuban.blackboard.memory import EVERYTHING, Access, Embeddings, Memories, Shelf
from kokuban.blackboard.wire import (
    ACK_WAIT_SECONDS,
    Bus,
    BusError,
    Delivery,
    Payloads,
    Pull,
    crash_point,
)
from kokuban.schemas import Failed, Opens, TaskSpec, encode, open_record, subjects
from kokuban.schemas.contracts import Contract
from kokuban.schemas.kinds import decode_artifact

HEARTBEAT_SECONDS = 1.0
TRACE_CHARS = 8_000
FIRST_CALL_TOKENS = 4_000
"""What a first call counts for when nobody ever says what it cost; only where no budget applies."""
STOP_SECONDS = 1.0
"""After this time a program that was told to stop is told so again."""
LEAVE = b'-NAK {"delay": 5000000000}'
"""For an order that another release, or a worker with another contract, may be able to do. It comes back after 5
seconds, perhaps to the same worker: then it is left again."""
ACK, TERM, WORKING = b"+ACK", b"+TERM", b"+WPI"
log = structlog.get_logger("kokuban.worker")


class Worker:
    """Runs steps of `contract.role` until cancelled or drained, at most `concurrency` at once.

    `home` is this process's own folder; a step's files live below it and are removed with the step. `policy` decides
    what its tool calls may do, `embeddings` is for recalling by meaning. The worker id is made anew for each process
    life.
    """

    def __init__(
        self,
        bus: Bus,
        contract: Contract,
        role: Role,
        *,
        home: Path,
        meter: Meter | None = None,
        concurrency: int = 1,
        native_tools: bool = False,
        policy: Policy | PolicyFile = DEFAULT,
        toolbox: Toolbox | None = None,
        embeddings: Embeddings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.id = f"{contract.role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[:128]
        self._bus = bus
        self._contract = contract
        self._role = role
        self._home = home
        self._meter = meter
        self._concurrency = concurrency
        self._native_tools = native_tools
        self._rules = policy
        self._toolbox = toolbox
        self._embeddings = embeddings
        self._shelves: dict[str, Shelf] = {}
        self._clock = clock
        named = ("native_prompt_version",) if native_tools else ()
        self._prompt = next((str(v) for n in (*named, "prompt_version") if (v := getattr(role, n, None))), "")
        self._policy = meter.prices.version if meter is not None and contract.model else None
        self._content = Content(bus, Payloads(bus))
        self._held: dict[str, Delivery] = {}
        self._owners: dict[str, tuple[Owner, asyncio.Task[None]]] = {}
        self._steps: set[asyncio.Task[None]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()
        self._specs: dict[int, tuple[TaskSpec, str]] = {}
        self._pull: Pull | None = None

    async def run(self) -> None:
        """Work until `drain` has let the last step end. Raises `BusError` when the connection is closed for good."""
        self._home.mkdir(parents=True, exist_ok=True)
        for field, board in (await differences(self._bus, self._contract)).items():
            ours = getattr(self._contract, field)
            log.warning("contract differs from the registered one", field=field, ours=ours, board=board)
        watches = [asyncio.create_task(self._beat()), asyncio.create_task(self._keep_held())]
        hints = await self._bus.subscribe(
            f"{subjects.HINTS}.{subjects.register('*', self._contract.role, '*')}", self._on_hint
        )
        try:
            await self._pull_for_ever()
            if self._steps:
                await asyncio.wait(self._steps)
        finally:
            ending = [*watches, *self._steps, *self._telling]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            if not self._bus.closed.is_set():
                await hints.unsubscribe()
            shutil.rmtree(self._home, ignore_errors=True)

    def drain(self) -> None:
        """Take no more work; `run` returns when the steps under way have ended. Cancel `run` to stop them."""
        self._draining.set()

    # ------------------------------------------------------------------ taking work

    async def _pull_for_ever(self) -> None:
        draining = asyncio.create_task(self._draining.wait())
        closed = asyncio.create_task(self._bus.closed.wait())
        pause = 0.05
        try:
            while not self._draining.is_set():
                if self._bus.closed.is_set():
                    raise BusError("the connection to NATS is closed for good")
                self._pull = pull = Pull(
                    self._bus, subjects.consumer(self._contract.role), self._on_order, self._on_unfilled
                )
                await pull.start()
                started = self._clock.monotonic()
                dead = asyncio.create_task(pull.dead.wait())
                try:
                    await self._ask()
                    await asyncio.wait({dead, draining, closed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    dead.cancel()
                    await pull.stop()
                if pull.error is not None:
                    raise pull.error
                pause = 0.05 if self._clock.monotonic() - started > 5 else min(2.0, pause * 2)
                if not self._draining.is_set():
                    log.debug("consumer is made anew", why=pull.why_dead, worker=self.id)
                    await asyncio.wait({draining, closed}, timeout=pause * (0.5 + secrets.randbelow(100) / 100))
        finally:
            draining.cancel()
            closed.cancel()

    async def _ask(self) -> None:
        """Ask for as many orders as there are free slots, never more: a fetched order that waits would age."""
        pull = self._pull
        if pull is None or pull.dead.is_set() or self._draining.is_set():
            return
        free = self._concurrency - len(self._steps) - pull.outstanding
        if free > 0:
            await pull.request(free)

    async def _on_unfilled(self, pull: Pull) -> None:
        await self._ask()

    async def _on_order(self, pull: Pull, delivery: Delivery) -> None:
        task = asyncio.create_task(self._handle(delivery))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        task.add_done_callback(lambda _: asyncio.ensure_future(self._ask()))

    async def _handle(self, delivery: Delivery) -> None:
        """One order, from delivery to acknowledgement."""
        assignment = read_order(delivery, self.id, clock=self._clock, policy=self._policy)
        if assignment is None:
            await self._bus.send(delivery.ack, LEAVE if is_newer(delivery) else TERM)
            return
        steplog = log.bind(task=assignment.task, step=assignment.step, attempt=assignment.attempt, worker=self.id)
        unfit = why_unfit(self._contract, assignment)
        if unfit:
            steplog.warning("order is left to others", field=unfit)
            await self._bus.send(delivery.ack, LEAVE)
            return
        self._held[delivery.ack] = delivery
        try:
            owner = await self._claim(assignment)
            if owner is None:
                steplog.debug("order is void or taken")
                await self._bus.send(delivery.ack, TERM)
                return
            steplog = steplog.bind(fence=owner.fence)
            await self._own(owner, delivery, steplog)
        except Fenced as error:
            steplog.warning("fenced", reason=str(error))
        except BusError as error:
            steplog.warning("left to the supervisor", error=str(error))
        except Exception:
            steplog.exception("left to the supervisor")
        finally:
            self._held.pop(delivery.ack, None)

    async def _claim(self, assignment: Assignment) -> Owner | None:
        """Claim, and let go again of an order that is no longer on the board (its task is archived)."""
        first = self._first_call(assignment)
        owner = await claim(self._bus, assignment, first)
        if owner is not None and await self._bus.patiently(lambda: self._bus.read(assignment.seq)) is None:
            last = Tape(owner, first).last()
            await owner.failed(Failed("input", "the order is no longer on the board", retryable=False, settles=last))
            return None
        return owner

    def _first_call(self, assignment: Assignment) -> Opens | None:
        """What the claim opens, so that the first call costs no line. Where a budget applies nothing is opened without
        a reservation, and what that must be is not known yet."""
        order = assignment.order
        opens = self._contract.model and not order.resumes and not order.budgeted
        if not opens or (self._contract.reflects and order.feedback):  # the first call is no call of the role's prompt
            return None
        return Opens(1, "model", reserved_tokens=FIRST_CALL_TOKENS, prompt=self._prompt)

    # ------------------------------------------------------------------ owning a step

    async def _own(self, owner: Owner, delivery: Delivery, steplog: structlog.stdlib.BoundLogger) -> None:
        """Run the role's program while the fence holds; commit, fail or wait; only then acknowledge."""
        key = owner.assignment.register
        left: list[threading.Thread] = []
        performing = asyncio.create_task(self._perform(owner, left, steplog))
        self._owners[key] = (owner, performing)
        lost = asyncio.create_task(owner.lost.wait())
        try:
            await asyncio.wait({performing, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not performing.done():
                self._held.pop(delivery.ack, None)  # nothing more is said about the order either
                await _stop(performing)
                raise Fenced(f"step {owner.assignment.step}: the register moved past {owner.fence}")
            performing.result()
        except asyncio.CancelledError:
            await _stop(performing)
            raise
        except Fenced:
            self._tell_stopped(owner, left)
            raise
        finally:
            lost.cancel()
            if self._owners.get(key, (None,))[0] is owner:  # the next attempt may be ours already
                del self._owners[key]
        crash_point("ack:before")
        await self._bus.send(delivery.ack, ACK)

    def _tell_stopped(self, owner: Owner, left: list[threading.Thread]) -> None:
        """Say that nothing of the lost step runs here any more, once that is so. A hint: it may be lost."""
        at = owner.assignment

        async def tell() -> None:
            for thread in left:
                await ended(thread)
            await self._bus.hint(subjects.stopped(at.task, at.role, at.step), encode({"fence": owner.fence}))

        task = asyncio.create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _perform(self, owner: Owner, left: list[threading.Thread], steplog: structlog.stdlib.BoundLogger) -> None:
        at = owner.assignment
        left_running.set(left)
        started = self._clock.monotonic()
        home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f"{at.step}-", dir=self._home))
        tape = Tape(owner, self._first_call(at))
        steplog.info("claimed")
        try:
            await tape.load()
            spec, principal = await self._spec(at)
            work = Work(
                at, spec, self._content, tape, Ledger(at.order.allotment, tape.abandoned), home,
                started + at.order.allotment.seconds, self._meter,
                native_tools=self._native_tools, tools=self._contract.tools, policy=self._rules, principal=principal,
                toolbox=self._toolbox,
                memory=self._memory(spec, principal),
                protected=self._protected(),
                say=self._speaker(at), trust="model" if self._contract.model else "system",
            )  # fmt: skip
            async with asyncio.timeout(at.order.allotment.seconds):
                work.labels, label = await handed(owner, self._content, plans=self._contract.model)
                work.saw(label)
                work.critiques = await reflect(owner, work) if self._contract.reflects else ()
                outputs = await self._role.perform(work)
            tape.check()
            await owner.done(outputs, tape.last(), work.trust, self._prompt or None)
            steplog.info("done", artifacts=[f"{o.kind}/{o.name}" for o in outputs], tokens=tape.spent.tokens)
        except Fenced:
            raise
        except Parked as parked:
            steplog.info("waiting", gate=parked.gate.id, about=parked.gate.about)
        except Exception as error:
            failure = failure_of(error, at.order.allotment.seconds, tape.last(), tape.doubt)
            if failure is None:
                raise
            if failure.why == "bug":
                steplog.error("bug", trace="".join(traceback.format_exception(error))[-TRACE_CHARS:])
            await owner.failed(failure)
            steplog.warning("failed", why=failure.why, reason=failure.reason[:300])
        finally:
            await asyncio.to_thread(remove, home)

    def _protected(self) -> tuple[str, ...]:
        """Where the servers of this worker are: the bus, the models, the embeddings, the MCP servers."""
        urls = list(self._meter.addresses) if self._meter else []
        urls += [self._embeddings.address] if self._embeddings else []
        urls += [server.url for server in self._toolbox.file.mcp.values() if server.url] if self._toolbox else []
        return (*bus_places(*self._bus.addresses), *places(*urls))

    def _memory(self, spec: TaskSpec, principal: str) -> Memories:
        """What the task's tenant remembers, as far as it concerns everybody or who submitted the task. Who judges the
        others' work sees what is proposed, too."""
        access = Access(
            kinds=EVERYTHING, principals=frozenset({principal}), unapproved="verdict" in self._contract.produces
        )
        return Memories(
            self._bus, tenant=spec.tenant, access=access, who=f"role-{self._contract.role}",
            shelf=self._shelves.setdefault(spec.tenant, Shelf(spec.tenant)), embeddings=self._embeddings,
        )  # fmt: skip

    async def _spec(self, at: Assignment) -> tuple[TaskSpec, str]:
        """The task, and who submitted it."""
        if at.order.spec not in self._specs:
            stored = await self._bus.patiently(lambda: self._bus.read(at.order.spec))
            if stored is None:
                raise StepFailed("input", f"the task's spec, record {at.order.spec}, is gone", retryable=False)
            if len(self._specs) >= 64:
                self._specs.pop(next(iter(self._specs)))
            record = open_record(stored.data)
            spec = decode_artifact("task", record.body)
            assert isinstance(spec, TaskSpec)
            self._specs[at.order.spec] = spec, record.principal or ""
        return self._specs[at.order.spec]

    def _speaker(self, at: Assignment) -> Callable[[str], None]:
        """What a model is saying right now, to whoever listens; dropped rather than waited for."""
        subject = subjects.delta(at.task, at.role, at.step)

        def say(text: str) -> None:
            task = asyncio.ensure_future(self._bus.hint(subject, encode({"attempt": at.attempt, "text": text})))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return say

    # ------------------------------------------------------------------ staying the owner

    async def _beat(self) -> None:
        """Off the blocked path: tell the supervisor what is held, and ask each register whether it still is."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            owned = [owner for owner, _ in self._owners.values() if not owner.lost.is_set()]
            holds = [(owner.assignment.task, owner.assignment.step, owner.fence) for owner in owned]
            if not holds:
                continue
            try:
                await self._bus.hint(subjects.heartbeat(self._contract.role, _token(self.id)), encode({"holds": holds}))
                for owner, still in zip(owned, await asyncio.gather(*(o.still_owned() for o in owned)), strict=True):
                    if not still:
                        owner.moved()
            except BusError as error:
                log.debug("heartbeat missed", error=str(error), worker=self.id)

    async def _on_hint(self, message: Msg) -> None:
        """The server republishes what is stored: a move of a register that we hold is known at once."""
        subject = message.subject.removeprefix(f"{subjects.HINTS}.")
        held = self._owners.get(subject)
        if held is None or not message.headers:
            return
        owner, performing = held
        if int(message.headers.get("Nats-Sequence", "0")) > owner.fence and not performing.done():
            owner.moved()

    async def _keep_held(self) -> None:
        while True:
            await asyncio.sleep(ACK_WAIT_SECONDS / 3)
            for ack in list(self._held):
                await self._bus.send(ack, WORKING)


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel a program and wait for its end; one that takes no notice is told again."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_SECONDS)
    if not task.cancelled():
        task.exception()  # it may have broken on the way; nobody wants to hear of it


def _token(worker: str) -> str:
    return worker.lower().replace(".", "-").replace(" ", "-")
