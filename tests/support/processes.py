"""Child processes of tests: how they begin, what they say, and that their end is waited for in bounds; and small
programs to run."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from kokuban.blackboard.wire.embedded import die_with_parent

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="relies on the kernel ending children with their parent"
)

DRAINS = """
    import signal, sys
    def end(signum, frame): print("drained", flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    while True: signal.pause()
"""
IGNORES_SIGTERM = """
    import os, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0: print("grandchild", os.getpid(), flush=True)
    else: print("ready", flush=True)
    signal.alarm(60)  # nobody else ends it when a test fails
    while True: signal.pause()
"""

KILL_SECONDS = 20.0
"""For the end of what was killed; without a bound a clean-up could hang."""
Process = asyncio.subprocess.Process


@asynccontextmanager
async def child(
    *words: str, env: Mapping[str, str] | None = None, log: Path | None = None, crash_at: str = ""
) -> AsyncIterator[Process]:
    """Python with these words, as a process of its own: `-m kokuban.console.main …`, or a file. It has no settings of
    ours but those in `env`, and writes to `log`; killed at `crash_at`, or at the end of the block."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")} | dict(env or {})
    if crash_at:
        given["KOKUBAN_CRASH_AT"] = crash_at
    with log.open("ab") if log is not None else nullcontext() as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=given, stdout=file or asyncio.subprocess.DEVNULL, stderr=file,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    try:
        yield process
    finally:
        await end(process)


async def end(process: Process) -> None:
    """kill -9, if it still runs, and its end."""
    if process.returncode is None:
        process.kill()
    await asyncio.wait_for(process.wait(), KILL_SECONDS)


async def said(log: Path, line: str) -> str:
    """The first line of the log that begins with `line`, once it is there."""
    async with asyncio.timeout(20):
        while True:
            if log.exists():
                for found in log.read_text().splitlines():
                    if found.startswith(line):
                        return found
            await asyncio.sleep(0.005)


def gone(pid: int, within_seconds: float = 10) -> bool:
    """Waits for the end of any process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], within_seconds)[0])
    finally:
        os.close(fd)
