"""The tasks of a run and the people around them: what is submitted, cancelled, approved, by the seed."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any

import msgspec

from kokuban.blackboard import Client
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, BusError, Fence, write
from kokuban.schemas import BoardLimits, Budget, GateRequest, TenantLimits, Waiting, open_record, seal, subjects

PEOPLE = ("ann", "bob")
TENANTS = ("north", "south")
APPROVAL_SECONDS = 20


class People:
    """Submits the tasks over `seconds`, cancels some, votes on gates, changes limits. `accepted` are the tasks that the
    client said were stored."""

    def __init__(
        self, url: str, bus: Bus, seed: int, tasks: int, seconds: float, words: str = "", sort: float | None = None,
    ) -> None:  # fmt: skip
        self.accepted: set[str] = set()
        self.cancelled: set[str] = set()
        self._url = url
        self._bus = bus
        self._dice = random.Random(seed + 1)
        self._tasks = tasks
        self._seconds = seconds
        self._words = words.split()  # what every goal says; by the dice without
        self._sort = sort
        self._names: list[str] = []
        self._doing: set[asyncio.Task[None]] = set()
        self._board: Client | None = None

    async def run(self) -> None:
        """Until every task is accepted. `close` ends what is still being said."""
        self._board = await Client.connect(self._url)
        await self._limit(6, 8)
        loop, pace = asyncio.get_running_loop(), self._seconds / self._tasks
        begun = loop.time()
        submitting = []
        for number in range(self._tasks):
            await asyncio.sleep(max(0.0, begun + number * pace - loop.time()))
            if number in (self._tasks // 3, self._tasks * 2 // 3):
                self._do(self._limit(self._dice.randint(2, 8), self._dice.randint(4, 8)))
            submitting.append(asyncio.create_task(self._submit(number, *self._task())))
        await asyncio.gather(*submitting)

    async def close(self) -> None:
        for task in self._doing:
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)
        if self._board is not None:
            await self._board.close()

    def _do(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    # ------------------------------------------------------------------ tasks

    def _task(self) -> tuple[list[str], dict[str, Any], float | None]:
        """Words of the goal, what else the spec says, and after how long it is cancelled."""
        dice = self._dice
        words = ["keyed"] * dice.randint(1, 3) + ["other"] * (dice.random() < 0.12)
        spec: dict[str, Any] = {"tenant": dice.choice(TENANTS), "priority": dice.randint(-1, 1)}
        kind, cancel = dice.random(), None
        kind = kind if self._sort is None else self._sort
        if kind < 0.2:
            words += ["model"] * dice.randint(1, 4)
            spec["budget"] = Budget(steps=dice.randint(4, 30), tokens=dice.randint(6_000, 60_000), tool_calls=40)
            if self._names and dice.random() < 0.5:
                spec["parent"] = dice.choice(self._names[-8:])
        elif kind < 0.3:
            cancel = dice.uniform(0, 4)
            words += ["keyed"] * 5
        elif kind < 0.4:
            spec |= {"approve": ["patch"], "votes": dice.randint(1, 2), "approval_seconds": APPROVAL_SECONDS}
        elif kind < 0.5:
            words.append("asked")
            spec |= {"votes": dice.randint(1, 2), "approval_seconds": APPROVAL_SECONDS}
        elif kind < 0.56 and self._names:
            spec["after"] = [dice.choice(self._names[-8:])]
        elif kind < 0.6:
            spec["deadline_seconds"] = dice.randint(1, 6)
        dice.shuffle(words)
        return self._words or words, spec, cancel

    async def _submit(self, number: int, words: list[str], spec: dict[str, Any], cancel: float | None) -> None:
        key = f"chaos-{number}"
        while True:
            try:
                assert self._board is not None
                task = await self._board.submit(f"Task {number}: {' '.join(words)}", key=key, **spec)
            except BusError:  # with its key it can be submitted again and again
                await asyncio.sleep(0.3)
            else:
                break
        self.accepted.add(task)
        self._names.append(task)
        if cancel is not None:
            self.cancelled.add(task)
            await asyncio.sleep(cancel)
            await self._patiently(lambda: self._board.cancel(task, "chaos", person="ann"))

    async def _patiently(self, say: Any) -> None:
        while True:
            try:
                await say()
                return
            except BusError:
                await asyncio.sleep(0.3)

    # ------------------------------------------------------------------ gates and limits

    def saw(self, stored: Stored) -> None:
        """A record is stored: when it asks people something, they will answer, two of them at about the same time."""
        if not (stored.subject.endswith(".request") or b'"step.waiting"' in stored.data):
            return
        record = open_record(stored.data)
        shape = GateRequest if record.type == "gate.request" else Waiting
        gate = msgspec.json.decode(record.body, type=shape).gate
        assert record.task is not None
        for person in PEOPLE:
            word = "approve" if self._dice.random() < 0.9 else "deny"
            if self._dice.random() < 0.95:
                self._do(self._vote(record.task, gate.id, person, word, self._dice.uniform(0, 2)))

    async def _vote(self, task: str, gate: str, person: str, word: Any, wait: float) -> None:
        await asyncio.sleep(wait)
        board = self._board
        assert board is not None
        clicks = (self._patiently(lambda: board.vote(task, gate, word, person=person)) for _ in range(2))
        await asyncio.gather(*clicks, return_exceptions=True)  # somebody may have been faster, or the task is over

    async def _limit(self, coders: int, tenant: int) -> None:
        tenants = {name: TenantLimits(concurrency=tenant) for name in TENANTS}
        body = BoardLimits(roles={"coder": coders}, tenants=tenants)
        while True:
            op = secrets.token_hex(8)
            try:
                last = await self._bus.last(subjects.LIMITS)
                fence = Fence(subjects.LIMITS, last.seq if last else 0)
                await write(self._bus, subjects.LIMITS, seal(body, id=op, type="ctl.limits"), op=op, fence=fence)
                return
            except BusError:
                await asyncio.sleep(0.3)
