"""The clock that decisions and records use, in one place, so that a test can hand in its own. Waits inside the wire use
the event loop's time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """The operating system's clocks."""

    def monotonic(self) -> float:
        """Seconds that only grow: for deadlines and silence."""
        return time.monotonic()

    def stamp(self) -> str:
        """Now, in UTC, for people who read a record. Nothing is decided by it."""
        return datetime.now(UTC).isoformat(timespec="milliseconds")


SYSTEM = Clock()
