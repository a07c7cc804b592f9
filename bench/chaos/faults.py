"""The faults, and a schedule of them by a seed. A fault also heals what it broke, after its time."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from crew import Crew
from servers import Servers

from kokuban.blackboard.wire import Bus, BusError
from kokuban.schemas import subjects

FILLER = "kb.chaos.filler"
FILLER_BYTES = 512 * 1024


@dataclass
class Attack:
    """Carries a schedule out. `done` counts the faults by kind; `planned` is the schedule, instant and kind."""

    seed: int
    crew: Crew
    servers: Servers
    bus: Bus
    count: int
    seconds: float
    kinds: tuple[str, ...] = ()
    done: Counter[str] = field(default_factory=Counter)
    planned: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._one_server = asyncio.Lock()
        self._kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "kill worker": self._kill_worker, "stop worker": self._stop_worker,
            "kill supervisor": self._kill_supervisor, "stop supervisor": self._stop_supervisor,
            "kill server": self._kill_server, "stop server": self._stop_server, "cut": self._cut, "hold": self._hold,
            "fill": self._fill, "redeliver": self._redeliver, "skew": self._skew,
        }  # fmt: skip
        names = list(self.kinds or self._kinds)
        self._kinds["stop coder"] = self._stop_coder  # only when it is asked for
        # Each kind about as often: a shuffled deck, dealt again and again.
        deck: list[str] = []
        while len(deck) < self.count:
            hand = list(names)
            self._dice.shuffle(hand)
            deck += hand
        gaps = [self._dice.uniform(0.5, 1.5) for _ in range(self.count)]
        scale, at = self.seconds / max(1.0, sum(gaps)), 0.0
        for name, gap in zip(deck, gaps, strict=False):
            at += gap * scale
            self.planned.append((at, name))

    async def run(self) -> None:
        """Every fault at its time; returns when the last one is healed."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            for at, name in self.planned:
                await asyncio.sleep(max(0.0, begun + at - loop.time()))
                group.create_task(self._one(name))

    async def _one(self, name: str) -> None:
        what = await self._kinds[name]()
        self.done[name if what else f"{name} (nothing there)"] += 1

    # ------------------------------------------------------------------ processes

    async def _kill_worker(self) -> str:
        return await self._kill(*())

    async def _kill_supervisor(self) -> str:
        return await self._kill("supervisor")

    async def _kill(self, *roles: str) -> str:
        member = self.crew.some(self._dice, *roles)
        pause = self._dice.uniform(0.0, 1.5)
        if member is None:
            return ""
        await self.crew.kill(member)
        await asyncio.sleep(pause)
        await self.crew.launch(member)
        return member.role

    async def _stop_worker(self) -> str:
        return await self._stop(self._dice.uniform(1, 8))

    async def _stop_coder(self) -> str:
        """For longer than the silence that a leader allows."""
        return await self._stop(self._dice.uniform(5, 7), "coder")

    async def _stop_supervisor(self) -> str:
        return await self._stop(self._dice.uniform(1, 12), "supervisor")

    async def _stop(self, seconds: float, *roles: str) -> str:
        member = self.crew.some(self._dice, *roles)
        if member is None:
            return ""
        self.crew.stop(member)
        await asyncio.sleep(seconds)
        self.crew.go_on(member)
        return member.role

    async def _skew(self) -> str:
        """A worker comes back with a clock that is wrong by up to an hour."""
        member, skew = self.crew.some(self._dice), self._dice.uniform(-3_600, 3_600)
        if member is None:
            return ""
        await self.crew.kill(member)
        member.skew = skew
        await self.crew.launch(member)
        return member.role

    # ------------------------------------------------------------------ servers

    async def _leader(self) -> int:
        """Which server leads the stream: the one to hit, half of the time."""
        if self.servers.replicas == 1:
            return 0
        lucky, any_one = self._dice.random() < 0.5, self._dice.randrange(self.servers.replicas)
        if lucky:
            with suppress(BusError, KeyError, ValueError):
                info = await self.bus.api(f"STREAM.INFO.{subjects.BOARD}", timeout=1)
                return int(info["cluster"]["leader"][1:])
        return any_one

    async def _kill_server(self) -> str:
        pause = self._dice.uniform(0.1, 2.0)
        async with self._one_server:
            n = await self._leader()
            await self.servers.kill(n)
            await asyncio.sleep(pause)
            await self.servers.restart(n)
            await self._served()
        return f"server {n}"

    async def _stop_server(self) -> str:
        seconds = self._dice.uniform(0.5, 4.0)
        async with self._one_server:
            n = await self._leader()
            os.kill(self.servers.pid(n), signal.SIGSTOP)
            await asyncio.sleep(seconds)
            os.kill(self.servers.pid(n), signal.SIGCONT)
            await self._served()
        return f"server {n}"

    async def _served(self) -> None:
        """Wait until the stream answers, so that no majority is ever taken away."""
        for _ in range(100):
            with suppress(BusError):
                info = await self.bus.api(f"STREAM.INFO.{subjects.BOARD}", timeout=1)
                replicas = info.get("cluster", {}).get("replicas", [])
                if all(r.get("current") and not r.get("offline") for r in replicas):
                    return
            await asyncio.sleep(0.2)

    # ------------------------------------------------------------------ connections, store, deliveries

    async def _cut(self) -> str:
        member = self._dice.choice(self.crew.members)
        member.proxy.cut()
        return member.role

    async def _hold(self) -> str:
        """A member hears nothing for a while, and then all of it at once."""
        member, seconds = self._dice.choice(self.crew.members), self._dice.uniform(0.5, 6.0)
        member.proxy.hold()
        await asyncio.sleep(seconds)
        member.proxy.release()
        return member.role

    async def _fill(self) -> str:
        """The store is full for a while: nothing can be written."""
        seconds, full = self._dice.uniform(0.5, 3.0), False
        give_up = asyncio.get_running_loop().time() + 8
        try:
            while not full and asyncio.get_running_loop().time() < give_up:
                full = await self._is_refused(secrets.token_bytes(64) * (FILLER_BYTES // 64))
            while not await self._is_refused(b"x" * 512) and asyncio.get_running_loop().time() < give_up:
                pass  # and to the last byte
            await asyncio.sleep(seconds)
        finally:
            for _ in range(100):
                try:
                    await self.bus.api(f"STREAM.PURGE.{subjects.BOARD}", {"filter": FILLER}, timeout=2)
                    break
                except BusError:
                    await asyncio.sleep(0.2)
        return "full" if full else ""

    async def _is_refused(self, data: bytes) -> bool:
        try:
            return bool((await self.bus.publish(FILLER, data, timeout=2)).code)
        except BusError:
            await asyncio.sleep(0.1)
            return False

    async def _redeliver(self) -> str:
        """A role's consumer is lost: made anew, it delivers every order again."""
        role = self._dice.choice(["planner", "coder", "verifier", "integrator"])
        try:
            await self.bus.api(f"CONSUMER.DELETE.{subjects.BOARD}.{subjects.consumer(role)}", timeout=2)
        except BusError:
            return ""
        return role
