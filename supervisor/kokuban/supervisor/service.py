"""The supervisor: a thin shell that reads the stream, calls `fold` and `decide`, and publishes what comes out."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator

import structlog
from msgspec.structs import replace

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.core import Applied, Board, Stored, Task, fold
from kokuban.blackboard.core.registry import crew_of
from kokuban.blackboard.wire import (
    Bus,
    BusError,
    Conflict,
    Reader,
    TooLarge,
    Written,
    ensure_board,
    ensure_roles,
    write,
)
from kokuban.schemas import encode, subjects
from kokuban.schemas.contracts import Crew, builtin_crew
from kokuban.supervisor._agenda import Agenda
from kokuban.supervisor._archive import Retention
from kokuban.supervisor._budget import Short
from kokuban.supervisor._commands import Allow, Command, End, Limits, Offer, Order, Release, Revoke
from kokuban.supervisor._lease import TTL_SECONDS, Leadership
from kokuban.supervisor._publish import record_of, text_of
from kokuban.supervisor._room import Room
from kokuban.supervisor._snapshot import EVERY_RECORDS
from kokuban.supervisor._stops import Stops
from kokuban.supervisor._sweep import SILENCE_SECONDS, Sweeper
from kokuban.supervisor._upkeep import Upkeep
from kokuban.supervisor.decide import decide, fitted, next_instant

REVIEW_SECONDS = 5.0
RECONCILE_SECONDS = 60.0
log = structlog.get_logger("kokuban.supervisor")


class Supervisor:
    """One of possibly several; only the one that holds the lease decides. `run` until cancelled.

    `limits` bound what is under way; `crew` are the role contracts, the five built-in ones by default. A step is taken
    back when its worker has not been heard for `silence_seconds` (workers speak every second); another supervisor leads
    once the leader has not renewed its lease for `lease_seconds` (at least 1). `retention` says how long what is over
    stays; `replicas`, on how many servers of a cluster the board is kept, at least.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        crew: Crew | None = None,
        limits: Limits | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        lease_seconds: int = TTL_SECONDS,
        retention: Retention | None = None,
        snapshot_every: int = EVERY_RECORDS,
        replicas: int = 1,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self._replicas = replicas
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[:128]
        self.board = Board(slim=True)
        self.leading = asyncio.Event()
        self._bus = bus
        self._builtin = crew or builtin_crew()
        self._crew = self._builtin
        self._room = Room(self.board, limits or Limits())
        self._agenda = Agenda()
        self._stops = Stops(bus)
        self._reader = Reader(bus, self._on_record)
        self._leadership = Leadership(bus, self.id, ttl_seconds=lease_seconds, clock=clock)
        self._sweeper = Sweeper(bus, self.board, silence_seconds=silence_seconds, clock=clock)
        self._shards = [asyncio.Lock() for _ in range(subjects.EPOCH_SHARDS)]
        self._upkeep = Upkeep(
            bus, self.board, self.id, now=self._sweeper.now, folded=self._has_folded,
            epoch_of=lambda task: self._leadership.epochs[subjects.shard(task)],
            retention=retention, snapshot_every=snapshot_every, clock=clock, shards=self._shards,
        )  # fmt: skip
        self._dirty: dict[str, None] = {}
        self._short: dict[str, None] = {}
        self._timed: dict[str, None] = {}
        self._impossible: dict[str, str] = {}
        self._busy: Counter[str] = Counter()
        self._folded: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Set up the board, fold it, lead when the lease is free. Raises `BusError` when the connection is lost for
        good, and `SnapshotWrong` when the log contradicts the snapshot that this began with; whatever was decided until
        then is on the board."""
        await ensure_board(self._bus, replicas=self._replicas)
        await ensure_roles(self._bus, self._crew)
        if await self._upkeep.restore():
            self._reader.position = self.board.last_seq
            self._sweeper.restored()
            self._timed = {task.id: None for task in self.board.tasks.values() if task.final is None}
        reading = asyncio.create_task(self._reader.run())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_forward(reading))
                group.create_task(self._sweeper.listen())
                group.create_task(self._stops.listen())
                group.create_task(self._upkeep.check())
                group.create_task(self._lead_for_ever())
        finally:
            reading.cancel()
            for task in self._running:
                task.cancel()
            await asyncio.gather(reading, *self._running, return_exceptions=True)
            if not self._bus.closed.is_set():
                await self._leadership.give_up()

    # ------------------------------------------------------------------ reading

    async def _on_record(self, stored: Stored) -> None:
        applied = fold(self.board, stored)
        self._sweeper.saw(applied, stored)
        self._upkeep.saw(applied, stored)
        while self._folded and self._folded[0][0] <= stored.seq:
            waiting = self._folded.pop(0)[1]
            if not waiting.done():
                waiting.set_result(None)
        if applied.task is not None:
            self._changed(applied.task, applied)
        elif applied.record is not None and not applied.ignored:
            await self._board_changed(applied.record.type)
        if applied.admitted and self.leading.is_set():
            await self._announce(applied)

    async def _board_changed(self, kind: str) -> None:
        """What users registered or allowed counts from the next decision on."""
        if kind in ("ctl.role", "ctl.kind"):
            self._crew = crew_of(self._builtin, self.board.roles, self.board.kinds)
            if self.leading.is_set():
                await ensure_roles(self._bus, self._crew)
        if kind == "ctl.limits":
            self._give_back()

    def _give_back(self) -> None:
        """Look again at the tasks that were short of a budget."""
        short, self._short = self._short, {}
        for name in short:
            self._mark(name)
        self._wake.set()

    def _changed(self, task: Task, applied: Applied) -> None:
        """What may have to be decided anew: the task, those that wait for it or stand below it, and, once anything is
        given back, those that were short of a budget. An order, a claim or a journal's line calls for nothing new."""
        kind = applied.record.type if applied.record is not None else ""
        if kind in _NO_NEWS and not applied.ignored and not _asks(task, applied):
            return
        self._mark(task.id)
        if kind in ("task.control", "task.ending", "task.final"):
            for name in (*task.dependents, *_below(self.board, task)):
                self._mark(name)
        if self._short and kind in _GIVES_BACK:
            self._give_back()
        if kind in ("task.spec", "step.waiting", "gate.request"):
            self._timed[task.id] = None

    async def _announce(self, applied: Applied) -> None:
        assert applied.task is not None
        for artifact in applied.admitted:
            ref = artifact.ref
            await self._bus.hint(subjects.announcement(applied.task.id, ref.kind, ref.name), encode(ref))

    def _mark(self, task: str) -> None:
        if self.leading.is_set():  # who follows decides nothing, and marks all that is open once it leads
            self._dirty[task] = None
        self._agenda.drop(task)
        self._wake.set()

    async def _has_folded(self, seq: int) -> None:
        if self.board.last_seq >= seq:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folded.append((seq, waiting))
        self._folded.sort(key=lambda entry: entry[0])
        await waiting

    # ------------------------------------------------------------------ leading

    async def _lead_for_ever(self) -> None:
        await self._reader.caught_up.wait()
        while True:
            await self._leadership.acquire()
            try:
                await self._until_deposed()
            except BusError as error:
                log.warning("leadership interrupted", error=str(error))
            finally:
                self.leading.clear()
            log.info("following", supervisor=self.id)
            await self._leadership.give_up()  # what is left of the lease, so that nobody has to wait for its end

    async def _until_deposed(self) -> None:
        """Keep the lease from its first moment on, beside all that a leader does."""
        keeping = asyncio.create_task(self._leadership.keep())
        work = (self._decide_for_ever(), self._sweep_for_ever(), self._upkeep.run(self.leading))
        others = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait([keeping, *others], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (keeping, *others):
                task.cancel()
            await asyncio.gather(keeping, *others, return_exceptions=True)

    async def _take_over(self) -> None:
        """Fence earlier leaders off and fold past the epochs; only then decide."""
        await self._has_folded(await self._leadership.raise_epochs())
        await ensure_roles(self._bus, self._crew)
        log.info("leading", supervisor=self.id, tasks=len(self.board.tasks), position=self.board.last_seq)
        self._sweeper.start_over()
        self.leading.set()
        for task in self.board.tasks.values():
            if task.final is None:
                self._mark(task.id)

    async def _decide_for_ever(self) -> None:
        """Returns when a decision was refused because another leader's epoch is in force."""
        await self._take_over()
        while True:
            await self._wake.wait()
            if not self.leading.is_set():
                return
            self._wake.clear()
            for name in [name for name in self._dirty if name not in self._busy]:
                del self._dirty[name]
                if (task := self.board.tasks.get(name)) is not None:  # None: its tombstone has had its time
                    self._decide_one(task)
            for role in self._crew:
                self._fill(role)

    def _decide_one(self, task: Task) -> None:
        now = self._sweeper.now()
        impossible = self._impossible.get(task.id, "")
        commands, offers = decide(self.board, task, self._crew, now, self._room.promised, impossible)
        self._agenda.put(task, offers, self.board.limits.weights, now)
        for command in commands:
            if isinstance(command, Allow):
                self._room.promise(task.id, command.step, command.role, command.allotment)
            self._start(task, command)

    def _fill(self, role: str) -> None:
        """Give the role's free slots to the best of what is offered."""
        under_way = self._room.by_tenant()
        while self._room.of_role(role, self._crew) > 0:
            offer = self._agenda.pick(
                role, under_way, lambda tenant: self._room.is_full(tenant, under_way),
                lambda offer: self._room.of_task(offer.task) > 0,
            )  # fmt: skip
            if offer is None:
                return
            under_way[self.board.tasks[offer.task].tenant] += self._give(offer)

    def _give(self, offer: Offer) -> bool:
        """Order what was picked, with what its budgets allow. False when they allow nothing now."""
        task = self.board.tasks[offer.task]
        order = fitted(self.board, task, self._crew, offer, self._room.promised)
        if isinstance(order, Short):
            self._short[task.id] = None
            if order.final:
                self._mark(task.id)
            return False
        self._room.promise(task.id, order.step, order.role, order.order.allotment)
        self._start(task, order)
        return True

    def _start(self, task: Task, command: Command) -> None:
        self._busy[task.id] += 1
        # Of the leadership that decided it: what waits to be written must not come under the epoch of a later one.
        epoch = self._leadership.epochs[subjects.shard(task.id)]
        carrying = asyncio.create_task(self._carry_out(task, command, epoch))
        self._running.add(carrying)
        carrying.add_done_callback(self._running.discard)

    async def _carry_out(self, task: Task, command: Command, epoch: int) -> None:
        """Publish one command and wait until it is folded: until then its task is not decided about again."""
        try:
            stored = await self._publish(task, command, epoch)
            if isinstance(stored, Written):
                await self._has_folded(stored.seq)
            else:
                self._mark(task.id)
                self._step_down(task, command, epoch)
        except TooLarge as error:  # it will be as large the next time
            self._impossible[task.id] = f"what the leader has to write about it is too large: {error}"[:2_000]
            self._mark(task.id)
        except BusError as error:
            log.warning("decision not stored", task=task.id, command=type(command).__name__, error=str(error))
            if error.landed is None:  # it may still be on its way: with new epochs it comes too late
                self._step_down(task, command, epoch)
            await asyncio.sleep(0.5)
            self._mark(task.id)
        except Exception:
            log.exception("a decision could not be carried out", task=task.id, command=type(command).__name__)
            await asyncio.sleep(0.5)
            self._mark(task.id)
        finally:
            if isinstance(command, Order | Allow):
                self._room.kept(task.id, command.step)
                if (task.id, command.step) not in self.board.under_way:
                    self._give_back()  # what was promised for it is free again
            self._busy[task.id] -= 1
            if not self._busy[task.id]:
                del self._busy[task.id]
            self._wake.set()

    def _step_down(self, task: Task, command: Command, epoch: int) -> None:
        """Lead no more, unless a register fenced the command, or an earlier leadership of ours had decided it."""
        if not isinstance(command, Release | Revoke) and epoch == self._leadership.epochs[subjects.shard(task.id)]:
            self.leading.clear()

    async def _publish(self, task: Task, command: Command, epoch: int) -> Written | Conflict:
        if isinstance(command, End):
            command = await self._confirmed(task, command)
        op, shard = secrets.token_hex(12), subjects.shard(task.id)
        draft = record_of(task, command, op=op, worker=self.id, time=self._clock.stamp(), epoch=epoch)
        step = {} if isinstance(command, End) else {"step": getattr(command, "step", "")}
        log.info(draft.kind, task=task.id, **step, text=text_of(command)[:200])
        if draft.on_register:
            return await write(self._bus, draft.subject, draft.data, op=op, fence=draft.fence)
        async with self._shards[shard]:
            return await write(self._bus, draft.subject, draft.data, op=op, fence=draft.fence)

    async def _confirmed(self, task: Task, end: End) -> End:
        """The end, with the steps whose worker has not said in time that everything it had started is gone."""
        claims = [(step.id, step.fence) for step in task.steps.values() if step.status == "revoked" and step.fence]
        if not claims:
            return end
        left = await self._stops.unconfirmed(task.id, claims)
        return End(replace(end.body, unconfirmed=left))

    async def _sweep_for_ever(self) -> None:
        """Take back what fell silent or was lost, and look again at whatever time alone can change."""
        await self.leading.wait()
        loop = asyncio.get_running_loop()
        review = reconcile = loop.time()
        while self.leading.is_set():
            await asyncio.sleep(0.5)
            for name, command in await self._sweeper.sweep():
                if not self._busy[name]:
                    self._start(self.board.tasks[name], command)
            self._look_at_clocks()
            if loop.time() - review > REVIEW_SECONDS:
                review = loop.time()
                for name in self._sweeper.tasks_under_way():
                    self._mark(name)
            if loop.time() - reconcile > RECONCILE_SECONDS:
                reconcile = loop.time()
                for task in self.board.tasks.values():
                    if task.final is None:
                        self._mark(task.id)

    def _look_at_clocks(self) -> None:
        """Mark the tasks whose deadline or whose gate's time has come."""
        now = self._sweeper.now()
        for name in list(self._timed):
            task = self.board.tasks.get(name)
            instant = next_instant(task) if task is not None and task.final is None else None
            if instant is None:
                del self._timed[name]
            elif instant <= now:
                self._mark(name)


_GIVES_BACK = ("step.done", "step.failed", "step.waiting", "step.released", "step.revoked", "task.final")
"""Records after which a budget may have more left than before."""


_NO_NEWS = ("step.order", "step.claimed", "step.journal", "step.granted", "artifact", "gate.request")


def _asks(task: Task, applied: Applied) -> bool:
    """Whether an owner asks for more with this record."""
    step = task.steps.get((applied.record.step if applied.record is not None else None) or "")
    return step is not None and step.asks is not None


def _below(board: Board, task: Task) -> Iterator[str]:
    """Every task below this one."""
    found = list(task.children)
    for name in found:
        yield name
        found += board.tasks[name].children if name in board.tasks else []


async def _forward(reading: asyncio.Task[None]) -> None:
    """Let the end of the reader be the end of the group."""
    await reading
