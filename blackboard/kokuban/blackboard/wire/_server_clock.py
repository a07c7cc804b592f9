"""What time it is on the server, as an interval: nothing here reads this machine's own wall clock."""

from __future__ import annotations

import asyncio

from kokuban.blackboard.wire._bus import Bus
from kokuban.blackboard.wire._find import seconds_of
from kokuban.schemas import subjects

FRESH_SECONDS = 10.0
DRIFT = 0.001
"""How far two clocks may run apart, of the time since they were compared. Good ones stay below a twentieth of it."""


class ServerClock:
    """Compares the server's clock with this process's monotonic one. Both bounds hold: `earliest` has certainly come,
    `latest` has certainly not been passed. Instants of the monotonic clock are those of the event loop."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asked = self._answered = self._stamp = 0.0
        self._known = False

    def forget(self) -> None:
        """Another server may answer from now on, with a clock of its own."""
        self._known = False

    async def refresh(self) -> None:
        """Compare again when it is time to. Raises `NoAnswer`, `Unavailable`, and `Refused` without the stream."""
        loop = asyncio.get_running_loop()
        if self._known and loop.time() - self._answered < FRESH_SECONDS:
            return
        asked = loop.time()
        info = await self._bus.api(f"STREAM.INFO.{subjects.CONTROL}", timeout=2.0)
        self._asked, self._answered, self._stamp = asked, loop.time(), seconds_of(info["ts"])
        self._known = True

    def earliest(self, instant: float) -> float:
        """The server's clock shows at least this at `instant`."""
        return self._stamp + (instant - self._answered) - self._slack(instant)

    def latest(self, instant: float) -> float:
        """The server's clock shows at most this at `instant`."""
        return self._stamp + (instant - self._asked) + self._slack(instant)

    def _slack(self, instant: float) -> float:
        return abs(instant - self._answered) * DRIFT
