"""One process's part in sharing a model endpoint: slots by compare-and-set on one record (see `core/quota.py`).

One task of this process does all its writes, so they never compete with each other and go together where they can: what
ended and who comes next are one record. Every change names a request by its id and may be made twice, so a write of
unknown outcome is simply read back with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from nats.aio.msg import Msg

from kokuban.blackboard.core import quota as core
from kokuban.blackboard.wire._bus import Bus, BusError, Refused
from kokuban.blackboard.wire._server_clock import ServerClock
from kokuban.blackboard.wire._setup import STREAM_MISSING, ensure_control
from kokuban.blackboard.wire._write import Conflict, Fence, write
from kokuban.schemas import BadRecord, open_record, seal, subjects
from kokuban.schemas.quota import Endpoint, EndpointLimits

LIMITS_FRESH_SECONDS = 5.0
RECHECK_SECONDS = 1.0
"""Hints may be lost: who waits looks again after this long, and so renews its place in the line."""
TTL_SLACK_SECONDS = 4
LONGEST_RETRY_AFTER_SECONDS = 600.0
log = structlog.get_logger("kokuban.quota")

Change = Callable[[Endpoint], Endpoint]


@dataclass(frozen=True, slots=True)
class Slot:
    """The right to make one request until `deadline`, an instant of the event loop's clock. `id` None: no limits."""

    id: str | None
    deadline: float


@dataclass(eq=False, slots=True)
class _Ask:
    id: str
    tokens: int
    deadline: float
    answer: asyncio.Future[Slot]


class Quota:
    """The gate to one endpoint. Use `async with`.

    A slot that is not given back counts until its deadline and `margin_seconds` more (for what the endpoint still does
    after a caller went away); one that was given up, for `linger_seconds`. No slot is given for more than
    `longest_call_seconds`. With no limits record there are no slots and nothing is written, but what the endpoint
    asked for by Retry-After holds all the same.
    """

    def __init__(
        self, bus: Bus, endpoint: str, worker: str, *, window_seconds: float = core.WINDOW_SECONDS,
        margin_seconds: float = 5.0, linger_seconds: float = 1.0, longest_call_seconds: float = 600.0,
    ) -> None:  # fmt: skip
        self.endpoint = subjects.token(endpoint, "endpoint")
        self.writes = 0
        self._bus, self._worker = bus, worker[:128]
        self._window, self._margin, self._linger = window_seconds, margin_seconds, linger_seconds
        self._longest = longest_call_seconds
        self._clock = ServerClock(bus)
        self._asks: list[_Ask] = []
        self._changes: list[Change] = []
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._seq, self._state, self._read_at, self._hinted = -1, Endpoint(), -math.inf, 0
        self._limits: EndpointLimits | None = None
        self._limits_at = -math.inf
        self._why = "the limits are not known yet"
        self._subscriptions: list[Any] = []
        self._operator: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Quota:
        self._subscriptions = [
            await self._bus.subscribe(f"{subjects.HINTS}.{subject}", hear)
            for subject, hear in (
                (subjects.endpoint(self.endpoint), self._on_use),
                (subjects.endpoint_limits(self.endpoint), self._on_limits),
            )
        ]
        self._bus.on_reconnect(self._unsure)
        self._operator = asyncio.create_task(self._operate())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give back what was held, waiting a little for a server that does not answer."""
        try:
            async with asyncio.timeout(2):
                await self._idle.wait()
        except TimeoutError:
            log.warning("slots are left to expire", endpoint=self.endpoint, slots=len(self._changes))
        finally:
            self._bus.forget(self._unsure)
            if self._operator is not None:
                self._operator.cancel()
                await asyncio.gather(self._operator, return_exceptions=True)
            if not self._bus.closed.is_set():
                for subscription in self._subscriptions:
                    await subscription.unsubscribe()

    # ------------------------------------------------------------------ what a caller does

    async def enter(self, *, tokens: int, deadline: float) -> Slot:
        """Wait for a slot for one request that uses at most `tokens`. `leave` with it, whatever happens.

        Raises `TimeoutError` with the limit that stood in the way when none was free by `deadline` (an instant of the
        event loop's clock), and `BusError` when the connection is closed for good. Nothing is held then."""
        if self._is_free():
            return Slot(None, deadline)
        ask = _Ask(secrets.token_hex(8), tokens, deadline, asyncio.get_running_loop().create_future())
        self._asks.append(ask)
        self._wake.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await ask.answer
        except BaseException as error:
            # It may have been granted just now, or by a write whose outcome is still unknown.
            self._asks = [other for other in self._asks if other is not ask]
            self._change(lambda state: core.withdraw(state, ask.id))
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"no free slot at the endpoint {self.endpoint!r} in time: {self._why}") from error
            raise

    def leave(
        self, slot: Slot, *, heard: float | None = None, tokens: int | None = None, gave_up: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:  # fmt: skip
        """The request has ended; the slot is given back soon after, without waiting for it here.

        `heard`: when the first of the answer came (an instant of the event loop's clock), so that the request had
        arrived. `tokens`: what it used, None when only the endpoint knows. `gave_up`: the connection was dropped, so
        the endpoint may be busy with it for a little longer. `retry_after_seconds`: the endpoint's wish, for everyone.
        """
        ended, clock, id = asyncio.get_running_loop().time(), self._clock, slot.id
        if retry_after_seconds is not None and retry_after_seconds > 0:
            wait = min(retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS)
            self._change(lambda state: core.hold_back(state, clock.latest(ended + wait)))
        if id is None:
            return
        if gave_up:
            self._change(lambda state: core.shorten(state, id, clock.latest(ended + self._linger)))
        else:
            arrived = ended if heard is None else heard
            self._change(
                lambda state: core.release(
                    state, id, arrived=clock.latest(arrived), ended=clock.latest(ended), tokens=tokens,
                    window_seconds=self._window,
                )
            )  # fmt: skip

    def _change(self, change: Change) -> None:
        self._changes.append(change)
        self._idle.clear()
        self._wake.set()

    def _is_free(self) -> bool:
        """Nothing limits this endpoint, as far as is known and soon enough known otherwise."""
        now = asyncio.get_running_loop().time()
        return (
            self._limits is None
            and now - self._limits_at < LIMITS_FRESH_SECONDS
            and self._hinted <= self._seq
            and not self._changes
            and (not self._state.not_before or self._clock.earliest(now) >= self._state.not_before)
        )

    # ------------------------------------------------------------------ what is heard

    async def _on_use(self, message: Msg) -> None:
        seq = int((message.headers or {}).get("Nats-Sequence", "0"))
        self._hinted = max(self._hinted, seq)
        if seq > self._seq and message.data:
            with contextlib.suppress(BadRecord, msgspec.ValidationError):  # then it is read, and the reason is told
                self._take(seq, _endpoint(message.data))
        if self._asks:
            self._wake.set()

    async def _on_limits(self, message: Msg) -> None:
        self._limits_at = -math.inf
        self._wake.set()

    async def _unsure(self) -> None:
        self._clock.forget()
        self._limits_at, self._seq = -math.inf, -1
        self._wake.set()

    def _take(self, seq: int, state: Endpoint) -> None:
        self._seq, self._state, self._read_at = seq, state, asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ the one who writes

    async def _operate(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            wait: float | None
            try:
                wait = await self._round()
                failures = 0
            except (BusError, BadRecord, msgspec.ValidationError) as error:
                self._seq, self._why = -1, f"the record cannot be read or written: {error}"
                failures += 1
                wait = min(RECHECK_SECONDS, 0.02 * 2 ** min(failures, 6))
                log.debug("quota", endpoint=self.endpoint, error=str(error))
                if self._bus.closed.is_set() and isinstance(error, BusError):
                    for ask in self._asks:
                        if not ask.answer.done():
                            ask.answer.set_exception(error)
            except Exception as error:  # a bug must not leave everyone waiting without a word
                self._seq, self._why, wait = -1, f"a bug: {error!r}", RECHECK_SECONDS
                log.exception("quota", endpoint=self.endpoint)
            if not self._changes:
                self._idle.set()
                wait = wait if self._asks else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _round(self) -> float | None:
        """Do what can be done now. Returns after how many seconds to try again, None: when something changes."""
        if not self._asks and not self._changes:
            return None
        now = asyncio.get_running_loop().time()
        await self._refresh(now)
        early = self._clock.earliest(asyncio.get_running_loop().time())
        before = state = core.advanced(self._state, early, window_seconds=self._window)
        changes = list(self._changes)
        for change in changes:
            state = change(state)
        granted: list[tuple[_Ask, Slot]] = []
        wait: float | None = None
        for ask in self._asks:
            if ask.answer.done():
                continue
            state, answer = self._judge(ask, state, early)
            if isinstance(answer, core.WaitUntil):  # in order: who came first goes first, whatever the others want
                self._why = answer.why
                wait = RECHECK_SECONDS if answer.at is None else min(RECHECK_SECONDS, max(0.0, answer.at - early))
                break
            granted.append((ask, answer))
        if state != before and not await self._store(state, early):
            return secrets.randbelow(4) / 1_000
        del self._changes[: len(changes)]
        if granted and self._limits is not None and self._limits_at == -math.inf:
            # The limits changed before this was stored: nothing was sent under it yet, so judge anew.
            for ask, _ in granted:
                self._change(lambda state, id=ask.id: core.withdraw(state, id))  # type: ignore[misc]
            return 0.0
        for ask, slot in granted:
            if not ask.answer.done():  # else it was given up meanwhile, and its withdrawal follows
                self._asks.remove(ask)
                ask.answer.set_result(slot)
        return wait

    def _judge(self, ask: _Ask, state: Endpoint, early: float) -> tuple[Endpoint, Slot | core.WaitUntil]:
        if self._limits is None:
            if state.not_before > early:
                return state, core.WaitUntil(state.not_before, "the endpoint asked everyone to wait")
            return state, Slot(None, ask.deadline)
        deadline = min(ask.deadline, asyncio.get_running_loop().time() + self._longest)
        until = self._clock.latest(deadline) + self._margin
        wanted = core.Ask(ask.id, self._worker, ask.tokens, until)
        state, outcome = core.acquire(state, self._limits, early, wanted, window_seconds=self._window)
        return state, outcome if isinstance(outcome, core.WaitUntil) else Slot(ask.id, deadline)

    async def _refresh(self, now: float) -> None:
        """Bring clock, limits and record up to date, as far as they are not. Without the stream there are no limits."""
        try:
            await self._clock.refresh()
        except Refused as error:
            if error.code != STREAM_MISSING:
                raise
            if self._changes and self._bus.may_set_up:
                await ensure_control(self._bus)
                return await self._refresh(now)
            self._limits, self._limits_at = None, now
            self._changes.clear()
            self._take(0, Endpoint())
            return None
        if now - self._limits_at >= LIMITS_FRESH_SECONDS:
            stored = await self._bus.last(subjects.endpoint_limits(self.endpoint), stream=subjects.CONTROL, timeout=2)
            limits = msgspec.json.decode(open_record(stored.data).body, type=EndpointLimits) if stored else None
            self._limits, self._limits_at = None if limits == EndpointLimits() else limits, now
        # An old record may be about to expire on the server, and with it the sequence to compare with.
        gone = core.expires(self._state, window_seconds=self._window) < self._clock.latest(now)
        if self._seq < self._hinted or self._seq < 0 or gone or now - self._read_at >= RECHECK_SECONDS:
            stored = await self._bus.last(subjects.endpoint(self.endpoint), stream=subjects.CONTROL, timeout=2)
            self._take(stored.seq if stored else 0, _endpoint(stored.data) if stored else Endpoint())
            self._hinted = min(self._hinted, self._seq)  # a hint of what has expired since
        return None

    async def _store(self, state: Endpoint, early: float) -> bool:
        op, subject = secrets.token_hex(8), subjects.endpoint(self.endpoint)
        data = seal(state, id=op, type="quota.endpoint", worker=self._worker)
        keep = core.expires(state, window_seconds=self._window) - early
        ttl = f"{max(1, math.ceil(keep)) + TTL_SLACK_SECONDS}s"
        fence, self._seq = Fence(subject, self._seq), -1
        self.writes += 1
        stored = await write(
            self._bus, subject, data, op=op, fence=fence, ttl=ttl, patience_seconds=2, stream=subjects.CONTROL
        )
        if isinstance(stored, Conflict):
            self._hinted = max(self._hinted, stored.last)
            return False
        if stored.seq > self._seq:  # else somebody has already written after us
            self._take(stored.seq, state)
        return True


def _endpoint(data: bytes) -> Endpoint:
    return msgspec.json.decode(open_record(data).body, type=Endpoint)
