"""The meter: the one way to a model, and the count of what it cost."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from ._errors import ModelDeadline, ModelError
from ._gate import Gate, Passage
from ._model import Model, Progress
from ._prices import Prices
from ._retry import RetryPolicy, retried
from ._types import CallContext, OnDelta, Reply, Request, Usage


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one call, recorded the moment it ended.

    `number` counts from 1 within its call. `usage` None means nothing was bought: the server was not reached, or
    refused before it began. `error` is the class name of what went wrong, `code` the server's code for it.
    """

    context: CallContext
    model: str
    number: int
    outcome: Literal["replied", "failed", "cancelled"]
    usage: Usage | None
    seconds: float
    error: str | None = None
    code: str | None = None


class Totals(msgspec.Struct, frozen=True):
    """Sums over all attempts. `cached_tokens` is None until a server reported any; `estimated` counts attempts."""

    attempts: int = 0
    replies: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    estimated: int = 0

    def plus(self, attempt: Attempt) -> "Totals":
        """These totals with one more attempt."""
        usage = attempt.usage or Usage(0, 0)
        cached = self.cached_tokens
        if usage.cached_tokens is not None:
            cached = (cached or 0) + usage.cached_tokens
        return Totals(
            self.attempts + 1,
            self.replies + (attempt.outcome == "replied"),
            self.input_tokens + usage.input_tokens,
            self.output_tokens + usage.output_tokens,
            cached,
            self.estimated + usage.estimated,
        )


OnAttempt = Callable[[Attempt], None]


class Meter:
    """Calls a model with retries and a deadline, and records every attempt as it happens.

    `on_attempt` is called for each attempt, also failed, cut and cancelled ones; it must not raise. With a `gate`, no
    request is made without a slot of it; waiting for one is bounded by the call's deadline, and is no attempt. Clock,
    sleep and random are replaced in tests only.
    """

    def __init__(
        self,
        model: Model,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        prices: Prices | None = None,
        on_attempt: OnAttempt | None = None,
        gate: Gate | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._retry = retry
        self._prices = prices or Prices.load()
        self._on_attempt = on_attempt
        self._gate = gate
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._totals = Totals()

    @property
    def model(self) -> Model:
        """The model behind this meter."""
        return self._model

    @property
    def prices(self) -> Prices:
        """What this meter's calls are priced by; the built-in table unless another was given."""
        return self._prices

    def cost(self, usage: Usage) -> int | None:
        """What this usage of the model costs, in millionths of a US dollar; None when its price is not known."""
        return self._prices.cost(self._model.name, usage)

    def worst(self, input_tokens: int, output_tokens: int) -> int | None:
        """The most that one attempt with so many tokens can cost, in millionths of a US dollar; None: not known."""
        return self._prices.worst(self._model.name, input_tokens, output_tokens)

    @property
    def totals(self) -> Totals:
        """What all attempts so far cost."""
        return self._totals

    async def call(
        self,
        request: Request,
        context: CallContext,
        *,
        deadline: float,
        on_delta: OnDelta | None = None,
        on_attempt: OnAttempt | None = None,
        may_retry: Callable[[], Awaitable[bool]] | None = None,
    ) -> Reply:
        """The model's complete reply.

        `deadline` is an instant of the monotonic clock; it bounds all attempts and the waits between them. `on_delta`
        gets text as it arrives (see `Delta` for what a retry means to it), `on_attempt` this call's attempts.
        `may_retry` is asked before each attempt but the first: what failed ones cost cannot add up beyond a budget.
        Raises `ModelError` when no attempt gave a complete reply: do not retry, that was done here. Raises
        `ModelDeadline` when the time is up.
        """

        async def attempt(number: int) -> Reply:
            return await self._attempt(request, context, number, deadline, on_delta, on_attempt)

        return await retried(
            attempt, self._retry, deadline=deadline, clock=self._clock, sleep=self._sleep, random=self._random,
            may_retry=may_retry,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Let go of the model's connections."""
        await self._model.aclose()

    async def _attempt(
        self,
        request: Request,
        context: CallContext,
        number: int,
        deadline: float,
        on_delta: OnDelta | None,
        on_attempt: OnAttempt | None,
    ) -> Reply:
        progress = Passage(
            number, on_delta, gate=self._gate, request=request, deadline=deadline, clock=self._clock
        )  # fmt: skip
        await progress.enter()
        started = self._clock()
        if started >= progress.deadline:
            error = ModelDeadline("the deadline passed before the model was asked", code="deadline", spent=False)
            progress.leave(None, error)
            raise error
        reply: Reply | None = None
        failure: BaseException | None = None
        try:
            reply = await self._bounded(request, context, progress, progress.deadline - started)
            return reply
        except BaseException as error:
            failure = error
            raise
        finally:
            progress.leave(reply, failure)
            ended = self._ended(request, context, number, started, progress, reply, failure)
            self._totals = self._totals.plus(ended)
            for tell in (self._on_attempt, on_attempt):
                if tell is not None:
                    tell(ended)

    async def _bounded(self, request: Request, context: CallContext, progress: Progress, seconds: float) -> Reply:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await self._model.call(request, context, progress)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ModelDeadline("the deadline passed before the model had answered", code="deadline") from error

    def _ended(
        self,
        request: Request,
        context: CallContext,
        number: int,
        started: float,
        progress: Progress,
        reply: Reply | None,
        failure: BaseException | None,
    ) -> Attempt:
        usage: Usage | None
        if reply is not None:
            usage = reply.usage
        elif isinstance(failure, ModelError) and not failure.spent and not progress.output_bytes:
            usage = None
        else:
            usage = progress.usage(request, complete=False)
        cancelled = isinstance(failure, asyncio.CancelledError)
        return Attempt(
            context=context,
            model=self._model.name,
            number=number,
            outcome="replied" if reply is not None else "cancelled" if cancelled else "failed",
            usage=usage,
            seconds=self._clock() - started,
            error=None if failure is None else type(failure).__name__,
            code=failure.code if isinstance(failure, ModelError) else None,
        )
