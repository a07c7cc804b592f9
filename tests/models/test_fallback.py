"""When one model cannot serve, the next does: only then, once, counted and priced as the one that answered."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import (
    Attempt,
    Call,
    Delta,
    Message,
    Meter,
    ModelAuthError,
    ModelOverflow,
    ModelRefused,
    Price,
    Prices,
    Progress,
    RecordingMiss,
    Reply,
    Usage,
    open_model,
)
from kokuban.agents.models._meter import ATTEMPTS_BEFORE_FALLBACK, REST_SECONDS
from kokuban.agents.models._openai import ChatCompletionsModel
from models.chat_server import CONTEXT, DONE, Answer, ChatServer, answer, delta, request, serving, stream
from models.chat_server import usage as used

pytestmark = pytest.mark.anyio
GOOD = stream(delta("second", finish="stop"), used(50, 10), DONE)
BUSY = answer(503, {"error": {"message": "busy"}})
PRICES = Prices(
    "1", {"test:a": Price(Decimal(1), Decimal(1), Decimal(1)), "test:b": Price(Decimal(9), Decimal(9), Decimal(9))}
)


class Pair:
    """Two models, the second for when the first cannot serve, on one clock that only waits move."""

    def __init__(self, first: ChatServer | str, second: ChatServer) -> None:
        self.now = 1_000.0
        self.waits: list[float] = []
        self.attempts: list[Attempt] = []
        self.seen: list[Delta] = []
        url = first if isinstance(first, str) else first.url
        self.meter = self._meter("a", url, fallbacks=[self._meter("b", second.url)])

    def _meter(self, name: str, url: str, **options: Any) -> Meter:
        model = ChatCompletionsModel(f"test:{name}", model=name, base_url=url, direct=True)
        return Meter(
            model, prices=PRICES, on_attempt=self.attempts.append, clock=lambda: self.now, sleep=self._sleep,
            random=lambda: 0.5, **options,
        )  # fmt: skip

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def call(self, wanted: Any = None, **options: Any) -> Reply:
        return await self.meter.call(
            wanted or request(), CONTEXT, deadline=self.now + 10_000, on_delta=self.seen.append, **options
        )

    @property
    def asked(self) -> list[tuple[int, str, str]]:
        return [(a.number, a.model, a.outcome) for a in self.attempts]


@pytest.mark.parametrize(
    ("first", "attempts"),
    [
        (answer(401, {"error": {"message": "bad key"}}), 1),
        (answer(403, {"error": {"message": "not yours"}}), 1),
        (answer(402, {"error": {"message": "pay"}}), 1),
        (answer(404, {"error": {"message": "no such model"}}), 1),
        (answer(429, {"error": {"message": "pay", "code": "insufficient_quota"}}), 1),
        (answer(400, {"error": {"message": "no", "code": "content_filter"}}), 1),
        (answer(200, b"<html>", "X: y").replace(b"application/json", b"text/html"), 1),
        (answer(503, {"error": {"message": "busy"}}, "Retry-After: 600"), 1),
        (BUSY, ATTEMPTS_BEFORE_FALLBACK),
        (stream(delta("half")), ATTEMPTS_BEFORE_FALLBACK),
    ],
)
async def test_the_next_model_answers_for_one_that_cannot_serve(first: Answer, attempts: int) -> None:
    async with serving(first) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        assert (await pair.call()).content == "second"
        await pair.meter.aclose()
    failures = [(n, "test:a", "failed") for n in range(1, attempts + 1)]
    assert pair.asked == [*failures, (attempts + 1, "test:b", "replied")]
    # What was shown of the first is void: a later attempt replaces it.
    assert pair.seen[-1] == Delta(attempts + 1, "second")


async def test_a_model_that_is_not_there_is_passed_over() -> None:
    async with serving(GOOD) as gone:
        pass
    async with serving(GOOD) as two:
        pair = Pair(gone.url, two)
        assert (await pair.call()).content == "second"
        await pair.meter.aclose()


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (answer(400, {"error": {"message": "invalid schema"}}), ModelRefused),
        (answer(400, {"error": {"message": "x", "code": "context_length_exceeded"}}), ModelOverflow),
        (answer(422, {"error": {"message": "bad tools"}}), ModelRefused),
    ],
)
async def test_what_is_wrong_with_the_request_goes_to_no_other_model(first: Answer, kind: type[Exception]) -> None:
    async with serving(first) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        with pytest.raises(kind):
            await pair.call()
        await pair.meter.aclose()
        assert two.bodies == []


async def test_a_reply_that_the_filter_stopped_goes_to_the_next_and_both_are_paid() -> None:
    filtered = stream(delta("I can", finish="content_filter"), used(50, 2), DONE)
    async with serving(filtered) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        assert (await pair.call()).content == "second"
        await pair.meter.aclose()
    assert pair.asked == [(1, "test:a", "replied"), (2, "test:b", "replied")]
    assert [pair.meter.cost(a.usage or Usage(0, 0), a.model) for a in pair.attempts] == [52, 540]
    assert pair.meter.totals.input_tokens == 100
    assert pair.meter.totals.replies == 2


async def test_with_no_room_left_nothing_more_is_bought() -> None:
    async def no() -> bool:
        return False

    async with serving(answer(401, {}), answer(401, {})) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        with pytest.raises(ModelAuthError):
            await pair.call(may_retry=no)
        await pair.meter.aclose()
        assert two.bodies == []


async def test_a_model_that_could_not_serve_is_asked_last_for_a_while() -> None:
    async with serving(BUSY) as one, serving(GOOD, BUSY, GOOD) as two:
        pair = Pair(one, two)
        await pair.call()
        assert len(one.bodies) == ATTEMPTS_BEFORE_FALLBACK
        await pair.call()  # straight to the second, which is busy once
        assert len(one.bodies) == ATTEMPTS_BEFORE_FALLBACK
        pair.now += REST_SECONDS
        await pair.call()
        assert len(one.bodies) == 2 * ATTEMPTS_BEFORE_FALLBACK
        await pair.meter.aclose()


async def test_when_none_can_serve_the_error_tells_of_all() -> None:
    async with serving(BUSY) as one, serving(answer(401, {"error": {"message": "bad key"}})) as two:
        pair = Pair(one, two)
        with pytest.raises(ModelAuthError, match=r"bad key.*before it, test:a: .*busy") as raised:
            await pair.call()
        await pair.meter.aclose()
    assert raised.value.retryable  # the first may serve later
    assert raised.value.attempts == ATTEMPTS_BEFORE_FALLBACK + 1


async def test_what_only_one_model_understands_is_not_told_to_the_other() -> None:
    think = stream(delta("", reasoning_content="secret plan", calls=[
        {"index": 0, "id": "c", "function": {"name": "t", "arguments": "{}"}, "extra_content": {"sig": "S"}}
    ]), delta(finish="stop"), DONE)  # fmt: skip
    async with serving(think, BUSY) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        first = await pair.call()
        turn = Message("assistant", first.content, first.calls, extra=first.extra)
        messages = (Message("user", "go"), turn, Message("tool", "r", call_id="c"))
        await pair.call(request(messages=messages))
        await pair.meter.aclose()
    said = [server.bodies[-1]["messages"][1]["tool_calls"][0] for server in (one, two)]
    assert [entry.get("extra_content") for entry in said] == [{"sig": "S"}, None]
    assert "secret" not in str(two.bodies)


async def test_the_worst_price_and_the_smallest_window_of_all_count() -> None:
    async with serving(GOOD) as one, serving(GOOD) as two:
        pair = Pair(one, two)
        assert pair.meter.worst(10, 10) == 180
        assert (pair.meter.context_tokens, pair.meter.unpriced) == (None, "")
        unknown = Meter(pair.meter.model, fallbacks=[Meter(two.model(context_tokens=4_096))], prices=PRICES)
        assert (unknown.worst(1, 1), unknown.unpriced, unknown.context_tokens) == (None, "test:m", 4_096)


async def test_a_recording_that_misses_asks_nobody(tmp_path: Path) -> None:
    async with serving(GOOD) as two:
        recorder = open_model("openai-compatible:b", base_url=two.url, record=tmp_path / "r", env={})
        await Meter(recorder).call(request("known"), CONTEXT, deadline=1e12)
        await recorder.aclose()
        recorded = open_model(f"recorded:{tmp_path / 'r'}", env={})
        meter = Meter(recorded, fallbacks=[Meter(two.model())])
        with pytest.raises(RecordingMiss):
            await meter.call(request("unknown"), CONTEXT, deadline=1e12)
        await meter.aclose()
        assert len(two.bodies) == 1


async def test_a_call_of_the_first_is_a_call_to_the_second_with_ids_that_it_takes() -> None:
    long = "functions.look:" + "0" * 60
    turn = Message("assistant", "", (Call(long, "look", "{}"),))
    asked = request(messages=(Message("user", "go"), turn, Message("tool", "r", call_id=long)))
    async with serving(GOOD) as server:
        model = server.model()
        await model.call(asked, CONTEXT, Progress())
        await model.aclose()
        told = server.bodies[0]["messages"]
        assert told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"]
        assert len(told[2]["tool_call_id"]) <= 40
