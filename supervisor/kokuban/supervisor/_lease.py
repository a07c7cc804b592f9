"""Leadership: a lease on the server's clock, and the epochs that fence what a leader decides (DESIGN 4.2).

The lease is one record that the server itself expires (`Nats-TTL`). Whoever stores the next one, with "expected last
sequence 0", leads; so no clock is ever compared. The lease keeps order; the epochs make a late leader harmless.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

import structlog

from kokuban.blackboard.clock import SYSTEM, Clock
from kokuban.blackboard.wire import Bus, BusError, Conflict, Fence, Refused, Written, write
from kokuban.schemas import Epoch, Lease, seal, subjects

TTL_SECONDS = 3
ASK_SECONDS = 0.25
RENEWALS = 3
"""How often a lease is renewed in the time that it lives."""
log = structlog.get_logger("kokuban.lease")


class Leadership:
    """Acquires, renews and gives up the lease, and writes the epochs of a new leader."""

    def __init__(self, bus: Bus, supervisor: str, *, ttl_seconds: int = TTL_SECONDS, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self.epochs: dict[int, int] = {}
        self._bus = bus
        self._supervisor = supervisor
        self._ttl_seconds = ttl_seconds
        self._seq = 0  # of our lease, 0 without one
        self._stored: deque[int] = deque(maxlen=RENEWALS + 1)  # those of it that may not have expired yet

    async def acquire(self) -> None:
        """Wait until this supervisor holds the lease."""
        while True:
            try:
                stored = await self._write_lease(0)
            except BusError as error:
                log.debug("no lease yet", error=str(error))
            else:
                if isinstance(stored, Written):
                    self._seq = stored.seq
                    return
            await asyncio.sleep(ASK_SECONDS)

    async def raise_epochs(self) -> int:
        """Fence every earlier leader off, shard by shard; returns the last epoch's sequence. Raises `BusError`."""
        for shard in range(subjects.EPOCH_SHARDS):
            subject = subjects.epoch(shard)
            while True:
                last = await self._bus.last(subject)
                op = secrets.token_hex(12)
                body = Epoch(self._supervisor, shard)
                data = seal(body, id=op, type="ctl.epoch", worker=self._supervisor, time=self._clock.stamp())
                stored = await write(self._bus, subject, data, op=op, fence=Fence(subject, last.seq if last else 0))
                if isinstance(stored, Written):
                    self.epochs[shard] = stored.seq
                    break
        return max(self.epochs.values())

    async def keep(self) -> None:
        """Renew until the lease is lost, then return."""
        loop = asyncio.get_running_loop()
        good_until = loop.time() + self._ttl_seconds
        while True:
            await asyncio.sleep(self._ttl_seconds / RENEWALS)
            asked = loop.time()  # the server counts from a later instant than this
            if asked > good_until:
                return
            try:
                # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the answer.
                async with asyncio.timeout(good_until - asked):
                    stored = await self._write_lease(self._seq)
            except (BusError, TimeoutError) as error:
                log.warning("lease not renewed", error=str(error))
                continue
            if isinstance(stored, Conflict):
                self._seq = 0
                return
            self._seq, good_until = stored.seq, asked + self._ttl_seconds

    async def give_up(self) -> None:
        """Let the next supervisor lead at once, if we hold the lease. Best effort: it expires anyway. The records
        before the last renewal live for a while too; the one in force goes last."""
        if not self._seq:
            return
        for seq in self._stored:
            try:
                await self._bus.api(f"STREAM.MSG.DELETE.{subjects.BOARD}", {"seq": seq, "no_erase": True}, timeout=1)
            except Refused:
                log.debug("lease had expired", seq=seq)
            except BusError:
                log.debug("lease left to expire")
                break
        self._stored.clear()
        self._seq = 0

    async def _write_lease(self, after: int) -> Written | Conflict:
        op = secrets.token_hex(12)
        data = seal(Lease(self._supervisor), id=op, type="ctl.lease", worker=self._supervisor, time=self._clock.stamp())
        fence = Fence(subjects.LEASE, after)
        ttl = self._ttl_seconds
        stored = await write(self._bus, subjects.LEASE, data, op=op, fence=fence, ttl=f"{ttl}s", patience_seconds=ttl)
        if isinstance(stored, Written):
            self._stored.append(stored.seq)
        return stored
