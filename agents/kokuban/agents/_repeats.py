"""Calls that come again, and turns that bring nothing new. Pure: what it knows it was told."""

from __future__ import annotations

from collections import Counter

from kokuban.agents.tools import Arguments, Observation
from kokuban.schemas import digest

REPEATS_ALLOWED = 2
IDLE_TOLD, IDLE_ALLOWED = 3, 6
"""After so many turns with nothing new the model is told; after so many the step ends."""
CIRCLE = 3
"""How often two calls may follow each other in turn."""


class Repeats:
    """One loop's memory of what was called and what it said."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._said: set[str] = set()
        self._last: list[str] = []
        self._idle = 0
        self._new = False

    def refusal(self, call: Arguments) -> str | None:
        """Why this call is not to be made, in words for the model; None when it may. It counts as made."""
        key = f"{call.tool.tier}:{call.tool.name}:{call.canonical}"
        self._calls[key] += 1
        self._last = [*self._last[-(2 * CIRCLE - 1) :], key]
        if self._calls[key] > REPEATS_ALLOWED:
            return (
                f"{call.tool.name} was not run: the same call was made {REPEATS_ALLOWED} times already. "
                "It would say the same again: use what it said, or do something else."
            )
        one, other = self._last[-1], self._last[-2] if len(self._last) > 1 else ""
        if one != other and self._last == [other, one] * CIRCLE:
            return (
                f"{call.tool.name} was not run: you go back and forth between two calls. "
                "Neither brings anything new any more: do something else, or end with what you have."
            )
        return None

    def observed(self, call: Arguments, seen: Observation) -> None:
        """What a call that was run came to. A change makes reading again worth while."""
        changes = call.tool.tier != "read" and seen.ok
        self.heard(call.tool.name, seen.text)
        self._new = self._new or changes
        if changes:
            self._calls = Counter({key: n for key, n in self._calls.items() if not key.startswith("read:")})
            self._last = [key for key in self._last if not key.startswith("read:")]

    def heard(self, tool: str, text: str) -> None:
        """What the model is told of a call, made or not. What it was told before is nothing new."""
        said = digest(f"{tool}\n{text}".encode())
        self._new = self._new or said not in self._said
        self._said.add(said)

    def turn(self) -> int:
        """A turn of tool calls is over; how many have brought nothing new in a row."""
        self._idle = 0 if self._new else self._idle + 1
        self._new = False
        return self._idle
