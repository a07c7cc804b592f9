"""The records that share a model endpoint: its limits, and who uses it now. One of each per endpoint, stream `CONTROL`.

Instants are seconds since 1970 on the *server's* clock; no machine's own wall clock is ever written or compared.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import Count, Wire

Instant = Annotated[float, Meta(ge=0, description="Seconds since 1970 on the server's clock.")]
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(max_length=128)]
Limit = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class EndpointLimits(Wire, frozen=True):
    """What all workers together may ask of one endpoint. A missing one is no limit, 0 is none at all.

    `concurrency` counts requests under way. The others count what the endpoint sees in any 60 seconds; tokens are input
    and output together.
    """

    concurrency: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None


class Holder(Wire, frozen=True):
    """A request under way. It counts, with the tokens that it may use at worst, until it is released or `until` comes:
    then the request has ended at the endpoint too, whatever became of the worker."""

    id: Id
    worker: Name
    until: Instant
    tokens: Count = 0


class Moment(Wire, frozen=True):
    """Requests that reached the endpoint, and tokens that were used, at `at` or before. They count for 60 seconds."""

    at: Instant
    requests: Count = 0
    tokens: Count = 0


class Waiter(Wire, frozen=True):
    """A place in the line. It is kept until `until`, or longer when the worker renews it."""

    id: Id
    worker: Name
    until: Instant


class Endpoint(Wire, frozen=True):
    """An endpoint's use. Nobody begins a request before `not_before`: the endpoint asked for that (Retry-After)."""

    holders: tuple[Holder, ...] = ()
    window: tuple[Moment, ...] = ()
    waiting: tuple[Waiter, ...] = ()
    not_before: Instant = 0.0
