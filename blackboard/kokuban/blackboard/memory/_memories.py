"""The memory of one tenant, as far as somebody may have it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import structlog

from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Stored
from kokuban.blackboard.memory._embeddings import Embeddings, NoEmbeddings
from kokuban.blackboard.memory._fold import Memory, folded, said
from kokuban.blackboard.memory._forgetting import forgotten_deleted
from kokuban.blackboard.memory._recall import by_meaning, by_words
from kokuban.blackboard.memory._shelf import Shelf
from kokuban.blackboard.wire import Bus, Conflict, Fence, Written, write
from kokuban.schemas import Trust, digest, encode, least_trusted, seal, subjects
from kokuban.schemas.memory import Forgotten, Judgement, MemoryKind, Proposal

EVERYTHING: frozenset[MemoryKind] = frozenset({"fact", "preference", "episode"})
ANYBODY = None
"""For `Access.principals`: whomever a memory concerns."""
MOST_VECTORS = 10_000
"""The newest memories of a tenant that are recalled by meaning (of 1,000 numbers each: 40 MB); older ones by key."""
log = structlog.get_logger("kokuban.memory")


class NoMemory(LookupError):
    """There is no such memory of this tenant, for whoever asks. Nothing was written."""


class InvalidMemory(ValueError):
    """What is proposed is too long, empty or of a kind that may not be written. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What somebody may have: memories of these kinds that concern everybody or one of these principals (`ANYBODY`: any
    of them), and with `unapproved` (people and verifiers) also those that were not approved."""

    kinds: frozenset[MemoryKind]
    principals: frozenset[str] | None
    unapproved: bool

    def allows(self, memory: Memory) -> bool:
        """Whether this memory may be seen."""
        about = memory.proposal
        mine = self.principals is None or not about.principal or about.principal in self.principals
        shown = memory.state == "approved" or (self.unapproved and memory.state in ("proposed", "denied"))
        return shown and mine and about.kind in self.kinds


class Memories:
    """The memory of one tenant. `tenant`, `access` and `who` (`role-coder`, `person-ann`) are chosen where this is
    made; nothing asked of it widens them, and the server checks `who`. A `shelf` of that tenant saves a process from
    reading everything each time. With `embeddings`, approved texts are sent there."""

    def __init__(
        self, bus: Bus, *, tenant: str, access: Access, who: str, shelf: Shelf | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:  # fmt: skip
        """Raises `InvalidName` for what is no tenant, `ValueError` for a shelf of another."""
        self.tenant = subjects.token(tenant or "", "tenant")
        self.who = _who(who)
        self._bus = bus
        self._access = access
        self._shelf = shelf or Shelf(self.tenant)
        if self._shelf.tenant != self.tenant:
            raise ValueError("memory: the shelf is another tenant's")
        self._embeddings = embeddings

    # ------------------------------------------------------------------ writing

    async def propose(
        self, *, kind: MemoryKind, key: str, text: str, task: str | None = None, step: str | None = None,
        sources: tuple[str, ...] = (), principal: str = "", expires_seconds: int | None = None,
        trust: Trust = "model",
    ) -> tuple[str, bool]:  # fmt: skip
        """Write a proposal; its id, and whether it is new. The same words are the same memory, until it expires: then
        they may be proposed again. `trust` is the label of what it was made of. When this returns it is stored; it
        counts once it has been approved. Raises `InvalidMemory`, `NoMemory` for what was forgotten, `BusError`
        (`NoAnswer`: unknown whether it landed)."""
        body = Proposal(self.tenant, kind, key, text, task, step, sources, principal, expires_seconds)
        return await self.propose_whole(body, trust)

    async def propose_whole(self, body: Proposal, trust: Trust = "model") -> tuple[str, bool]:
        """As `propose`, of what is put together already."""
        try:
            msgspec.convert(msgspec.to_builtins(body), Proposal)
            encode(body)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise InvalidMemory(f"memory: {error}") from error
        if body.tenant != self.tenant or body.kind not in self._access.kinds:
            raise InvalidMemory(f"memory: a {body.kind} may not be proposed here")
        name = _name(body)
        records, now = await self._shelf.of(self._bus, name)
        if any(said(one.subject).word == "forgotten" for one in records):
            raise NoMemory(f"memory: {name} was forgotten, and is not to come back; say it in other words")
        standing = folded(records, self.tenant, now)
        if standing and standing[0].state != "expired":
            return name, False
        stored = await self._say(name, "proposed", body, records, trust)
        return name, isinstance(stored, Written)

    async def judge(self, name: str, outcome: Literal["approved", "denied"], *, reason: str = "") -> Memory:
        """Say whether it counts. The first word does: whoever comes later is told what it was. A role has none about
        what it proposed itself. Raises `NoMemory`, `BusError` (`Forbidden` for who may not)."""
        records, now = await self._shelf.of(self._bus, subjects.token(name, "memory"))
        found = self._standing(records, now)
        if found is None:
            raise NoMemory(f"memory: tenant {self.tenant} has no {name!r} that can be judged")
        if found.state == "proposed":
            await self._say(name, "judged", Judgement(outcome, found.bound, reason[:2_000]), records)
            found = self._standing(*await self._shelf.of(self._bus, name))
            if found is None:  # forgotten meanwhile
                raise NoMemory(f"memory: tenant {self.tenant} has no {name!r} that can be judged")
        return found

    async def forget(
        self, *, name: str | None = None, task: str | None = None, source: str | None = None, author: str | None = None
    ) -> int:
        """Forget what all of these fit: an id, the task or the digest of an artifact that it came from, who proposed
        it. How many. What is forgotten surfaces nowhere from then on; its words are deleted from the board here if this
        user may, else by the supervisor, and a tombstone without words stays. Raises `ValueError` when nothing is
        named, `BusError` (some may be forgotten: ask again)."""
        if name is task is source is author is None:
            raise ValueError("memory: say what is to be forgotten, or forget_all")
        chosen = [
            memory.id
            for memory in await self._shelf.memories(self._bus)
            if (name is None or memory.id == name)
            and (task is None or memory.proposal.task == task)
            and (source is None or source in memory.proposal.sources)
            and (author is None or memory.author == author)
        ]
        return await self._forget(chosen)

    async def forget_all(self) -> int:
        """Forget everything of this tenant, also records that are none; how many memories. As `forget` otherwise."""
        records = await self._bus.patiently(lambda: self._bus.history(subjects.memories(self.tenant)))
        gone = {parts.name for one in records if (parts := said(one.subject)).word == "forgotten"}
        return await self._forget(dict.fromkeys(said(one.subject).name for one in records).keys() - gone)

    async def _forget(self, names: Iterable[str]) -> int:
        chosen = sorted(names)
        for name in chosen:
            await self._say(name, "forgotten", Forgotten(self.who), ())
        if self._bus.may_set_up:
            await forgotten_deleted(self._bus, tenant=self.tenant)
        return len(chosen)

    # ------------------------------------------------------------------ reading

    async def get(self, name: str) -> Memory:
        """One memory. Raises `NoMemory` when there is none that may be seen."""
        found = self._standing(*await self._shelf.of(self._bus, subjects.token(name, "memory")))
        if found is None or not self._access.allows(found):
            raise NoMemory(f"memory: tenant {self.tenant} has no {name!r}")
        return found

    async def listed(self) -> list[Memory]:
        """All that may be seen, oldest first."""
        return [memory for memory in await self._shelf.memories(self._bus) if self._access.allows(memory)]

    async def recall(self, query: str, *, limit: int = 5) -> list[Memory]:
        """Approved memories that fit best, at most `limit`: those with this key, then by meaning if there are
        embeddings that answer, else by words. Of what may be seen, and approved whoever asks."""
        found = [memory for memory in await self.listed() if memory.state == "approved"]
        exact = [memory for memory in found if memory.proposal.key == query.strip()]
        near = await self._by_meaning(found, query) if self._embeddings is not None and found else None
        ranked = near if near is not None else await asyncio.to_thread(by_words, found, query)
        return [*exact, *(memory for memory in ranked if memory not in exact)][:limit]

    async def _by_meaning(self, found: list[Memory], query: str) -> list[Memory] | None:
        assert self._embeddings is not None
        found = found[-MOST_VECTORS:]
        vectors = self._shelf.vectors
        known = {memory.bound: vectors[memory.bound] for memory in found if memory.bound in vectors}
        new = [memory for memory in found if memory.bound not in known]
        try:
            texts = [f"{memory.proposal.key}: {memory.proposal.text}" for memory in new]
            *made, asked = await self._embeddings.of([*texts, query])
            more = {memory.bound: vector for memory, vector in zip(new, made, strict=True)}
            known |= more
            vectors |= more
            ours = [known[memory.bound] for memory in found]  # others may have dropped them from the shelf meanwhile
            for bound in list(vectors)[:-MOST_VECTORS]:
                del vectors[bound]
            return await asyncio.to_thread(by_meaning, found, ours, asked)
        except (NoEmbeddings, ValueError) as error:  # an endpoint whose vectors changed their length is none either
            log.warning("recalled by words", error=str(error)[:200])
            return None

    # ------------------------------------------------------------------ inside

    def _standing(self, records: list[Stored], now: float) -> Memory | None:
        found = folded(records, self.tenant, now)
        return found[0] if found and found[0].state != "expired" else None

    async def _say(
        self,
        name: str,
        word: str,
        body: Proposal | Judgement | Forgotten,
        records: Sequence[Stored],
        trust: Trust = "model",
    ) -> Written | Conflict:
        """By compare-and-set on the writer's own subject: what was there when it was decided is there still."""
        subject = subjects.memory(self.tenant, name, word, "" if word == "forgotten" else self.who)
        last = max((one.seq for one in records if one.subject == subject), default=0)
        kind, _, who = self.who.partition("-")
        role = {"role": who, "trust": least_trusted("model", trust)}
        own = role if kind == "role" else {"principal": who, "trust": "principal"}
        op, derived = secrets.token_hex(12), getattr(body, "sources", ())
        data = seal(body, id=op, type=f"memory.{word}", time=SYSTEM.stamp(), derived_from=derived, **own)
        return await write(self._bus, subject, data, op=op, fence=Fence(subject, last))


def _name(body: Proposal) -> str:
    """The id: the same words about the same people are the same memory, whoever says them."""
    return digest(encode([body.tenant, body.kind, body.key, body.text, body.principal])).removeprefix("sha256:")[:24]


def _who(who: str) -> str:
    kind, _, name = who.partition("-")
    if kind not in ("role", "person"):
        raise ValueError(f"memory: {who[:80]!r} is neither role-NAME nor person-NAME")
    subjects.token(name, kind)
    return who
