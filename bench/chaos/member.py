"""One process of a chaos run: `member.py ROLE URL HOME ENDPOINT SCRIPT`, ROLE a role or `supervisor`.

SIGUSR1 makes a supervisor write what its board says into HOME. The environment: `KOKUBAN_CHAOS_SKEW`, seconds by which
this process's clock is wrong, and `KOKUBAN_CHAOS_BREAK`, a rule that it breaks on purpose (see `breaks.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import breaks
import structlog
from board_text import board_text
from effects import EffectCoder

from kokuban.agents import Worker
from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles import program_for
from kokuban.blackboard.clock import Clock
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import Supervisor

SILENCE_SECONDS, LEASE_SECONDS = 3.0, 2
CONCURRENCY = 4


class Skewed(Clock):
    """A wall clock that is off by some seconds, for whoever asks it in this process."""

    def __init__(self, seconds: float) -> None:
        self._seconds, right = seconds, time.time
        time.time = lambda: right() + seconds

    def stamp(self) -> str:
        return (datetime.now(UTC) + timedelta(seconds=self._seconds)).isoformat(timespec="milliseconds")


async def main(role: str, url: str, home: str, endpoint: str, script: str) -> None:
    skew = float(os.environ.get("KOKUBAN_CHAOS_SKEW", "0"))
    clock = Skewed(skew) if skew else Clock()
    breaks.apply(os.environ.get("KOKUBAN_CHAOS_BREAK", ""), role)
    async with await _connected(url) as bus:
        if role == "supervisor":
            await _supervise(bus, Path(home))
            return
        contract = builtin_crew()[role]
        program = EffectCoder(endpoint) if role == "coder" else program_for(role)
        meter = Meter(open_model(f"scripted:{script}", env={})) if role == "planner" else None
        place = Path(home) / f"{role}-{os.getpid()}"
        await Worker(
            bus, contract, program, home=place, meter=meter, concurrency=CONCURRENCY, clock=clock
        ).run()  # fmt: skip


async def _connected(url: str) -> Bus:
    """Whoever starts while no server answers tries again: a launcher would start it again."""
    while True:
        try:
            return await Bus.connect(url)
        except Exception:
            await asyncio.sleep(0.3)


async def _supervise(bus: Bus, home: Path) -> None:
    leader = Supervisor(bus, silence_seconds=SILENCE_SECONDS, lease_seconds=LEASE_SECONDS)

    async def tell() -> None:
        await leader._reader.caught_up.wait()
        place = home / f"board-{os.getpid()}"
        place.with_suffix(".tmp").write_text(f"{leader.board.last_seq}\n{board_text(leader.board)}")
        place.with_suffix(".tmp").rename(place)

    telling: set[asyncio.Task[None]] = set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: telling.add(asyncio.create_task(tell())))
    (home / f"ready-{os.getpid()}").touch()
    await leader.run()


if __name__ == "__main__":
    level = int(os.environ.get("KOKUBAN_CHAOS_LOG", logging.WARNING))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(*sys.argv[1:]))
