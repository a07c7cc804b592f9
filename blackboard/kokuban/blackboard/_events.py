"""Records told as events: what a person or a program watching the board wants to know."""

from __future__ import annotations

from typing import Any

import msgspec

from kokuban.blackboard.core import Applied, Artifact, Stored
from kokuban.schemas import Failed, Final, Released, Revoked, TaskSpec, WorkOrder
from kokuban.schemas.kinds import decode_artifact

EVENTS = {
    "task.spec": "submitted", "step.order": "ordered", "step.claimed": "claimed", "step.journal": "journal",
    "step.failed": "failed", "step.released": "released", "step.revoked": "revoked", "task.final": "ended",
    "artifact": "stored", "ctl.lease": "lease", "ctl.epoch": "leader",
}  # fmt: skip


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened on the board. `seq` is the record's sequence: watch again from it to go on.

    `event` is submitted, ordered, claimed, journal, artifact (admitted), refused, failed, released, revoked, ended,
    stored, leader, lease or ignored (`text` says why the record counted for nothing). `time` is the server's, in
    seconds since 1970. An artifact event carries its identity and `content`; one record may bring several.
    """

    seq: int
    time: float
    event: str
    task: str = ""
    step: str = ""
    role: str = ""
    attempt: int = 0
    worker: str = ""
    text: str = ""
    kind: str = ""
    name: str = ""
    digest: str = ""
    trust: str = ""
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def artifact(self) -> Any:
        """The artifact's content as its typed shape. Raises `ValueError` for an event without one."""
        if isinstance(self.content, msgspec.UnsetType):
            raise ValueError(f"a {self.event} event carries no artifact")
        return decode_artifact(self.kind, self.content)


def events_of(applied: Applied, stored: Stored) -> list[Event]:
    """What a record that was just folded means to a watcher."""
    record = applied.record
    if record is None or applied.ignored:
        task = applied.task.id if applied.task else ""
        return [Event(stored.seq, stored.time, "ignored", task, text=applied.ignored)]
    base = {
        "task": record.task or "", "step": record.step or "", "role": record.role or "", "attempt": record.attempt,
        "worker": record.worker or "", "trust": record.trust,
    }  # fmt: skip
    if applied.refused:
        return [Event(stored.seq, stored.time, "refused", text="; ".join(applied.refused), **base)]  # type: ignore[arg-type]
    if record.type == "step.done":
        return [_artifact(stored, artifact, base) for artifact in applied.admitted]
    text = _text(record.type, record.body)
    return [Event(stored.seq, stored.time, EVENTS[record.type], text=text, **base)]  # type: ignore[arg-type]


def _artifact(stored: Stored, artifact: Artifact, base: dict[str, Any]) -> Event:
    ref = artifact.ref
    return Event(
        stored.seq, stored.time, "artifact", kind=ref.kind, name=ref.name, digest=ref.digest,
        content=msgspec.Raw(artifact.body), **base,
    )  # fmt: skip


def _text(kind: str, body: msgspec.Raw) -> str:
    if kind == "task.spec":
        return msgspec.json.decode(body, type=TaskSpec).goal
    if kind == "step.order":
        order = msgspec.json.decode(body, type=WorkOrder)
        return f"{order.goal}" + (f" (again: {order.feedback[-1].text})" if order.feedback else "")
    if kind == "step.failed":
        return msgspec.json.decode(body, type=Failed).reason
    if kind == "step.released":
        return msgspec.json.decode(body, type=Released).reason
    if kind == "step.revoked":
        return msgspec.json.decode(body, type=Revoked).reason
    if kind == "task.final":
        final = msgspec.json.decode(body, type=Final)
        return f"{final.state}: {final.reason}"
    return ""
