"""A process of a run with several supervisors: `run_several.py supervisor|workers URL HOME SCRIPT [OPTION=VALUE …]`.

It says `ready` once it has folded the board, or connected its workers. Options of a supervisor: `lease`, its seconds;
`stop`, the crash point at which it stops itself (SIGSTOP), once; `break=epoch`, no epoch fences what it decides, and it
does not notice that it has lost its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import structlog

from kokuban.agents import Worker
from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles import program_for
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import Supervisor
from kokuban.supervisor._lease import TTL_SECONDS

ROLES = ("planner", "coder", "verifier", "integrator")
SILENCE_SECONDS = 5.0


async def supervise(url: str, lease_seconds: int) -> None:
    async with await Bus.connect(url) as bus:
        member = Supervisor(bus, silence_seconds=SILENCE_SECONDS, lease_seconds=lease_seconds)
        running = asyncio.create_task(member.run())
        ready = asyncio.create_task(member._reader.caught_up.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        print("ready", flush=True)
        await running


async def work(url: str, home: str, script: str) -> None:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for role in ROLES:
            bus = await stack.enter_async_context(await Bus.connect(url))
            contract = builtin_crew()[role]
            meter = Meter(open_model(script, env={})) if contract.model else None
            member = Worker(bus, contract, program_for(role), home=Path(home) / role, meter=meter, concurrency=2)
            group.create_task(member.run())
        print("ready", flush=True)


def break_epochs() -> None:
    from kokuban.blackboard.wire import Written
    from kokuban.supervisor import _lease, service

    async def write(bus: Bus, subject: str, data: bytes, **rest: Any) -> Written:
        return Written((await bus.patiently(lambda: bus.publish(subject, data, {}))).seq)

    async def keep(self: Any) -> None:
        await asyncio.Event().wait()

    service.write = write
    _lease.Leadership.keep = keep  # type: ignore[method-assign]


def stop_at(wanted: str) -> None:
    from kokuban.blackboard.wire import _write

    left = [wanted]

    def point(name: str) -> None:
        if left and fnmatch(name, left[0]):
            left.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    _write.crash_point = point


if __name__ == "__main__":
    what, address, folder, model, *rest = sys.argv[1:]
    options = dict(option.split("=", 1) for option in rest)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if what == "supervisor" else logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if "break" in options:
        break_epochs()
    if "stop" in options:
        stop_at(options["stop"])
    lease = int(options.get("lease", TTL_SECONDS))
    asyncio.run(supervise(address, lease) if what == "supervisor" else work(address, folder, model))
