"""The one layer that repeats model calls."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from ._errors import ModelError

T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how far apart a failed call is tried again.

    max_attempts: attempts in all; 1 never retries. Default 8: about a minute.
    first_wait_seconds: the wait before the second attempt; it doubles with each. Default 0.5.
    longest_wait_seconds: where doubling ends; a server's own Retry-After may be longer. Default 20.
    """

    max_attempts: int = 8
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 20.0

    def wait_seconds(self, attempt: int, retry_after_seconds: float | None, random: Callable[[], float]) -> float:
        """How long to wait after failed attempt number `attempt`.

        Between half the step and the whole step on top of what the server asked for, so that siblings which failed
        together do not come back together.
        """
        step = min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** (attempt - 1))
        return (retry_after_seconds or 0.0) + step * (0.5 + 0.5 * random())


async def retried(
    attempt: Callable[[int], Awaitable[T]],
    policy: RetryPolicy,
    *,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    random: Callable[[], float],
    may_retry: Callable[[], Awaitable[bool]] | None = None,
    patience_seconds: float | None = None,
) -> T:
    """Call `attempt` (with its number, from 1) until it returns, fails for good, `may_retry` says no, waiting would
    pass `deadline`, or the server asks for a wait of more than `patience_seconds`.

    Raises the last attempt's `ModelError` with `attempts` set.
    """
    number = 0
    while True:
        number += 1
        try:
            return await attempt(number)
        except ModelError as error:
            error.attempts = number
            if not error.retryable or number >= policy.max_attempts:
                raise
            if patience_seconds is not None and (error.retry_after_seconds or 0.0) > patience_seconds:
                raise
            wait = policy.wait_seconds(number, error.retry_after_seconds, random)
            if clock() + wait >= deadline or (may_retry is not None and not await may_retry()):
                raise
        await sleep(wait)
