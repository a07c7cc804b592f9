"""Budget arithmetic, once: reserve the worst case before a call, settle the actual cost after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from kokuban.schemas import Allotment, Opens, Usage

Shortage = Literal["steps", "tool_calls", "tokens", "money", "price"]
"""What is short. `price`: there is a money limit, and nobody knows what the call would cost."""


@dataclass(slots=True)
class Ledger:
    """What one attempt has spent of its allotment; `spent` may begin with what earlier owners of the same work had
    begun and never settled (`unsettled`). 0 left is none. A call that is played back from an earlier owner's journal is
    booked like any other. Seconds are no part of it: they are the attempt's deadline.

    >>> book = Ledger(Allotment(tokens=100))
    >>> book.reserve_model(worst_tokens=80), book.settle(Usage(input_tokens=30, output_tokens=10, model_calls=1))
    (None, None)
    >>> book.reserve_model(worst_tokens=80)
    'tokens'
    """

    allotment: Allotment
    spent: Usage = Usage()
    reserved_tokens: int = 0
    reserved_micros: int = 0
    reserved_tool_calls: int = 0

    def reserve_model(self, worst_tokens: int, worst_micros: int | None = 0) -> Shortage | None:
        """Take room for one model turn of at most `worst_tokens` (input and output) and `worst_micros` (millionths of
        a US dollar; None: unknown), or say what is short."""
        if self.spent.model_calls >= self.allotment.steps:
            return "steps"
        if self.left_tokens < max(1, worst_tokens):
            return "tokens"
        if self.allotment.micros is not None:
            if worst_micros is None:
                return "price"
            # A model that costs nothing may be asked with nothing left: no money is spent on it.
            if worst_micros > self.left_micros:
                return "money"
        self.reserved_tokens += worst_tokens
        self.reserved_micros += worst_micros or 0
        return None

    def reserve_tool(self) -> Shortage | None:
        """Take room for one tool call, which counts from when it is opened, or say that there is none."""
        if self.spent.tool_calls + self.reserved_tool_calls >= self.allotment.tool_calls:
            return "tool_calls"
        self.reserved_tool_calls += 1
        return None

    def settle(self, usage: Usage) -> None:
        """Book what a call really cost and give back what was reserved for it."""
        self.spent = self.spent + usage
        self.reserved_tokens = self.reserved_micros = self.reserved_tool_calls = 0

    @property
    def left_tokens(self) -> int:
        """Tokens neither spent nor reserved, never below 0."""
        return max(0, self.allotment.tokens - self.spent.tokens - self.reserved_tokens)

    @property
    def left_micros(self) -> int:
        """Money neither spent nor reserved, never below 0; 0 when the allotment names no limit."""
        return max(0, (self.allotment.micros or 0) - self.spent.micros - self.reserved_micros)

    def wanted(
        self, short: Shortage, most: Allotment | None, *, worst_tokens: int = 0, worst_micros: int = 0
    ) -> Allotment | None:
        """The allotment to ask for when `short` is short: twice what there is, at least what the next call may need, at
        most `most`. None when that would not do: then there is no use in asking."""
        if most is None or short == "price":
            return None
        now, spent = self.allotment, self.spent
        needs = {
            "steps": (now.steps, spent.model_calls + 1, most.steps),
            "tool_calls": (now.tool_calls, spent.tool_calls + self.reserved_tool_calls + 1, most.tool_calls),
            "tokens": (now.tokens, spent.tokens + self.reserved_tokens + max(1, worst_tokens), most.tokens),
            "money": (
                now.micros or 0,
                spent.micros + self.reserved_micros + worst_micros,
                # No money limit above: whoever answers knows what there is.
                2 * (now.micros or 0) + worst_micros if most.micros is None else most.micros,
            ),
        }
        have, need, limit = needs[short]
        if need > limit:
            return None
        return replace(now, **{"micros" if short == "money" else short: min(limit, max(need, 2 * have))})


def unsettled(opened: Opens) -> Usage:
    """What a call is booked at that was opened and of whose end nothing is known: all that was reserved for it."""
    model = opened.kind == "model"
    return Usage(
        input_tokens=opened.reserved_tokens, model_calls=int(model), tool_calls=int(not model), estimated=True,
        micros=opened.reserved_micros,
    )  # fmt: skip
