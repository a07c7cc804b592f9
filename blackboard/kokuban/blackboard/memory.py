"""Long-term memory on the board: proposed by anybody of the team, counted when a person approved it, gone when it
expired or was forgotten. Every path names its tenant; nothing reads two."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from kokuban.blackboard._reading import Reading
from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import Bus, Conflict, Fence, Refused, write
from kokuban.blackboard.wire._find import seconds_of
from kokuban.schemas import BadRecord, digest, encode, open_record, seal, subjects
from kokuban.schemas.memory import Forgotten, Judgement, MemoryKind, Proposal

State = Literal["proposed", "approved", "denied", "expired", "forgotten"]
_WORD = re.compile(r"\w+")


class NoMemory(LookupError):
    """There is no such memory of this tenant, for whoever asks. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody may read: these kinds, and (people only) what is not approved yet."""

    kinds: frozenset[MemoryKind]
    unapproved: bool = False


EVERYTHING: frozenset[MemoryKind] = frozenset({"fact", "preference", "episode"})


class Memory(NamedTuple):
    """One memory as its records say."""

    id: str
    proposal: Proposal
    state: State
    since: float
    by: str = ""
    reason: str = ""


class Memories:
    """The memory of one tenant. `tenant` and `access` are chosen where this is made, and nothing asked of it widens
    them."""

    def __init__(self, bus: Bus, *, tenant: str, access: Access) -> None:
        """Raises `InvalidName` for what is no tenant."""
        self._bus = bus
        self.tenant = subjects.token(tenant or "", "tenant")
        self._access = access

    async def propose(
        self, *, kind: MemoryKind, key: str, text: str, author: str, task: str | None = None, step: str | None = None,
        source: str | None = None, expires_seconds: int | None = None,
    ) -> tuple[str, bool]:  # fmt: skip
        """Write a proposal; its id, and whether it is new (the same words are the same memory). It counts once a person
        has approved it. When this returns it is stored. Raises `BusError`."""
        body = Proposal(self.tenant, kind, key, text, author, task, step, source, expires_seconds)
        name = digest(encode([self.tenant, kind, key, text])).removeprefix("sha256:")[:24]
        if await self._bus.patiently(lambda: self._bus.find(self._subject(name, "forgotten"))) is not None:
            raise NoMemory(f"memory: {name} was forgotten, and is not to come back; say it in other words")
        stored = await self._say(name, "proposed", body)
        return name, not isinstance(stored, Conflict)

    async def judge(self, name: str, outcome: Literal["approved", "denied"], *, by: str, reason: str = "") -> Memory:
        """Say whether it counts. The first word does: whoever comes later is told what it was. Raises `NoMemory`,
        `BusError`."""
        found = await self._one(name)
        if found is None or found.state in ("expired", "forgotten"):
            raise NoMemory(f"memory: tenant {self.tenant} has no {name!r} that can be judged")
        if found.state == "proposed":
            await self._say(name, "judged", Judgement(outcome, by, digest(encode(found.proposal)), reason))
            found = await self._one(name)
            assert found is not None
        return found

    async def get(self, name: str) -> Memory:
        """One memory. Raises `NoMemory` when there is none that may be read."""
        found = await self._one(name)
        if found is None or not self._readable(found):
            raise NoMemory(f"memory: tenant {self.tenant} has no {name!r}")
        return found

    async def listed(self) -> list[Memory]:
        """All that may be read, oldest first."""
        return [memory for memory in await self._all() if self._readable(memory)]

    async def recall(self, query: str, *, limit: int = 5) -> list[Memory]:
        """Approved memories that fit the words best, at most `limit`: by key, else by text (SQLite FTS5, BM25)."""
        found = [m for m in await self._all() if m.state == "approved" and m.proposal.kind in self._access.kinds]
        exact = [m for m in found if m.proposal.key == query.strip()]
        return [*exact, *(m for m in _ranked(found, query) if m not in exact)][:limit]

    async def forget(self, *, name: str | None = None, task: str | None = None, author: str | None = None) -> int:
        """Forget one, those of a task or an author, or (nothing given) all of this tenant; how many. Their words are
        deleted from the board where this user may delete; a tombstone without words stays. Raises `BusError`."""
        chosen = [
            m
            for m in await self._all()
            if (name is None or m.id == name)
            and (task is None or m.proposal.task == task)
            and (author is None or m.proposal.author == author)
        ]
        for memory in chosen:
            await self._say(memory.id, "forgotten", Forgotten(author or "a person"))
        await self.sweep()
        return len(chosen)

    async def sweep(self) -> int:
        """Delete the words of what was forgotten; how many records went. Only a user that may set the board up can;
        for others it stays until the supervisor does."""
        if not self._bus.may_set_up:
            return 0
        stored = await self._records()
        gone = {_name(s) for s in stored if s.subject.endswith(".forgotten")}
        deleted = 0
        for one in stored:
            if _name(one) in gone and not one.subject.endswith(".forgotten"):
                deleted += await self._delete(one.seq)
        return deleted

    async def _delete(self, seq: int) -> bool:
        call, body = f"STREAM.MSG.DELETE.{subjects.BOARD}", {"seq": seq}
        try:
            await self._bus.patiently(lambda: self._bus.api(call, body))
        except Refused:  # somebody was faster
            return False
        return True

    # ------------------------------------------------------------------ inside

    def _readable(self, memory: Memory) -> bool:
        shown = memory.state == "approved" or (self._access.unapproved and memory.state in ("proposed", "denied"))
        return shown and memory.proposal.kind in self._access.kinds

    def _subject(self, name: str, word: str) -> str:
        return subjects.memory(self.tenant, subjects.token(name, "memory"), word)

    async def _say(self, name: str, word: str, body: Proposal | Judgement | Forgotten) -> object:
        op, subject = secrets.token_hex(12), self._subject(name, word)
        trust = "model" if word == "proposed" else "principal"
        data = seal(body, id=op, type=f"memory.{word}", trust=trust, time=SYSTEM.stamp())
        return await write(self._bus, subject, data, op=op, fence=Fence(subject, 0))

    async def _one(self, name: str) -> Memory | None:
        found = await self._folded(await self._records(subjects.token(name, "memory")))
        return found[0] if found else None

    async def _all(self) -> list[Memory]:
        return await self._folded(await self._records())

    async def _records(self, name: str = "*") -> list[Stored]:
        reading, found = Reading(self._bus, subjects.memory(self.tenant, name, "*")), []
        try:
            while (stored := await reading.next(wait=False)) is not None:
                found.append(stored)
        finally:
            await reading.stop()
        return found

    async def _folded(self, records: Iterable[Stored]) -> list[Memory]:
        """By the records alone, at the server's time."""
        records = list(records)
        if not records:
            return []
        info = await self._bus.patiently(lambda: self._bus.api(f"STREAM.INFO.{subjects.BOARD}"))
        return folded(records, self.tenant, seconds_of(info["ts"]))


def folded(records: Iterable[Stored], tenant: str, now: float) -> list[Memory]:
    """What a tenant's records come to at an instant of the server's clock. Pure. Records that are none are passed over,
    and so is a judgement of other words than those that are there."""
    found: dict[str, Memory] = {}
    gone: set[str] = set()
    for stored in sorted(records, key=lambda one: one.seq):
        name, word = _name(stored), stored.subject.rpartition(".")[2]
        try:
            record = open_record(stored.data)
            if record.type != f"memory.{word}":
                continue
            if word == "forgotten":
                gone.add(name)
            elif word == "proposed" and name not in found:
                body = msgspec.json.decode(record.body, type=Proposal)
                if body.tenant == tenant:
                    found[name] = Memory(name, body, "proposed", stored.time)
            elif word == "judged" and name in found and found[name].state == "proposed":
                said = msgspec.json.decode(record.body, type=Judgement)
                if said.bound == digest(encode(found[name].proposal)):
                    found[name] = found[name]._replace(state=said.outcome, by=said.by, reason=said.reason)
        except (BadRecord, msgspec.DecodeError):
            continue
    return [_aged(memory, now) for name, memory in found.items() if name not in gone]


def _aged(memory: Memory, now: float) -> Memory:
    seconds = memory.proposal.expires_seconds
    return memory._replace(state="expired") if seconds is not None and memory.since + seconds <= now else memory


def _name(stored: Stored) -> str:
    return stored.subject.split(".")[3]


def _ranked(found: list[Memory], query: str) -> list[Memory]:
    words = list(dict.fromkeys(_WORD.findall(query.lower())))[:30]
    if not words or not found:
        return []
    with sqlite3.connect(":memory:") as index:
        try:
            index.execute("CREATE VIRTUAL TABLE memory USING fts5(key, text)")
        except sqlite3.OperationalError:  # an SQLite without FTS5: by the number of words that are there
            hits = [(sum(w in f"{m.proposal.key} {m.proposal.text}".lower() for w in words), m) for m in found]
            return [m for n, m in sorted(hits, key=lambda hit: -hit[0]) if n]
        index.executemany("INSERT INTO memory VALUES (?, ?)", [(m.proposal.key, m.proposal.text) for m in found])
        asked = " OR ".join(f'"{word}"' for word in words)
        rows = index.execute("SELECT rowid FROM memory WHERE memory MATCH ? ORDER BY bm25(memory), rowid", (asked,))
        return [found[row - 1] for (row,) in rows]
