"""Retries, deadlines, and a count of every attempt that was ever begun (A6, A12, B7 for retries; I2)."""

import asyncio
import time
from typing import Any

import pytest

from kokuban.agents.models import (
    Attempt,
    Delta,
    Meter,
    ModelDeadline,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ModelUnreachable,
    RetryPolicy,
    Totals,
    Usage,
    estimate_request_tokens,
)
from models.chat_server import (
    CONTEXT,
    DONE,
    SSE_HEAD,
    Answer,
    ChatServer,
    answer,
    data,
    delta,
    request,
    serving,
    stream,
    usage,
)

pytestmark = pytest.mark.anyio
GOOD = stream(delta("ok", finish="stop"), usage(50, 10), DONE)
BROKEN = stream(delta("12345678"), data({"error": {"code": 500, "message": "x"}}))
BUSY = answer(429, {"error": {"message": "busy"}})


class Bench:
    """A meter whose clock is moved by its own waits only."""

    def __init__(self, server: ChatServer, *, random: float = 0.5, **options: Any) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.attempts: list[Attempt] = []
        self.meter = Meter(
            server.model(),
            on_attempt=self.attempts.append,
            clock=lambda: self.now,
            sleep=self._sleep,
            random=lambda: random,
            **options,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def call(self, seconds: float = 1000.0, **options: Any) -> str:
        try:
            return (await self.meter.call(request(), CONTEXT, deadline=self.now + seconds, **options)).content
        finally:
            await self.meter.aclose()


async def test_a_passing_failure_is_retried_and_every_attempt_counted() -> None:
    async with serving(BROKEN, BUSY, SSE_HEAD + delta("12345"), GOOD) as server:
        bench = Bench(server)
        seen: list[Delta] = []
        assert await bench.call(on_delta=seen.append) == "ok"
    assert [(a.number, a.outcome, a.error, a.code) for a in bench.attempts] == [
        (1, "failed", "ModelUnavailable", "500"),
        (2, "failed", "ModelUnavailable", None),
        (3, "failed", "ModelCutOff", "cut_off"),
        (4, "replied", None, None),
    ]
    about = estimate_request_tokens(request())
    assert [a.usage for a in bench.attempts] == [
        Usage(about, 2, None, True),
        None,
        Usage(about, 2, None, True),
        Usage(50, 10, None, False),
    ]
    assert bench.meter.totals == Totals(4, 1, 50 + 2 * about, 14, None, 2)
    # What was shown of a failed attempt is void: the attempt number says so.
    assert [(d.attempt, d.text) for d in seen] == [(1, "12345678"), (3, "12345"), (4, "ok")]
    assert all(a.context is CONTEXT and a.model == "test:m" for a in bench.attempts)


async def test_waits_double_with_jitter_and_end() -> None:
    for random, waits in ((0.0, [1.0, 2.0, 2.5]), (1.0, [2.0, 4.0, 5.0])):
        async with serving(BUSY) as server:
            bench = Bench(server, random=random, retry=RetryPolicy(4, 2.0, 5.0))
            with pytest.raises(ModelUnavailable) as raised:
                await bench.call()
            assert bench.waits == waits
            assert raised.value.attempts == len(server.bodies) == 4


async def test_the_servers_wish_is_honoured_with_jitter_on_top() -> None:
    async with serving(answer(529, {}, "Retry-After: 30"), GOOD) as server:
        bench = Bench(server, random=0.5, retry=RetryPolicy(first_wait_seconds=1.0))
        assert await bench.call() == "ok"
        assert bench.waits == [30.75]


async def test_no_wait_passes_the_deadline() -> None:
    async with serving(answer(429, {}, "Retry-After: 30")) as server:
        bench = Bench(server)
        with pytest.raises(ModelUnavailable) as raised:
            await bench.call(seconds=20)
        assert bench.waits == []
        assert raised.value.retry_after_seconds == 30.0
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "reply",
    [
        answer(400, {"error": "no"}),
        answer(401, {}),
        answer(404, {}),
        answer(429, {"error": {"code": "insufficient_quota"}}),
        stream(delta("x"), data({"error": {"message": "quota"}}), DONE),
    ],
)
async def test_a_permanent_failure_is_never_retried(reply: Answer) -> None:
    async with serving(reply) as server:
        bench = Bench(server)
        with pytest.raises(ModelRefused):
            await bench.call()
        assert len(server.bodies) == len(bench.attempts) == 1
        assert bench.waits == []


async def test_an_unreached_server_costs_nothing() -> None:
    async with serving(GOOD) as server:
        pass
    bench = Bench(server)
    with pytest.raises(ModelUnreachable):
        await bench.call()
    tries = RetryPolicy().max_attempts
    assert [a.usage for a in bench.attempts] == [None] * tries
    assert bench.meter.totals == Totals(attempts=tries)


@pytest.mark.parametrize("reply", [SSE_HEAD, answer(500, {}), answer(504, b"<html>")])
async def test_a_server_that_may_have_worked_costs_an_estimate(reply: Answer) -> None:
    async with serving(reply) as server:
        bench = Bench(server, retry=RetryPolicy(max_attempts=1))
        with pytest.raises(ModelError):
            await bench.call()
        assert [a.usage for a in bench.attempts] == [Usage(estimate_request_tokens(request()), 1, None, True)]


async def test_cached_tokens_stay_unknown_until_told() -> None:
    cached = stream(delta("ok", finish="stop"), usage(50, 10, prompt_tokens_details={"cached_tokens": 0}), DONE)
    async with serving(GOOD, cached) as server:
        meter = Meter(server.model())
        await meter.call(request(), CONTEXT, deadline=time.monotonic() + 60)
        assert meter.totals.cached_tokens is None
        await meter.call(request(), CONTEXT, deadline=time.monotonic() + 60)
        assert meter.totals.cached_tokens == 0
        await meter.aclose()


class Stuck:
    """An answer that streams its beginning and then keep-alives for as long as anyone listens."""

    def __init__(self, *events: bytes) -> None:
        self.begun = asyncio.Event()
        self._events = events

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*self._events))
        await writer.drain()
        self.begun.set()
        while True:
            writer.write(b": ping\n\n")
            await writer.drain()
            await asyncio.sleep(0.005)


async def test_keep_alives_do_not_move_the_deadline() -> None:
    async with serving(Stuck(delta("12345678"))) as server:
        bench = Bench(server)
        with pytest.raises(ModelDeadline) as raised:
            await bench.call(seconds=0.3)
        assert not raised.value.retryable
        assert len(bench.attempts) == len(server.bodies) == 1
        (attempt,) = bench.attempts
        assert (attempt.outcome, attempt.error, attempt.code) == ("failed", "ModelDeadline", "deadline")
        assert attempt.usage is not None
        assert attempt.usage.estimated


async def test_a_deadline_that_passed_asks_nobody() -> None:
    async with serving(GOOD) as server:
        bench = Bench(server)
        with pytest.raises(ModelDeadline):
            await bench.call(seconds=0)
        assert bench.attempts == []
        assert server.bodies == []


async def test_three_rounds_cancelled_in_the_third_are_three_rounds_of_usage() -> None:
    stuck = Stuck(delta("12345678"), delta(calls=[{"index": 0, "function": {"name": "read", "arguments": '{"a'}}]))
    async with serving(GOOD, GOOD, stuck) as server:
        attempts: list[Attempt] = []
        meter = Meter(server.model(), on_attempt=attempts.append)
        text = asyncio.Event()

        def on_delta(piece: Delta) -> None:
            if piece.text == "12345678":
                text.set()

        async def rounds() -> None:
            for _ in range(3):
                await meter.call(request(), CONTEXT, deadline=time.monotonic() + 60, on_delta=on_delta)

        task = asyncio.create_task(rounds())
        await text.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await meter.aclose()
    assert [a.outcome for a in attempts] == ["replied", "replied", "cancelled"]
    last = attempts[-1].usage
    assert last is not None
    assert last.estimated
    assert last.output_tokens >= 2
    assert last.input_tokens == estimate_request_tokens(request())
    assert meter.totals.input_tokens == 100 + last.input_tokens
    assert meter.totals.output_tokens == 20 + last.output_tokens


async def test_the_usage_a_cut_attempt_was_told_is_kept_and_never_too_low() -> None:
    def running(text: str, *counts: int) -> bytes:
        told = dict(zip(("prompt_tokens", "completion_tokens"), counts, strict=True))
        return data({"choices": [{"index": 0, "delta": {"content": text}}], "usage": told})

    async with serving(stream(running("ab", 70, 40)), stream(running("x" * 40, 70, 1)), BROKEN) as server:
        bench = Bench(server)
        with pytest.raises(ModelError):
            await bench.call()
    assert [a.usage for a in bench.attempts[:2]] == [Usage(70, 40, None, False), Usage(70, 10, None, True)]


async def test_concurrent_calls_are_all_counted() -> None:
    async with serving(GOOD) as server:
        meter = Meter(server.model())
        deadline = time.monotonic() + 60
        await asyncio.gather(*(meter.call(request(), CONTEXT, deadline=deadline) for _ in range(10)))
        assert meter.totals == Totals(10, 10, 500, 100, None, 0)
        await meter.aclose()


async def test_a_failing_listener_ends_the_call_and_is_counted() -> None:
    def broken(_: Delta) -> None:
        raise RuntimeError("the screen is gone")

    async with serving(GOOD) as server:
        bench = Bench(server)
        with pytest.raises(RuntimeError):
            await bench.call(on_delta=broken)
        assert [a.error for a in bench.attempts] == ["RuntimeError"]
        assert bench.attempts[0].usage is not None
