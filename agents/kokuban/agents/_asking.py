"""One model turn: room in the budget before it, a line in the journal before and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from kokuban.agents._tape import describe, fingerprint
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.models import (
    Attempt,
    CallContext,
    Delta,
    ModelDeadline,
    ModelError,
    ModelOverflow,
    Reply,
    Request,
    worst_request_tokens,
)
from kokuban.blackboard.core.ledger import Shortage
from kokuban.schemas import Opens, Usage

CUT_OFF = "the reply was cut off; ask again, for less at once"


@dataclass
class Asking:
    """Asks the work's model, turn by turn. `standing` says what still stands in the way of a result."""

    work: Work
    scope: dict[str, Any] = field(default_factory=dict)
    standing: Callable[[], str] = lambda: ""
    prompt: str = ""
    """The version of the prompt file that the requests are made of; stands in the journal with each call."""
    _asked: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    async def ask(self, request: Request) -> Reply:
        """One model turn. Raises `StepFailed`, and `ModelOverflow` when the request is too large for the model."""
        work, meter = self.work, self.work.meter
        if meter is None:
            raise StepFailed("model", "this worker has no model; start it with --model", retryable=False)
        self._turn += 1
        tokens_in = worst_request_tokens(request)
        worst = tokens_in + request.max_output_tokens
        price = meter.worst(tokens_in, request.max_output_tokens)
        seen = fingerprint(msgspec.to_builtins(request))
        opening = replace(self._opening(seen), reserved_tokens=worst, reserved_micros=price or 0)
        if not work.tape.holds(opening):
            await self.reserve(worst, price)
        if work.seconds_left <= 0:
            raise StepFailed("deadline", self.without(f"not done within the step's {work.ledger.allotment.seconds} s"))
        at = work.assignment
        context = CallContext(
            role=at.role,
            step=at.step,
            attempt=at.attempt,
            turn=self._turn,
            occurrence=self._asked[seen],
            scope=self.scope,
        )
        self._asked[seen] += 1

        cost = Usage(model_calls=1)

        def count(attempt: Attempt) -> None:
            nonlocal cost
            spent = attempt.usage
            if spent is not None:
                micros = meter.cost(spent, attempt.model) or 0
                cost = cost + Usage(spent.input_tokens, spent.output_tokens, estimated=spent.estimated, micros=micros)

        async def again() -> bool:
            """Room for one more try beside what the tries so far have cost, and a line that says so."""
            if not cost.tokens and not cost.micros:
                return True
            ledger, tokens, micros = work.ledger, worst + cost.tokens, (price or 0) + cost.micros
            ledger.settle(Usage())
            if ledger.reserve_model(tokens, None if price is None else micros) is not None:
                return False
            await work.tape.again(tokens, micros)
            return True

        async def perform() -> tuple[object, Usage]:
            try:
                reply = await meter.call(
                    request, context, deadline=work.deadline, on_delta=self._show, on_attempt=count, may_retry=again
                )
            except ModelOverflow as error:  # an answer like any other: who plays it back makes the request smaller too
                return {"overflow": str(error)}, cost
            except BaseException:
                await work.tape.lost(cost)
                raise
            return msgspec.to_builtins(reply), cost

        try:
            played = await work.tape.call(lambda _: opening, perform)
        except ModelDeadline as error:
            raise StepFailed("deadline", f"the model had not answered when the step's time was up: {error}") from error
        except ModelError as error:
            raise StepFailed("model", str(error), retryable=error.retryable) from error
        if "overflow" in played.result:
            work.ledger.settle(played.usage)
            raise ModelOverflow(played.result["overflow"], spent=bool(played.usage.tokens))
        reply = msgspec.convert(played.result, Reply)
        if reply.truncated:  # whatever was cut, its calls may look whole and are not to be believed
            reply = replace(reply, calls=tuple(replace(c, problem=c.problem or CUT_OFF) for c in reply.calls))
        work.ledger.settle(played.usage)
        return reply

    def opening(self, request: Request) -> Opens:
        """What the journal says of this request when it is the next call, without what is reserved for it."""
        return self._opening(fingerprint(msgspec.to_builtins(request)))

    def _opening(self, seen: str) -> Opens:
        return Opens(self.work.tape.next_call, "model", arguments=describe(seen), prompt=self.prompt)

    async def reserve(self, worst: int, price: int | None) -> None:
        """Take room for one model turn; ask for more where there is none. Raises `StepFailed`."""
        work, ledger = self.work, self.work.ledger
        while (short := ledger.reserve_model(worst, price)) is not None:
            if not await self.more(short, worst, price or 0):
                break
        if short is None:
            return
        if short == "price":
            raise StepFailed("budget", self.without(_unpriced(work)), retryable=False)
        if short == "steps":
            raise StepFailed("steps", self.without(f"no result after {ledger.allotment.steps} model turns"))
        if short == "money":
            left, limit = ledger.left_micros / 1e6, (ledger.allotment.micros or 0) / 1e6
            text = f"${left:.6f} are left of ${limit:.6f}; this turn may need ${(price or 0) / 1e6:.6f}"
            raise StepFailed("budget", self.without(text))
        text = f"{ledger.left_tokens} tokens are left of {ledger.allotment.tokens}; this turn may need {worst}"
        raise StepFailed("tokens", self.without(text))

    async def more(self, short: Shortage, worst: int = 0, price: int = 0) -> bool:
        """Ask the one authority for more of what is short. False when there is no use in it, or the answer is no."""
        work = self.work
        wanted = work.ledger.wanted(short, work.assignment.order.more, worst_tokens=worst, worst_micros=price)
        if wanted is None or wanted == work.ledger.allotment:
            return False
        granted = await work.tape.ask(wanted)
        if granted is None or granted == work.ledger.allotment:
            return False
        work.ledger.allotment = granted
        return True

    def without(self, limit: str) -> str:
        """A limit that was reached, and what stood in the way of a result."""
        standing = self.standing()
        return f"{limit}; {standing}" if standing else limit

    def _show(self, delta: Delta) -> None:
        self.work.say(delta.text)


def _unpriced(work: Work) -> str:
    assert work.meter is not None
    name = work.meter.unpriced or work.meter.model.name
    return (
        f"the task has a money limit and the price of {name} is not known; declare it with "
        f"--price '{name}=IN,OUT' (dollars per million tokens), or name a model that has a price"
    )
