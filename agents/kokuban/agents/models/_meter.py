"""The meter: the one way to a model, and the count of what it cost."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Literal

import msgspec
from msgspec.structs import replace

from kokuban.blackboard.redaction import redacted

from ._curtain import Curtain, without_secrets
from ._errors import ModelDeadline, ModelError
from ._gate import Gate, Passage
from ._model import Model, Progress
from ._prices import Prices
from ._retry import RetryPolicy, retried
from ._types import CallContext, OnDelta, Reply, Request, Usage


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one call, recorded the moment it ended.

    `number` counts from 1 within its call, `model` is the one that was asked. `usage` None means nothing was bought:
    the server was not reached, or refused before it began. `error` is the class name of what went wrong, `code` the
    server's code for it.
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

    def and_(self, other: "Totals") -> "Totals":
        """Both together."""
        cached = None if self.cached_tokens is other.cached_tokens is None else 0
        if cached is not None:
            cached = (self.cached_tokens or 0) + (other.cached_tokens or 0)
        return Totals(
            self.attempts + other.attempts,
            self.replies + other.replies,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cached,
            self.estimated + other.estimated,
        )


OnAttempt = Callable[[Attempt], None]
ATTEMPTS_BEFORE_FALLBACK = 3
REST_SECONDS = 60.0
"""How long a model that could not serve is asked last; after a refusal that no waiting lifts, ten times as long."""
_FILTERED = frozenset({"content_filter", "refusal"})
"""How a reply ends that the provider's filter stopped."""


class Meter:
    """Calls a model with retries and a deadline, and records every attempt as it happens.

    `on_attempt` is called for each attempt, also failed, cut and cancelled ones; it must not raise. With a `gate`, no
    request is made without a slot of it; waiting for one is bounded by the call's deadline, and is no attempt. Clock,
    sleep and random are replaced in tests only.

    `fallbacks`, meters of other models, are asked in order when this one cannot serve: unreachable, its key refused,
    unavailable after some attempts, gone, or its filter refused. What is wrong with the request itself goes to no other
    model. A model that could not serve is asked last for a while.
    """

    def __init__(
        self,
        model: Model,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        prices: Prices | None = None,
        on_attempt: OnAttempt | None = None,
        gate: Gate | None = None,
        fallbacks: Sequence["Meter"] = (),
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
        self._fallbacks = tuple(fallbacks)
        self._rests_until = 0.0

    @property
    def model(self) -> Model:
        """The model behind this meter: the first that is asked."""
        return self._model

    @property
    def models(self) -> tuple[Model, ...]:
        """This model and its fallbacks."""
        return (self._model, *(meter.model for meter in self._fallbacks))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the servers of these models are, for those that have one."""
        return tuple(url for model in self.models if (url := str(getattr(model, "base_url", ""))))

    @property
    def context_tokens(self) -> int | None:
        """The smallest window of those that are known: whichever model answers, what fits it fits."""
        return min((m.context_tokens for m in self.models if m.context_tokens is not None), default=None)

    @property
    def prices(self) -> Prices:
        """What this meter's calls are priced by; the built-in table unless another was given."""
        return self._prices

    def cost(self, usage: Usage, model: str | None = None) -> int | None:
        """What this usage costs with the model of that name (`Attempt.model`; the first by default), in millionths of a
        US dollar; None when its price is not known."""
        return self._prices.cost(model or self._model.name, usage)

    def worst(self, input_tokens: int, output_tokens: int) -> int | None:
        """The most that one attempt with so many tokens can cost, whichever model answers, in millionths of a US
        dollar; None when the price of one is not known."""
        prices = [self._prices.worst(model.name, input_tokens, output_tokens) for model in self.models]
        return None if None in prices else max(price for price in prices if price is not None)

    @property
    def unpriced(self) -> str:
        """The name of the first model whose price is not known; '' when all are."""
        return next((model.name for model in self.models if self._prices.of(model.name) is None), "")

    @property
    def totals(self) -> Totals:
        """What all attempts so far cost, those of fallbacks too."""
        totals = self._totals
        for meter in self._fallbacks:
            totals = totals.and_(meter.totals)
        return totals

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
        gets text as it arrives (see `Delta` for what a retry means to it; another model's attempt is one more),
        `on_attempt` this call's attempts.
        `may_retry` is asked before each attempt but the first: what failed ones cost cannot add up beyond a budget.
        Raises `ModelError` when no attempt gave a complete reply: do not retry, that was done here. Raises
        `ModelDeadline` when the time is up.
        """
        curtain = Curtain(on_delta) if on_delta is not None else None
        try:
            reply = await self._of_any(
                request, context, deadline, curtain.show if curtain else None, on_attempt, may_retry
            )
        except ModelError as error:
            error.args = (redacted(str(error)), *error.args[1:])
            raise
        finally:
            if curtain is not None:
                curtain.end()
        return without_secrets(reply)

    async def _of_any(
        self,
        request: Request,
        context: CallContext,
        deadline: float,
        on_delta: OnDelta | None,
        on_attempt: OnAttempt | None,
        may_retry: Callable[[], Awaitable[bool]] | None,
    ) -> Reply:
        """The reply of the first model that can serve."""
        meters = sorted((self, *self._fallbacks), key=lambda meter: meter._rests_until > self._clock())
        made, failed = count(1), list[tuple[str, ModelError]]()
        for meter in meters:
            others = meter is not meters[-1]
            try:
                reply = await meter._tried(request, context, made, deadline, on_delta, on_attempt, may_retry, others)
            except ModelError as error:
                if not others or not error.elsewhere or not (may_retry is None or await may_retry()):
                    _tell_of(failed, error)
                    raise
                meter._rest(error)
                failed.append((meter.model.name, error))
                continue
            stopped = others and reply.finish in _FILTERED
            if not stopped or not (may_retry is None or await may_retry()):
                return reply
        raise AssertionError("the last model is asked, or raises")

    async def _tried(
        self,
        request: Request,
        context: CallContext,
        made: Iterator[int],
        deadline: float,
        on_delta: OnDelta | None,
        on_attempt: OnAttempt | None,
        may_retry: Callable[[], Awaitable[bool]] | None,
        others: bool,
    ) -> Reply:
        """This model's reply. Attempts are numbered by `made`, over all models. With `others` to be asked there is less
        patience."""

        async def attempt(_: int) -> Reply:
            return await self._attempt(request, context, next(made), deadline, on_delta, on_attempt)

        policy, patience = self._retry, None
        if others:
            patience = policy.longest_wait_seconds
            policy = replace(policy, max_attempts=min(policy.max_attempts, ATTEMPTS_BEFORE_FALLBACK))
        return await retried(
            attempt, policy, deadline=deadline, clock=self._clock, sleep=self._sleep, random=self._random,
            may_retry=may_retry, patience_seconds=patience,
        )  # fmt: skip

    def _rest(self, error: ModelError) -> None:
        seconds = max(REST_SECONDS, error.retry_after_seconds or 0.0) if error.retryable else 10 * REST_SECONDS
        self._rests_until = self._clock() + seconds

    async def aclose(self) -> None:
        """Let go of the models' connections."""
        await self._model.aclose()
        for meter in self._fallbacks:
            await meter.aclose()

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


def _tell_of(failed: list[tuple[str, ModelError]], error: ModelError) -> None:
    """Add to the last model's error what those before it said; it is to be tried later if any of them may be."""
    if failed:
        error.attempts += sum(earlier.attempts for _, earlier in failed)
        error.retryable = error.retryable or any(earlier.retryable for _, earlier in failed)
        error.args = ("; before it, ".join([str(error), *(f"{name}: {earlier}" for name, earlier in failed)]),)
