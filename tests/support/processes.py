"""Small child programs for tests of processes, and how to wait for what they say and for their end."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path

import pytest

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
