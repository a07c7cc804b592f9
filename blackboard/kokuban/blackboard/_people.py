"""What people do with tasks: cancel, add a fact, vote, answer, look after the dead, ask what came of what."""

from __future__ import annotations

import re
import secrets
from typing import Any, Literal

import msgspec

from kokuban.blackboard._answers import (
    Approval,
    Ended,
    Lineage,
    NotVoted,
    Told,
    Voted,
    approvals_of,
    lineage_of,
)
from kokuban.blackboard._archive import tombstone_of
from kokuban.blackboard._spending import Spending, spending_of
from kokuban.blackboard._submit import (
    NO_CONTENT,
    InvalidRequest,
    InvalidTask,
    NoSuchArtifact,
    NoSuchGate,
    NoSuchTask,
    person_name,
    retry_id,
)
from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.core import Stored, Task
from kokuban.blackboard.core._people import FACTS_KEPT
from kokuban.blackboard.wire import Bus, Conflict, Fence, write
from kokuban.schemas import Control, Decision, Final, Gate, TaskSpec, Tombstone, Vote, open_record, seal, subjects

Word = Literal["approve", "deny", "answer"]
MAX_TEXT = 2_000
MAX_ANSWER = 16_384
_PREFIX = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})\Z")


class People:
    """The part of the client that speaks for a person. `person` is a name such as ann, by default KOKUBAN_PERSON, else
    whom the credential speaks for, else the user of this machine; `InvalidName` for one that cannot stand in a subject.
    Every write may raise `NoAnswer` (unknown whether it landed) or another `BusError` (it did not)."""

    _bus: Bus

    async def status(self, task: str) -> Task:
        """The task as its records say now. Raises `NoSuchTask`."""
        raise NotImplementedError

    async def tasks(self) -> list[Task]:
        """Every task on the board, oldest first."""
        raise NotImplementedError

    async def _select(self, subject: str) -> list[Stored]:
        raise NotImplementedError

    async def _store(self, task: str, spec: TaskSpec, parent: str | None = None) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ to a task

    async def cancel(self, task: str, reason: str = "", *, person: str | None = None) -> Told | Ended:
        """Ask for the end of a task and of all tasks below it. When it returns `Told`, that is stored; the supervisor
        stops what runs, wherever it runs. Raises `NoSuchTask`, `InvalidRequest`."""
        return await self._tell(task, "cancel", _text(reason, "reason", MAX_TEXT, empty=True), person)

    async def inject(self, task: str, text: str, *, person: str | None = None) -> Told | Ended:
        """Add a fact: the plan is made again with it, and every later step reads it, as data. Raises `NoSuchTask`,
        `InvalidRequest`."""
        text = _text(text, "text", MAX_TEXT)
        if len((await self.status(task)).facts) >= FACTS_KEPT:
            raise InvalidRequest(f"text: task {task} holds {FACTS_KEPT} facts, and that is the most it takes")
        return await self._tell(task, "inject", text, person)

    async def _tell(self, task: str, op: Literal["cancel", "inject"], text: str, person: str | None) -> Told | Ended:
        who = person_name(person or self._bus.person)
        before = await self._end(task)
        if before is not None:
            return Ended(task, before[1].state, before[1].reason)
        told = await self._control(task, op, text, who)
        after = await self._end(task)
        if after is not None and after[0] < told.seq:
            return Ended(task, after[1].state, after[1].reason, landed=True)
        return told

    async def _control(self, task: str, op: Literal["cancel", "inject", "drop"], text: str, person: str) -> Told:
        subject = subjects.control(task, person, secrets.token_hex(8))
        stored = await self._say(subject, Control(op, text), "task.control", task, person)
        assert not isinstance(stored, Conflict)  # nobody else writes on a subject with an id of our own
        return Told(task, person, stored)

    async def _say(self, subject: str, body: Any, kind: str, task: str, person: str, **fields: Any) -> int | Conflict:
        """Write the first record on a subject. Returns its sequence, or `Conflict` when there is one."""
        op = secrets.token_hex(12)
        data = seal(
            body, id=op, type=kind, task=task, principal=person, trust="principal", time=SYSTEM.stamp(), **fields
        )
        stored = await write(self._bus, subject, data, op=op, fence=Fence(subject, 0))
        return stored if isinstance(stored, Conflict) else stored.seq

    async def _find(self, subject: str) -> Stored | None:
        return await self._bus.patiently(lambda: self._bus.find(subject))

    async def _end(self, task: str) -> tuple[int, Final | Tombstone] | None:
        """How a task ended and where that is stored, None while it has not. Raises `NoSuchTask`."""
        name = subjects.token(task, "task")
        spec = await self._find(subjects.spec(name))
        if spec is None:
            raise NoSuchTask(f"task: there is no {task!r} on this board")
        final = await self._bus.patiently(lambda: self._bus.last(subjects.final(name)))
        stone = await tombstone_of(self._bus, name)  # read last: its end is deleted only after it is there
        if stone is not None:
            return stone.final, stone
        return (final.seq, msgspec.json.decode(open_record(final.data).body, type=Final)) if final else None

    # ------------------------------------------------------------------ gates

    async def approvals(self, task: str | None = None, *, decided: bool = False) -> list[Approval]:
        """Gates that wait for a person, of one task or of all, oldest first; with `decided`, the others too. Raises
        `NoSuchTask`."""
        tasks = [await self.status(task)] if task is not None else await self.tasks()
        found = [
            approval
            for one in tasks
            for approval in approvals_of(one)
            if decided or (approval.decision is None and one.final is None)
        ]
        return sorted(found, key=lambda a: a.since)

    async def vote(
        self, task: str, gate: str, vote: Word, text: str = "", *, bound: str | None = None, person: str | None = None
    ) -> Voted | NotVoted:
        """Say yes or no to a call or an artifact, or answer a question; `text` is the reason or the answer.

        One vote a person: it cannot be taken back. `bound` is the digest of the gate that the person saw (or its first
        digits): when the gate is another by now, nothing is written. Raises `NoSuchTask`, `NoSuchGate`,
        `InvalidRequest`.
        """
        who = person_name(person or self._bus.person)
        state = await self.status(task)
        asked = next((a for a in approvals_of(state) if a.id == gate), None)
        if asked is None:
            known = ", ".join(a.id for a in approvals_of(state)[:10]) or "none"
            raise NoSuchGate(f"gate: there is no {gate!r} in task {task}; it has {known}")
        body = Vote(_fitting(asked.gate, vote), asked.bound, _text(text, "text", MAX_ANSWER, empty=vote != "answer"))
        if state.final is not None:
            return NotVoted(task, gate, "ended", f"the task has ended: {state.final.state}")
        if asked.decision is not None:
            return NotVoted(task, gate, "decided", _decided(asked.decision))
        if bound is not None and not _same(bound, asked.bound):
            return NotVoted(task, gate, "changed", f"the gate is another by now: it is bound to {asked.bound}")
        subject = subjects.gate_vote(task, asked.role, gate, who)
        seq = await self._say(subject, body, "gate.vote", task, who, role=asked.role)
        if isinstance(seq, Conflict):
            return await self._voted_before(task, gate, who, subject, body)
        decided = await self._bus.patiently(lambda: self._bus.last(subjects.gate_decision(task, asked.role, gate)))
        if decided is not None and decided.seq < seq:
            decision = msgspec.json.decode(open_record(decided.data).body, type=Decision)
            return NotVoted(task, gate, "decided", _decided(decision), landed=True)
        return Voted(task, gate, who, seq)

    async def _voted_before(self, task: str, gate: str, person: str, subject: str, body: Vote) -> Voted | NotVoted:
        stored = await self._bus.patiently(lambda: self._bus.last(subject))
        before = msgspec.json.decode(open_record(stored.data).body, type=Vote) if stored else None
        if stored is not None and before == body:
            return Voted(task, gate, person, stored.seq, again=True)
        said = f"{person} has said {before.vote} before" if before else f"{person} has voted before"
        if before is not None and before.bound != body.bound:
            said += ", to an earlier form of this gate"
        return NotVoted(task, gate, "voted", f"{said}; a vote cannot be changed, another person has to decide")

    # ------------------------------------------------------------------ the dead

    async def dead(self, *, dropped: bool = False) -> list[Task]:
        """Tasks that ended because one of their steps was lost with its workers too often, oldest first; with
        `dropped`, also those that were looked at."""
        return [task for task in await self.tasks() if _is_dead(task) and (dropped or not task.dropped)]

    async def retry(self, task: str, *, person: str | None = None) -> str:
        """Submit a dead task again under a new id and take it off the list of the dead; returns the new id, the same
        when asked twice. Its key stays with the dead one. Raises `NoSuchTask`, `InvalidRequest`, `StoreFull`."""
        who, dead = person_name(person or self._bus.person), await self._dead(task)
        if dead.spec.workspace == NO_CONTENT:
            raise InvalidTask(f"task: {task} was archived and its archive is gone, with its goal; submit it again")
        name = retry_id(task)
        await self._store(name, msgspec.structs.replace(dead.spec, key=None), dead.parent)
        if not dead.dropped and dead.tombstone is None:
            await self._control(task, "drop", f"tried again as {name}", who)
        return name

    async def drop(self, task: str, reason: str = "", *, person: str | None = None) -> Told:
        """Take a dead task off the list. Its records stay. Raises `NoSuchTask`, `InvalidRequest`."""
        who, text = person_name(person or self._bus.person), _text(reason, "reason", MAX_TEXT, empty=True)
        await self._dead(task)
        return await self._control(task, "drop", text, who)

    async def _dead(self, name: str) -> Task:
        task = await self.status(name)
        if not _is_dead(task):
            state = f"ended {task.final.state}" if task.final else "has not ended"
            raise InvalidRequest(f"task: {name} {state}; only a dead one can be retried or dropped")
        return task

    # ------------------------------------------------------------------ looking

    async def lineage(self, digest: str, task: str | None = None) -> Lineage:
        """Where an admitted artifact comes from, and what came of it. The first digits of its digest are enough (4 or
        more). Raises `NoSuchTask`, `NoSuchArtifact`, `InvalidRequest` when they fit more than one."""
        if not (match := _PREFIX.match(digest.strip().lower())):
            raise InvalidRequest(f"artifact: {digest[:80]!r} is no digest; give 4 to 64 of its hex digits")
        prefix = "sha256:" + match[1]
        tasks = [await self.status(task)] if task is not None else await self.tasks()
        found = [(t, a) for t in tasks for name, a in t.artifacts.items() if name.startswith(prefix)]
        if not found:
            raise NoSuchArtifact(f"artifact: no admitted one has a digest that starts with {prefix}")
        if len(found) > 1:
            several = ", ".join(f"{a.ref.digest[:23]} ({a.ref.kind}/{a.ref.name} of {t.id})" for t, a in found[:8])
            raise InvalidRequest(f"artifact: {prefix} fits {len(found)}: {several}; give more digits, or the task too")
        return lineage_of(*found[0])

    async def spending(self, task: Task) -> Spending:
        """What a task and all tasks below it have spent and reserved of its budget, and what is left of it."""
        below: list[Task] = []
        for name in await self._below(task.id):
            try:
                below.append(await self.status(name))
            except NoSuchTask:
                continue  # archived in between
        return spending_of(task, below)

    async def _below(self, task: str) -> list[str]:
        """The ids of all tasks below this one."""
        parents: dict[str, list[str]] = {}
        for stored in await self._select(subjects.spec("*")):
            record = open_record(stored.data)
            if record.parent is not None and record.task is not None:
                parents.setdefault(record.parent, []).append(record.task)
        found: dict[str, None] = {}
        waiting = list(parents.get(task, ()))
        while waiting:
            name = waiting.pop()
            if name not in found and name != task:
                found[name] = None
                waiting += parents.get(name, ())
        return list(found)


def _is_dead(task: Task) -> bool:
    return task.final is not None and task.final.state == "dead"


def _fitting(gate: Gate, vote: Word) -> Word:
    if vote == "answer" and gate.about != "question":
        raise InvalidRequest(f"vote: gate {gate.id} is about {_a(gate.about)}; approve or deny it")
    if vote != "answer" and gate.about == "question":
        raise InvalidRequest(f"vote: gate {gate.id} asks a question; answer it")
    return vote


def _a(about: str) -> str:
    return f"an {about}" if about == "artifact" else f"a {about}"


def _same(seen: str, bound: str) -> bool:
    """Whether the digest that a person saw, or its first digits, is the gate's."""
    match = _PREFIX.match(seen.strip().lower())
    if match is None:
        raise InvalidRequest(f"bound: {seen[:80]!r} is no digest; give 4 to 64 of its hex digits")
    return bound.startswith("sha256:" + match[1])


def _decided(decision: Decision) -> str:
    by = f" by {', '.join(decision.by)}" if decision.by else ""
    return f"it is {decision.outcome} already{by}" + (f": {decision.text}" if decision.text else "")


def _text(text: str, field: str, most: int, *, empty: bool = False) -> str:
    text = text.strip()
    if not text and not empty:
        raise InvalidRequest(f"{field}: it is empty; say something")
    if len(text) > most:
        raise InvalidRequest(f"{field}: {len(text):,} characters; at most {most:,}")
    return text
