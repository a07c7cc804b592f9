"""The journal as a tape: a step's calls in order, those that earlier owners settled played back, the rest made and
written down (invariant 5).

Each line settles call k and opens call k + 1, so one call costs one record; the claim carries the first opening and
`done` the last settlement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from kokuban.agents._owner import Owner
from kokuban.schemas import Opens, Settles, Usage, digest, encode


class InDoubt(Exception):
    """An effect was begun by an earlier owner and may have happened; nobody may simply repeat it."""


class Played(NamedTuple):
    """A call's result and what it cost. `replayed` is true when it comes from the journal and nothing was run."""

    result: Any
    replayed: bool
    usage: Usage


class Tape:
    """One per attempt. `spent` adds up every settled call, an earlier owner's included."""

    def __init__(self, owner: Owner, first: Opens | None = None) -> None:
        self.spent = Usage()
        self._owner = owner
        self._calls = 0
        self._settled: dict[int, tuple[Opens, Settles]] = {}
        self._begun: list[Opens] = []
        self._opened = first
        self._unsettled: Settles | None = None

    async def load(self) -> None:
        """Read what earlier owners of this same work settled."""
        opened: Opens | None = Opens(1, "model")
        for _, line in await self._owner.past():
            if line.settles is not None and opened is not None and line.settles.call == opened.call:
                self._settled[line.settles.call] = (opened, line.settles)
            if line.opens is not None:
                # Whoever opened call n did not follow the tape beyond it: what it told of later calls is void.
                self._settled = {k: v for k, v in self._settled.items() if k < line.opens.call}
                self._begun.append(line.opens)
                opened = line.opens

    async def call(
        self,
        opens: Callable[[int], Opens],
        perform: Callable[[], Awaitable[tuple[object, Usage]]],
        *,
        repeatable: bool = True,
    ) -> Played:
        """Make the next call, or play it back. `opens` describes it, given its number; `perform` runs it and returns
        what to keep and what it cost. `repeatable` says whether it may run again when an earlier owner had begun it;
        if not, and one had begun the same tool and this life has not played that back, raises `InDoubt`. A tape that
        tells of another call than this one ends there."""
        self._calls += 1
        number, description = self._calls, opens(self._calls)
        known = self._settled.get(number)
        if known is not None and same_call(known[0], description):
            self.spent = self.spent + known[1].usage
            self._begun = [b for b in self._begun if (b.call, b.tool) != (number, description.tool)]
            self._unsettled, self._opened = None, None
            return Played(_decoded(known[1]), True, known[1].usage)
        self._settled = {k: v for k, v in self._settled.items() if k < number}
        before = next((begun for begun in self._begun if begun.tool == description.tool), None)
        if before is not None and not repeatable:
            raise InDoubt(f"call {before.call} ({before.tool}) was begun before and its outcome is unknown")
        if self._opened is None or not same_call(self._opened, description):
            await self._owner.journal(self._unsettled, description)
        self._unsettled = None
        result, usage = await perform()
        self.spent = self.spent + usage
        self._opened = None
        self._unsettled = Settles(number, usage, msgspec.Raw(encode(result)))
        return Played(result, False, usage)

    async def lost(self, usage: Usage) -> None:
        """Book what a call cost that gave no result: the next line or the end carries it."""
        self.spent = self.spent + usage
        self._unsettled = Settles(self._calls, usage)

    def last(self) -> Settles | None:
        """The settlement that no line has carried yet: the end of the step takes it along."""
        return self._unsettled


def describe(value: object) -> msgspec.Raw:
    """A call's arguments for the journal."""
    return msgspec.Raw(encode(value))


def fingerprint(value: object) -> str:
    """A digest that stands for something too large to write into an opening."""
    return digest(encode(value))


def same_call(one: Opens, other: Opens) -> bool:
    """The claim's opening says only that a model will be asked: it fits any first model call."""
    if (one.call, one.kind, one.tool, one.key) != (other.call, other.kind, other.tool, other.key):
        return False
    if isinstance(one.arguments, msgspec.UnsetType) or isinstance(other.arguments, msgspec.UnsetType):
        return True
    return bytes(one.arguments) == bytes(other.arguments)


def _decoded(settles: Settles) -> Any:
    if isinstance(settles.result, msgspec.UnsetType):
        return None
    return msgspec.json.decode(settles.result)
