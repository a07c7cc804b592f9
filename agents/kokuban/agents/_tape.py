"""The journal as a tape: a step's calls in order, those that earlier owners settled played back, the rest made and
written down (invariant 5).

Each line settles call k and opens call k + 1, so one call costs one record; the claim carries the first opening and
`done` the last settlement.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kokuban.agents._keys import key_stem
from kokuban.agents._owner import Owner
from kokuban.blackboard.core.ledger import unsettled
from kokuban.schemas import Allotment, Gate, Opens, Settles, Usage, digest, encode


class InDoubt(Exception):
    """An effect was begun and may have happened; nobody may simply repeat it."""


class Parked(Exception):
    """The step waits for a person now, and is nobody's: stop, write nothing more, acknowledge its order."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate.asks)
        self.gate = gate


class Played(NamedTuple):
    """A call's result and what it cost. `replayed` is true when it comes from the journal and nothing was run."""

    result: Any
    replayed: bool
    usage: Usage


class Tape:
    """One per attempt. `spent` adds up every settled call, an earlier owner's included; `abandoned` is what earlier
    owners had opened and never settled, each at what was reserved for it, and what gave no result. `facts` are what
    people had added when the work began (None: they are the order's), for what is asked must not change under the
    tape."""

    def __init__(self, owner: Owner, first: Opens | None = None) -> None:
        self.spent = Usage()
        self.abandoned = Usage()
        self.facts: tuple[str, ...] | None = None
        self._owner = owner
        self._calls = 0
        self._settled: dict[int, tuple[Opens, Settles]] = {}
        self._begun: list[Opens] = []
        self._left_open: list[Opens] = []
        self._opened = first
        self._made = False
        self._unsettled: Settles | None = None
        self._succeeded: set[str] = set()
        self._tries: Counter[tuple[int, str, str]] = Counter()

    async def load(self) -> None:
        """Read what earlier owners of this same work settled, and what they left open."""
        opened: Opens | None = None
        attempt = began_with = 0
        for line in await self._owner.past():
            if line.attempt != attempt:
                self._abandon(opened)
                attempt, opened = line.attempt, None
            began_with = began_with or line.order
            if line.settles is not None and opened is not None and line.settles.call == opened.call:
                if isinstance(line.settles.result, msgspec.UnsetType):  # never made, or in vain: nothing to play back
                    self.abandoned = self.abandoned + line.settles.usage
                else:
                    self._settled[line.settles.call] = (opened, line.settles)
                opened = None
            if line.opens is not None:
                if line.opens.reconciled:
                    self._left_open = [o for o in self._left_open if _effect(o) != _effect(line.opens)]
                # Whoever opened call n did not follow the tape beyond it: what it told of later calls is void.
                self._settled = {k: v for k, v in self._settled.items() if k < line.opens.call}
                if not line.order:
                    self._begun.append(line.opens)
                    self._tries[_place(line.opens)] += 1
                if opened is not None and opened.call != line.opens.call:
                    self._abandon(opened)
                opened = line.opens
        self._abandon(opened)
        if began_with:
            order = await self._owner.order_at(began_with)
            self.facts = order.facts if order is not None else None

    def _abandon(self, opened: Opens | None) -> None:
        if opened is not None:
            self.abandoned = self.abandoned + unsettled(opened)
            if opened.effect == "other":
                self._left_open.append(opened)

    @property
    def next_call(self) -> int:
        """The number of the call that is made or played back next."""
        return self._calls + 1

    @property
    def doubt(self) -> Opens | None:
        """A call whose effect may have happened and which nobody may repeat: made and not settled by this owner, or by
        an earlier one of the same work. An attempt that fails with one of these is in doubt, whatever it failed of."""
        return self._open_effect or next(iter(self._left_open), None)

    @property
    def _open_effect(self) -> Opens | None:
        opened = self._opened
        return opened if opened is not None and self._made and opened.effect == "other" else None

    def check(self) -> None:
        """Raises `InDoubt` when a call of this owner's is open whose effect may have happened: there is no going on
        from there, nor can the step be done."""
        if self._open_effect is not None:
            raise InDoubt(f"{named(self._open_effect)} was begun and its outcome is unknown")

    def key(self, tool: str, arguments: str) -> str:
        """The idempotency key of the next call, to this tool with these canonical arguments. The same for every attempt
        at the step that does the same: the last part counts the earlier such calls that succeeded (their result is not
        `{"ok": false}`), so one that failed, or of which nobody knows, is made again under its key."""
        at, n = self._owner.assignment, 0
        stem = key_stem(at.task, at.step, tool, arguments)
        while f"{stem}:{n}" in self._succeeded:
            n += 1
        return f"{stem}:{n}"

    def holds(self, description: Opens) -> bool:
        """Whether the next call, when it is this one, will be played back: it was paid for then."""
        known = self._settled.get(self.next_call)
        return known is not None and same_call(known[0], description)

    @property
    def recorded(self) -> bool:
        """Whether an earlier owner settled a call at the place of the next one, this or another."""
        return self.next_call in self._settled

    @property
    def settled(self) -> Opens | None:
        """How an earlier owner opened what it settled at the place of the next call."""
        known = self._settled.get(self.next_call)
        return known[0] if known is not None else None

    async def call(
        self,
        opens: Callable[[int], Opens],
        perform: Callable[[], Awaitable[tuple[object, Usage]]],
        *,
        repeatable: bool = True,
        keyed: bool = False,
    ) -> Played:
        """Make the next call, or play it back. `opens` describes it, given its number; `perform` runs it and returns
        what to keep and what it cost. `repeatable` says whether it may run again when an earlier owner had begun it;
        if not, and one had begun the same tool and this life has not played that back, raises `InDoubt`. So it does for
        a `keyed` one that was begun under another key, and for any call after one of these that `perform` did not bring
        to an end. A tape that tells of another call than this one ends there."""
        self.check()
        number, description = self.next_call, _classed(opens(self.next_call), repeatable, keyed)
        plays = self.holds(description)
        self._calls = number
        if plays:
            known = self._settled[number]
            self.spent = self.spent + known[1].usage
            self._begun = [b for b in self._begun if (b.call, b.tool) != (number, description.tool)]
            self._unsettled, self._opened = None, None
            result = _decoded(known[1])
            self._note(description, result)
            return Played(result, True, known[1].usage)
        self._settled = {k: v for k, v in self._settled.items() if k < number}
        if description.effect == "other" or keyed:
            self._check_not_begun(description, description.effect != "other")
        if self._opened is None or not same_call(self._opened, description):
            await self._open(description)
            self._tries[_place(description)] += 1
        self._opened, self._unsettled, self._made = description, None, True
        result, usage = await perform()
        self.spent = self.spent + usage
        self._opened = None
        self._unsettled = Settles(number, usage, msgspec.Raw(encode(result)))
        self._note(description, result)
        return Played(result, False, usage)

    async def _open(self, description: Opens) -> None:
        """Write the line that opens the call. When time is up meanwhile, an effect's line is waited for first: one that
        stands, of a call that was never made, must be settled, or it would be in doubt."""
        writing = asyncio.ensure_future(self._owner.journal(self._unsettled, description))
        if description.effect != "other":
            await writing
            return
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            try:
                await writing
            except Exception:  # not stored, or nobody knows: who reads the board will see
                raise asyncio.CancelledError from None
            self._opened, self._unsettled, self._made = description, None, False
            raise

    def _note(self, description: Opens, result: object) -> None:
        if description.key and not (isinstance(result, dict) and result.get("ok") is False):
            self._succeeded.add(description.key)

    def _check_not_begun(self, description: Opens, same_key_will_do: bool) -> None:
        for begun in self._begun:
            if begun.tool == description.tool and not (same_key_will_do and begun.key == description.key):
                raise InDoubt(f"{named(begun)} was begun before and its outcome is unknown")

    def begun(self, opens: Opens) -> bool:
        """Whether an earlier owner of this work began this very call and nobody knows what became of it."""
        return any(_effect(begun) == _effect(opens) for begun in self._begun)

    def resolved(self, opens: Opens) -> None:
        """Somebody has looked what became of this call: it is in no doubt any more. The next call must be this one,
        opened with what was found (`Opens.reconciled`)."""
        self._begun = [b for b in self._begun if _effect(b) != _effect(opens)]
        self._left_open = [o for o in self._left_open if _effect(o) != _effect(opens)]

    def tries(self, opens: Opens) -> int:
        """How often this call has been begun, by all owners of the work together."""
        return max(1, self._tries[_place(opens)])

    async def once_more(self) -> None:
        """The call that is open failed for the moment and will be made once more: a line that says so. Raises `Fenced`,
        `BusError`."""
        assert self._opened is not None
        await self._owner.journal(None, self._opened)
        self._tries[_place(self._opened)] += 1

    async def again(self, reserved_tokens: int, reserved_micros: int) -> None:
        """The call that is open will be tried once more, after a try that cost something: open it anew with what all
        its tries together may cost now."""
        assert self._opened is not None
        self._opened = replace(self._opened, reserved_tokens=reserved_tokens, reserved_micros=reserved_micros)
        await self._owner.journal(None, self._opened)

    async def ask(self, asks: Allotment) -> Allotment | None:
        """Ask for more, and wait for the answer: see `Owner.ask`. Raises `InDoubt` as `call` does."""
        self.check()
        granted = await self._owner.ask(self._unsettled, asks)
        self._opened, self._unsettled = None, None
        return granted

    async def park(self, gate: Gate) -> Parked:
        """Let the step go until a person has decided about the next call. Returns, once that is stored, what to raise.
        Raises `Fenced`, `BusError`, and `InDoubt` as `call` does."""
        self.check()
        await self._owner.waiting(gate, self.last())
        return Parked(gate)

    async def lost(self, usage: Usage) -> None:
        """Book what a call cost that gave no result: the next line or the end carries it."""
        self._opened = None
        self.spent = self.spent + usage
        self._unsettled = Settles(self._calls, usage)

    def last(self) -> Settles | None:
        """The settlement that no line has carried yet: the end of the step takes it along. A call that was opened and
        never made (the claim's, say) cost nothing."""
        if self._unsettled is None and self._opened is not None and not self._made:
            return Settles(self._opened.call, Usage())
        return self._unsettled


def describe(value: object) -> msgspec.Raw:
    """A call's arguments for the journal."""
    return msgspec.Raw(encode(value))


def fingerprint(value: object) -> str:
    """A digest that stands for something too large to write into an opening."""
    return digest(encode(value))


def named(opens: Opens) -> str:
    """A tool's call in words."""
    return f"call {opens.call} ({opens.tool}, key {opens.key or 'none'})"


def _effect(opens: Opens) -> tuple[str, str]:
    return opens.tool, opens.key


def _place(opens: Opens) -> tuple[int, str, str]:
    return opens.call, opens.tool, opens.key


def _classed(opens: Opens, repeatable: bool, keyed: bool) -> Opens:
    """The opening with its effect, where it does not say it itself."""
    if opens.kind != "tool" or opens.effect:
        return opens
    return replace(opens, effect="other" if not repeatable else "keyed" if keyed else "read")


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
