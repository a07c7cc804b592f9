"""Budget arithmetic, once: reserve the worst case before a call, settle the actual cost after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kokuban.schemas import Allotment, Usage

Shortage = Literal["steps", "tool_calls", "tokens"]


@dataclass(slots=True)
class Ledger:
    """What one attempt has spent of its allotment. 0 left is none. A call that is played back from an earlier owner's
    journal is booked like any other.

    >>> book = Ledger(Allotment(tokens=100))
    >>> book.reserve_model(worst_tokens=80), book.settle(Usage(input_tokens=30, output_tokens=10, model_calls=1))
    (None, None)
    >>> book.reserve_model(worst_tokens=80)
    'tokens'
    """

    allotment: Allotment
    spent: Usage = Usage()
    reserved_tokens: int = 0

    def reserve_model(self, worst_tokens: int) -> Shortage | None:
        """Take room for one model turn of at most `worst_tokens` (input and output), or say what is short."""
        if self.spent.model_calls >= self.allotment.steps:
            return "steps"
        if self.left_tokens < max(1, worst_tokens):
            return "tokens"
        self.reserved_tokens += worst_tokens
        return None

    def reserve_tool(self) -> Shortage | None:
        """Take room for one tool call, or say that there is none."""
        return "tool_calls" if self.spent.tool_calls >= self.allotment.tool_calls else None

    def settle(self, usage: Usage) -> None:
        """Book what a call really cost and give back what was reserved for it."""
        self.spent = self.spent + usage
        self.reserved_tokens = 0

    @property
    def left_tokens(self) -> int:
        """Tokens neither spent nor reserved, never below 0."""
        return max(0, self.allotment.tokens - self.spent.tokens - self.reserved_tokens)
