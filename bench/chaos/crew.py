"""The processes under attack: started, killed, stopped and started again, each by its own id."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from proxy import Proxy
from servers import Servers

from kokuban.blackboard.wire.embedded import die_with_parent

HERE = Path(__file__).parent
ROLES = {"supervisor": 3, "planner": 1, "coder": 3, "verifier": 2, "integrator": 1}


@dataclass
class Member:
    """A process and its proxy. `skew` is by how many seconds its clock is wrong from its next start on."""

    role: str
    proxy: Proxy
    process: asyncio.subprocess.Process | None = None
    stopped: bool = False
    skew: float = 0.0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None


@dataclass
class Crew:
    """All members. `breaks` is the rule that they break on purpose, '' for none."""

    servers: Servers
    home: Path
    endpoint: str
    script: Path
    breaks: str = ""
    members: list[Member] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)

    async def start(self) -> None:
        for role, count in ROLES.items():
            for _ in range(count):
                member = Member(role, await Proxy(lambda: self.servers.ports).start())
                self.members.append(member)
                await self.launch(member)

    async def launch(self, member: Member) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
        environment |= {
            "KOKUBAN_CHAOS_BREAK": self.breaks,
            "KOKUBAN_CHAOS_SKEW": str(member.skew),
            "KOKUBAN_CHAOS_LOG": os.environ.get("KOKUBAN_CHAOS_LOG", "30"),
        }
        with (self.home / f"{member.role}.log").open("ab") as log:
            member.process = await asyncio.create_subprocess_exec(
                sys.executable, str(HERE / "member.py"), member.role, member.proxy.url, str(self.home), self.endpoint,
                str(self.script), env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=log,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip
        member.stopped = False

    async def kill(self, member: Member) -> None:
        if member.process is not None and member.alive:
            member.process.kill()
            await member.process.wait()

    def stop(self, member: Member) -> None:
        if member.process is not None and member.alive:
            member.process.send_signal(signal.SIGSTOP)
            member.stopped = True

    def go_on(self, member: Member) -> None:
        if member.process is not None and member.alive:
            member.process.send_signal(signal.SIGCONT)
        member.stopped = False

    def some(self, dice: random.Random, *roles: str) -> Member | None:
        """A running member of these roles (any worker's without), by the dice; None when all are down already."""
        fit = [m for m in self.members if m.alive and not m.stopped]
        fit = [m for m in fit if m.role in roles or (not roles and m.role != "supervisor")]
        return dice.choice(fit) if fit else None

    async def heal(self) -> None:
        """Everything runs again. A process that had ended by itself is a finding."""
        for member in self.members:
            member.proxy.release()
            self.go_on(member)
            if not member.alive:
                await self.launch(member)

    async def watch(self) -> None:
        """Start again what ended by itself, and remember it; as a launcher would. Until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            for member in self.members:
                process = member.process
                if process is not None and process.returncode not in (None, -signal.SIGKILL):
                    self.deaths.append(f"{member.role} ended with code {process.returncode}")
                    await self.launch(member)

    async def boards(self, seconds: float = 30) -> list[str]:
        """What each supervisor says of its board now."""
        found = []
        for member in self.members:
            if member.role == "supervisor" and member.process is not None:
                pid = member.process.pid
                place, ready = self.home / f"board-{pid}", self.home / f"ready-{pid}"
                try:
                    async with asyncio.timeout(seconds):
                        await _there(ready)
                        member.process.send_signal(signal.SIGUSR1)
                        await _there(place)
                    found.append(place.read_text())
                except (TimeoutError, ProcessLookupError):
                    found.append("no answer")
        return found

    async def end(self) -> None:
        for member in self.members:
            self.go_on(member)
            await self.kill(member)
            member.proxy.stop()


async def _there(path: Path) -> None:
    for _ in range(10_000):
        if path.exists():
            return
        await asyncio.sleep(0.05)
