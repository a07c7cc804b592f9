"""What a tenant's records come to: its memories. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from kokuban.blackboard.core import Stored
from kokuban.schemas import BadRecord, Trust, digest, least_trusted, open_record
from kokuban.schemas.memory import Judgement, Proposal

State = Literal["proposed", "approved", "denied", "expired"]


class Memory(NamedTuple):
    """One memory as its records say. `author` and `by` are who proposed and who judged it (`role-coder`, `person-ann`),
    as the server let them write; `since` is when the server stored it, in seconds since 1970; `bound` the digest of its
    record, which a judgement names; `trust` the label of what its author had seen, whoever judged it."""

    id: str
    proposal: Proposal
    state: State
    since: float
    author: str
    bound: str
    by: str = ""
    reason: str = ""
    trust: Trust = "untrusted"

    def expired(self, now: float) -> bool:
        """Whether its time is over at an instant of the server's clock."""
        seconds = self.proposal.expires_seconds
        return seconds is not None and self.since + seconds <= now


class Said(NamedTuple):
    """Of which memory a record is, what it says about it, and who says so ('' for forgotten)."""

    name: str
    word: str
    who: str


def said(subject: str) -> Said:
    """The parts of a memory's subject."""
    return Said(*(*subject.split(".", 5)[3:], "", "", "")[:3])  # whatever somebody may have written


def may_judge(who: str, memory: Memory, outcome: str) -> bool:
    """A role has no word about what it proposed itself, and approves nothing that a stranger's text went into: whoever
    wrote that text may have written for the judge, too."""
    if not who.startswith("role-"):
        return True
    return who != memory.author and not (outcome == "approved" and memory.trust == "untrusted")


def folded(records: Iterable[Stored], tenant: str, now: float) -> list[Memory]:
    """A tenant's memories at an instant of the server's clock, oldest first; what is forgotten is not among them.

    Passed over are records that are none, a second proposal of what still stands, a judgement of another proposal than
    the one that stands, every judgement but the first, and what a role may not say (`may_judge`).
    """
    found: dict[str, Memory] = {}
    gone: set[str] = set()
    for stored in sorted(records, key=lambda one: one.seq):
        name, word, who = said(stored.subject)
        if word == "forgotten":  # by its subject alone: the server checked who may write there
            gone.add(name)
            continue
        try:
            record = open_record(stored.data)
            if record.type != f"memory.{word}":
                continue
            before = found.get(name)
            if word == "proposed" and (before is None or before.expired(stored.time)):
                body = msgspec.json.decode(record.body, type=Proposal)
                if body.tenant == tenant:
                    found[name] = Memory(name, body, "proposed", stored.time, who, digest(stored.data))._replace(
                        trust=least_trusted("model" if who.startswith("role-") else "principal", record.trust)
                    )
            elif word == "judged" and before is not None and before.state == "proposed":
                verdict = msgspec.json.decode(record.body, type=Judgement)
                if verdict.bound == before.bound and may_judge(who, before, verdict.outcome):
                    found[name] = before._replace(state=verdict.outcome, by=who, reason=verdict.reason)
        except (BadRecord, msgspec.DecodeError):
            continue
    memories = [memory for name, memory in found.items() if name not in gone]
    return [memory._replace(state="expired") if memory.expired(now) else memory for memory in memories]
