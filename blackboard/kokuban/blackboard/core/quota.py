"""How workers share a model endpoint: a pure state machine over one record.

Exact at the endpoint, not only here. A request counts from before it is sent until it is known to have ended; in the
window it counts until `window_seconds` after the endpoint has *certainly* had it. So take any window of the endpoint's
own log, and the request in it that was granted last: whatever else lies in that window was counted when that grant was
given. This needs no bound on how long a request travels, only two readings of the clock: `now` in `acquire` is an
instant that has certainly come, those that `release` is given are instants that have certainly not been passed before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from kokuban.schemas.quota import Endpoint, EndpointLimits, Holder, Moment, Waiter

WINDOW_SECONDS = 60.12
"""A minute, and what the endpoint's clock may run slower than the server's (0.2 %)."""
LINE_SECONDS = 4.0
"""How long a place in the line is kept for a worker that does not come back: so long can a dead one delay the rest."""
GRAINS = 60
"""The window keeps so many sums, not every request, so the record stays small. What is in one leaves with its last."""


class Ask(NamedTuple):
    """A request that wants to begin. `tokens` is what it uses at worst; at `until` it has ended at the latest."""

    id: str
    worker: str
    tokens: int
    until: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The request counts from now on."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Not now. Ask again at `at` or when record or limits have changed; None: only then. `why` is for people."""

    at: float | None
    why: str


def acquire(
    state: Endpoint, limits: EndpointLimits, now: float, ask: Ask, *, window_seconds: float = WINDOW_SECONDS
) -> tuple[Endpoint, Granted | WaitUntil]:
    """Let the request begin when it keeps every limit and nobody is before it in the line; else give it a place there.
    Asking again with the same id changes nothing. A request that may use more tokens than the limit goes alone."""
    state = advanced(state, now, window_seconds=window_seconds)
    if any(holder.id == ask.id for holder in state.holders):
        return state, Granted()
    place = next((n for n, waiter in enumerate(state.waiting) if waiter.id == ask.id), None)
    ahead = state.waiting if place is None else state.waiting[:place]
    if state.not_before > now:
        return state, WaitUntil(state.not_before, "the endpoint asked everyone to wait")
    why = _obstacle(state, limits, ask)
    if 0 in (limits.concurrency, limits.requests_per_minute, limits.tokens_per_minute):
        return withdraw(state, ask.id), WaitUntil(None, why)
    if not why and not ahead:
        holder = Holder(ask.id, ask.worker, ask.until, ask.tokens)
        return replace(withdraw(state, ask.id), holders=(*state.holders, holder)), Granted()
    moments = [
        *(holder.until for holder in state.holders),
        *(moment.at + window_seconds for moment in state.window),
        *(waiter.until for waiter in ahead),
    ]
    if place is None or state.waiting[place].until - now < LINE_SECONDS / 2:
        mine = Waiter(ask.id, ask.worker, now + LINE_SECONDS)
        behind = () if place is None else state.waiting[place + 1 :]
        state = replace(state, waiting=(*ahead, mine, *behind))
    return state, WaitUntil(min(moments, default=None), why or "others are before it in the line")


def release(
    state: Endpoint, id: str, *, arrived: float, ended: float, tokens: int | None,
    window_seconds: float = WINDOW_SECONDS,
) -> Endpoint:  # fmt: skip
    """The request has ended: at the endpoint by `ended`, where it had arrived by `arrived`. `tokens` is what it used,
    None when that is not known for certain: then the reservation stands. Nothing to do for one that no longer holds."""
    holder = next((holder for holder in state.holders if holder.id == id), None)
    if holder is None:
        return state
    used = holder.tokens if tokens is None else tokens
    window = _add(state.window, min(arrived, ended), 1, 0, window_seconds)
    window = _add(window, ended, 0, used, window_seconds)
    return replace(state, holders=tuple(h for h in state.holders if h.id != id), window=window)


def shorten(state: Endpoint, id: str, until: float) -> Endpoint:
    """The request was given up and will have ended at the endpoint by `until`, if that is earlier than was said."""
    return replace(
        state, holders=tuple(replace(h, until=min(h.until, until)) if h.id == id else h for h in state.holders)
    )


def withdraw(state: Endpoint, id: str) -> Endpoint:
    """Give up a place in the line, or a grant under which nothing was sent."""
    return replace(
        state,
        holders=tuple(holder for holder in state.holders if holder.id != id),
        waiting=tuple(waiter for waiter in state.waiting if waiter.id != id),
    )


def hold_back(state: Endpoint, until: float) -> Endpoint:
    """Nobody begins a request before `until`."""
    return replace(state, not_before=max(state.not_before, until))


def advanced(state: Endpoint, now: float, *, window_seconds: float = WINDOW_SECONDS) -> Endpoint:
    """What is left of the state at `now`. A holder whose time is over has ended by then at the latest, and counts in
    the window from then with all that it may have used."""
    window = state.window
    for holder in state.holders:
        if holder.until <= now:
            window = _add(window, holder.until, 1, holder.tokens, window_seconds)
    return Endpoint(
        holders=tuple(holder for holder in state.holders if holder.until > now),
        window=tuple(moment for moment in window if moment.at + window_seconds > now),
        waiting=tuple(waiter for waiter in state.waiting if waiter.until > now),
        not_before=state.not_before if state.not_before > now else 0.0,
    )


def expires(state: Endpoint, *, window_seconds: float = WINDOW_SECONDS) -> float:
    """The instant from which the state says nothing any more."""
    return max(
        state.not_before,
        *(holder.until + window_seconds * (1 + 1 / GRAINS) for holder in state.holders),
        *(moment.at + window_seconds for moment in state.window),
        *(waiter.until for waiter in state.waiting),
        0.0,
    )


def _obstacle(state: Endpoint, limits: EndpointLimits, ask: Ask) -> str:
    """The limit that stands in the way, '' for none."""
    if limits.concurrency is not None and len(state.holders) >= limits.concurrency:
        return f"{limits.concurrency} requests at once are allowed"
    requests = len(state.holders) + sum(moment.requests for moment in state.window)
    if limits.requests_per_minute is not None and requests >= limits.requests_per_minute:
        return f"{limits.requests_per_minute} requests a minute are allowed"
    most = limits.tokens_per_minute
    if most is not None:
        tokens = sum(holder.tokens for holder in state.holders) + sum(moment.tokens for moment in state.window)
        if tokens + min(ask.tokens, most) > most or not most:
            return f"{most} tokens a minute are allowed"
    return ""


def _add(
    window: tuple[Moment, ...], at: float, requests: int, tokens: int, window_seconds: float
) -> tuple[Moment, ...]:
    """Count it at the end of its grain, never before `at`."""
    grain = window_seconds / GRAINS
    end = max(at, math.ceil(at / grain) * grain)  # floats round both ways
    for n, moment in enumerate(window):
        if moment.at == end:
            sums = Moment(end, moment.requests + requests, moment.tokens + tokens)
            return (*window[:n], sums, *window[n + 1 :])
    return (*window, Moment(end, requests, tokens))
