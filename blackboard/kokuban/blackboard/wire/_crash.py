"""Named crash points around every publish and ack. Off unless KOKUBAN_CRASH_AT names one; then the process is killed
there, as by `kill -9`. Form: `NAME` or `NAME#3` for the third time; NAME may end in `*`."""

from __future__ import annotations

import os
import signal

_wanted, _, _count = os.environ.get("KOKUBAN_CRASH_AT", "").partition("#")
_left = int(_count or 1)


def crash_point(name: str) -> None:
    """Die here when this point was asked for. Costs one comparison otherwise."""
    global _left
    if not _wanted:
        return
    if name == _wanted or (_wanted.endswith("*") and name.startswith(_wanted[:-1])):
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
