"""Any interleaving of workers, clocks and crashes keeps the limits, as the endpoint itself would count them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kokuban.blackboard.core import quota
from kokuban.blackboard.core.quota import Ask, Granted, WaitUntil
from kokuban.schemas.quota import Endpoint, EndpointLimits, Moment

WINDOW = 6.0
LINGER = 0.5
LIMITS = st.one_of(
    st.builds(EndpointLimits, concurrency=st.integers(1, 2)),
    st.builds(EndpointLimits, requests_per_minute=st.integers(1, 3)),
    st.builds(EndpointLimits, tokens_per_minute=st.integers(8, 20)),
    st.builds(EndpointLimits, st.integers(2, 4), st.integers(2, 4), st.integers(10, 40)),
)


@dataclass
class Sent:
    """A request as the world knows it. `until`: the worker sends nothing after it, and the endpoint is done by it."""

    id: str
    worst: int
    used: int
    until: float
    arrived: float | None = None
    heard: float | None = None
    ended: float | None = None
    settled: bool = False


class Sharing(RuleBasedStateMachine):
    """`now` is the server's true time; what workers believe of it is off by up to `error` both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.error = 1_000.0, 0.0
        self.state, self.limits = Endpoint(), EndpointLimits()
        self.sent: list[Sent] = []
        self.asked = 0

    @initialize(limits=LIMITS, error=st.sampled_from([0.0, 0.2]))
    def begin(self, limits: EndpointLimits, error: float) -> None:
        self.limits, self.error = limits, error

    @property
    def early(self) -> float:
        return self.now - self.error

    @property
    def late(self) -> float:
        return self.now + self.error

    def some(self, data: Any, *, arrived: bool, ended: bool) -> Sent | None:
        fitting = [
            s for s in self.sent
            if not s.settled and (s.arrived is not None) == arrived and (s.ended is not None) == ended
        ]  # fmt: skip
        return data.draw(st.sampled_from(fitting)) if fitting else None

    @rule(
        worst=st.integers(0, 24), share=st.sampled_from([1.0, 0.5]), seconds=st.sampled_from([0.4, 9.0]),
        at_once=st.booleans(),
    )  # fmt: skip
    def ask(self, worst: int, share: float, seconds: float, at_once: bool) -> None:
        self.asked += 1
        ask = Ask(f"r{self.asked}", f"w{self.asked % 3}", worst, self.late + seconds)
        self.state, outcome = quota.acquire(self.state, self.limits, self.early, ask, window_seconds=WINDOW)
        if isinstance(outcome, Granted):
            self.sent.append(Sent(ask.id, worst, int(worst * share), ask.until, self.now if at_once else None))
            again = quota.acquire(self.state, self.limits, self.early, ask, window_seconds=WINDOW)
            assert again == (self.state, Granted())
        else:
            assert outcome.why
            assert outcome.at is not None, "without a limit of 0 time alone makes room"
            assert outcome.at > self.early
            self.state = quota.withdraw(self.state, ask.id)

    @rule(data=st.data())
    def arrive(self, data: Any) -> None:
        request = self.some(data, arrived=False, ended=False)
        if request is not None and self.now < request.until:
            request.arrived = self.now

    @rule(data=st.data())
    def hear(self, data: Any) -> None:
        request = self.some(data, arrived=True, ended=False)
        if request is not None and request.heard is None:
            request.heard = self.late

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        request = self.some(data, arrived=True, ended=False)
        if request is not None:
            request.ended = self.now

    @rule(data=st.data(), known=st.booleans(), just_now=st.booleans())
    def release(self, data: Any, known: bool, just_now: bool) -> None:
        request = self.some(data, arrived=True, ended=not just_now)
        if request is not None:
            request.settled, request.ended = True, request.ended or self.now
            before = self.state
            self.state = quota.release(
                self.state, request.id, arrived=self.late if request.heard is None else request.heard, ended=self.late,
                tokens=request.used if known else None, window_seconds=WINDOW,
            )  # fmt: skip
            assert quota.release(self.state, request.id, arrived=0, ended=0, tokens=0) == self.state
            assert before.holders == self.state.holders or len(before.holders) == len(self.state.holders) + 1

    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        request = self.some(data, arrived=True, ended=False)
        if request is not None:
            until = self.late + LINGER
            self.state = quota.shorten(self.state, request.id, until)
            request.until = min(request.until, until)

    @rule(data=st.data())
    def never_send(self, data: Any) -> None:
        request = self.some(data, arrived=False, ended=False)
        if request is not None:
            self.state = quota.withdraw(self.state, request.id)
            self.sent.remove(request)

    @rule(seconds=st.sampled_from([0.1, 0.4, 1.0, 3.0, 5.5, 5.9]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for request in self.sent:  # a worker that died or stopped: its request ends all the same
            if request.arrived is not None and request.ended is None and request.until <= self.now:
                request.ended = request.until

    @precondition(lambda self: self.state.not_before == 0)
    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def ask_for_a_pause(self, seconds: float) -> None:
        self.state = quota.hold_back(self.state, self.late + seconds)
        _, outcome = quota.acquire(self.state, self.limits, self.early, Ask("x", "w", 0, self.late + 1))
        assert isinstance(outcome, WaitUntil)
        assert outcome.at == self.state.not_before

    @invariant()
    def at_the_endpoint_no_limit_is_passed(self) -> None:
        arrived = [s for s in self.sent if s.arrived is not None]
        if self.limits.concurrency is not None:
            assert sum(s.ended is None for s in arrived) <= self.limits.concurrency
        for first in arrived:
            start = first.arrived or 0.0
            inside = [s for s in arrived if s.arrived is not None and start <= s.arrived < start + WINDOW]
            if self.limits.requests_per_minute is not None:
                assert len(inside) <= self.limits.requests_per_minute
            if self.limits.tokens_per_minute is not None:  # counted where they are used: at the start or at the end
                for at in (start, first.ended):
                    if at is None:
                        continue
                    used = [s.used for s in arrived if self.during(s, at)]
                    alone = sum(used) == max(used)  # a single request may need more than the whole limit
                    assert sum(used) <= self.limits.tokens_per_minute or alone

    @staticmethod
    def during(sent: Sent, start: float) -> bool:
        return any(at is not None and start <= at < start + WINDOW for at in (sent.arrived, sent.ended))

    @invariant()
    def the_record_stays_small_and_nothing_leaks(self) -> None:
        assert len(self.state.window) <= 2 * quota.GRAINS
        end = quota.expires(self.state, window_seconds=WINDOW)
        assert quota.advanced(self.state, end + 1e-6, window_seconds=WINDOW) == Endpoint()


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def asked(state: Endpoint, limits: EndpointLimits, now: float, id: str, tokens: int = 0) -> tuple[Endpoint, Any]:
    return quota.acquire(state, limits, now, Ask(id, "w", tokens, now + 10))


def test_the_line_is_served_in_order_and_a_dead_place_does_not_hold_it() -> None:
    limits = EndpointLimits(concurrency=1)
    state, first = asked(Endpoint(), limits, 100, "a")
    assert isinstance(first, Granted)
    for id in ("b", "c"):
        state, outcome = asked(state, limits, 101, id)
        assert outcome == WaitUntil(min(110, 105 if id == "c" else 110), "1 requests at once are allowed")
    state = quota.release(state, "a", arrived=101, ended=101, tokens=0)
    state, outcome = asked(state, limits, 102, "c")
    assert outcome == WaitUntil(105, "others are before it in the line")
    assert isinstance(asked(state, limits, 102, "b")[1], Granted)
    # b's worker has died: its place is kept for a while, c renews its own and has its turn
    state, outcome = asked(state, limits, 103.5, "c")
    assert isinstance(outcome, WaitUntil)
    assert isinstance(asked(state, limits, 105, "c")[1], Granted)


def test_zero_is_none_and_nothing_is_unlimited() -> None:
    for limits in (EndpointLimits(0), EndpointLimits(None, 0), EndpointLimits(None, None, 0)):
        state, outcome = asked(Endpoint(), limits, 100, "a")
        assert isinstance(outcome, WaitUntil)
        assert outcome.at is None, "only a change of the limits helps"
        assert state == Endpoint()
    state = Endpoint()
    for n in range(100):
        state, outcome = asked(state, EndpointLimits(), 100, f"r{n}", 10_000)
        assert isinstance(outcome, Granted)


def test_a_request_that_may_use_more_than_all_goes_alone() -> None:
    limits = EndpointLimits(tokens_per_minute=100)
    state, _ = asked(Endpoint(), limits, 100, "small", 1)
    assert isinstance(asked(state, limits, 100, "large", 500)[1], WaitUntil)
    state = quota.advanced(state, 1_000)
    state, outcome = asked(state, limits, 1_000, "large", 500)
    assert isinstance(outcome, Granted)
    assert isinstance(asked(state, limits, 1_000, "small", 1)[1], WaitUntil)
    state = quota.release(state, "large", arrived=1_001, ended=1_001, tokens=60)
    assert isinstance(asked(state, limits, 1_001, "other", 40)[1], Granted)
    assert isinstance(asked(state, limits, 1_001, "other", 41)[1], WaitUntil)


def test_the_window_keeps_sums_rounded_to_the_later_side() -> None:
    state = Endpoint()
    limits = EndpointLimits(requests_per_minute=10_000)
    for n in range(1_000):
        now = 5_000 + n * 0.05
        state, outcome = asked(state, limits, now, f"r{n}", 3)
        assert isinstance(outcome, Granted)
        state = quota.release(state, f"r{n}", arrived=now, ended=now, tokens=2)
    assert len(state.window) <= 51
    assert sum(moment.requests for moment in state.window) == 1_000
    assert sum(moment.tokens for moment in state.window) == 2_000
    assert all(isinstance(moment, Moment) and moment.at >= 5_000 for moment in state.window)


def test_a_slot_that_is_not_given_back_counts_until_its_end_and_then_in_the_window() -> None:
    limits = EndpointLimits(None, 2, 100)
    state, _ = asked(Endpoint(), limits, 100, "crashed", 60)  # until 110
    state, outcome = asked(state, limits, 111, "next", 50)
    assert outcome == WaitUntil(110.22 + quota.WINDOW_SECONDS, "100 tokens a minute are allowed")
    state, _ = asked(quota.withdraw(state, "next"), limits, 111, "small", 40)
    state, outcome = asked(state, limits, 112, "third", 0)
    assert isinstance(outcome, WaitUntil)
    assert outcome.why == "2 requests a minute are allowed"
    assert quota.release(state, "crashed", arrived=112, ended=112, tokens=1) == state, "too late to say otherwise"
    free = 110 + quota.WINDOW_SECONDS * (1 + 1 / quota.GRAINS)
    state = quota.withdraw(quota.release(state, "small", arrived=112, ended=112, tokens=40), "third")
    assert isinstance(asked(state, limits, free, "next", 60)[1], Granted)


def test_a_pause_for_everyone_is_the_longest_that_was_asked_for() -> None:
    state = quota.hold_back(quota.hold_back(Endpoint(), 105), 103)
    assert asked(state, EndpointLimits(), 104, "a") == (state, WaitUntil(105, "the endpoint asked everyone to wait"))
    assert isinstance(asked(state, EndpointLimits(), 105, "a")[1], Granted)


def test_asking_again_and_ending_twice_change_nothing() -> None:
    state, _ = asked(Endpoint(), EndpointLimits(1), 100, "a", 5)
    assert asked(state, EndpointLimits(1), 101, "a", 5) == (state, Granted())
    ended = quota.release(state, "a", arrived=101, ended=102, tokens=3)
    assert quota.release(ended, "a", arrived=103, ended=104, tokens=4) == ended
    assert quota.shorten(ended, "a", 1) == quota.withdraw(ended, "a") == ended


def test_a_grain_never_ends_before_what_is_in_it() -> None:
    """Also where multiples of the grain are no exact floats."""
    for n in range(20_000):
        at = 1_796_077_336.0 + n * 0.010_02
        state, _ = asked(Endpoint(), EndpointLimits(), at - 1, "a")
        (moment,) = quota.release(state, "a", arrived=at, ended=at, tokens=0).window
        assert at <= moment.at < at + 2.1 * quota.WINDOW_SECONDS / quota.GRAINS
