"""Records told as events: what a person or a program watching the board wants to know."""

from __future__ import annotations

from typing import Any

import msgspec

from kokuban.blackboard._archive import keeps_key
from kokuban.blackboard.core import Applied, Artifact, Stored
from kokuban.schemas import (
    KINDS,
    Allotment,
    BoardLimits,
    Control,
    Decision,
    Ending,
    Failed,
    Final,
    Gate,
    GateRequest,
    Grant,
    Intake,
    Journal,
    RegisteredKind,
    RegisteredRole,
    Released,
    Revoked,
    TaskSpec,
    Tombstone,
    Vote,
    Waiting,
    WorkOrder,
    digest,
    encode,
    subjects,
)
from kokuban.schemas.kinds import decode_artifact

EVENTS = {
    "task.spec": "submitted", "step.order": "ordered", "step.claimed": "claimed", "step.journal": "journal",
    "step.failed": "failed", "step.released": "released", "step.revoked": "revoked", "task.final": "ended",
    "artifact": "stored", "ctl.lease": "lease", "ctl.epoch": "leader", "step.waiting": "waiting",
    "step.granted": "granted", "gate.request": "gate", "gate.vote": "vote", "gate.decision": "decision",
    "task.ending": "ending", "task.tombstone": "archived", "ctl.limits": "limits", "ctl.intake": "intake",
    "ctl.kind": "kind",
    "ctl.role": "role", "ctl.snapshot": "snapshot",
    "memory.proposed": "memory", "memory.judged": "memory", "memory.forgotten": "memory",
}  # fmt: skip
_CONTROLS = {"cancel": "cancel", "inject": "fact", "drop": "dropped"}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened on the board. `seq` is the record's sequence: watch again from it to go on.

    About a step: ordered, claimed, journal, asked (for a larger allotment), granted, artifact (admitted), refused,
    failed, waiting (for a person), released, revoked, stored. About a task: submitted, gate (a person's word on an
    artifact is wanted), vote, decision, cancel, fact, dropped, ending, ended,
    archived. About the board: leader, lease, limits, intake, kind, role, snapshot, memory. `ignored`: the record
    counted for nothing, `text` says why. `time` is the server's, in
    seconds since 1970. An artifact event carries its identity and `content`; one record may bring several. A waiting or
    gate event carries the gate as `content`, its digest (what a vote is bound to) as `digest`, and in `until` when it
    expires (0: never). `person` is who voted or spoke.
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
    gate: str = ""
    person: str = ""
    until: float = 0.0
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def artifact(self) -> Any:
        """The artifact's content as its typed shape, of a registered kind as plain values. Raises `ValueError` for an
        event without one."""
        if isinstance(self.content, msgspec.UnsetType) or not self.kind:
            raise ValueError(f"a {self.event} event carries no artifact")
        return decode_artifact(self.kind, self.content) if self.kind in KINDS else msgspec.json.decode(self.content)

    def asks(self) -> Gate:
        """What a waiting or gate event asks of a person. Raises `ValueError` for another event."""
        if isinstance(self.content, msgspec.UnsetType) or not self.gate:
            raise ValueError(f"a {self.event} event asks nothing")
        return msgspec.json.decode(self.content, type=Gate)


def events_of(applied: Applied, stored: Stored) -> list[Event]:
    """What a record that was just folded means to a watcher."""
    record = applied.record
    if applied.task is not None and applied.task.tombstone is not None and keeps_key(stored, applied.task.tombstone):
        return []  # its burial was told of
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
    more = _more(record.type, record.body, stored)
    if record.type.startswith(("gate.", "task.control")):
        more["person"] = _person(stored.subject)
    name = EVENTS.get(record.type, record.type)
    return [Event(**{"seq": stored.seq, "time": stored.time, "event": name, **base, **more})]


def _artifact(stored: Stored, artifact: Artifact, base: dict[str, Any]) -> Event:
    ref = artifact.ref
    return Event(
        stored.seq, stored.time, "artifact", kind=ref.kind, name=ref.name, digest=ref.digest,
        content=msgspec.Raw(artifact.body), **base,
    )  # fmt: skip


def _person(subject: str) -> str:
    """Whose word it is: the server checked who may write on the subject."""
    address = subjects.parse(subject)
    if address is None:
        return ""
    return address.rest[2] if len(address.rest) == 3 else address.rest[0] if address.kind == "control" else ""


def _more(kind: str, body: msgspec.Raw, stored: Stored) -> dict[str, Any]:
    """The fields of an event that its record's body gives, beyond those of its envelope."""
    match kind:
        case "step.waiting":
            return _gate(msgspec.json.decode(body, type=Waiting).gate, stored)
        case "gate.request":
            return _gate(msgspec.json.decode(body, type=GateRequest).gate, stored)
        case "gate.vote":
            vote, address = msgspec.json.decode(body, type=Vote), subjects.parse(stored.subject)
            return {
                "gate": address.rest[0] if address else "", "digest": vote.bound,
                "text": f"{vote.vote}: {vote.text}" if vote.text else vote.vote,
            }  # fmt: skip
        case "gate.decision":
            decision = msgspec.json.decode(body, type=Decision)
            by = f" by {', '.join(decision.by)}" if decision.by else ""
            said = f": {decision.text}" if decision.text else ""
            return {"gate": decision.gate, "digest": decision.bound, "text": f"{decision.outcome}{by}{said}"}
        case "task.ending":
            ending = msgspec.json.decode(body, type=Ending)
            return {"text": f"{ending.state}: {ending.reason}"}
        case "task.control":
            control = msgspec.json.decode(body, type=Control)
            return {"event": _CONTROLS[control.op], "text": control.text}
        case "step.journal":
            if b'"asks"' not in bytes(body) or (asks := msgspec.json.decode(body, type=Journal).asks) is None:
                return {}
            return {"event": "asked", "text": f"for {_allotment(asks)}"}
        case "ctl.kind":
            registered = msgspec.json.decode(body, type=RegisteredKind)
            return {"kind": "", "name": registered.kind, "text": f"{registered.kind}, version {registered.version}"}
    return {"text": _text(kind, body)}


def _gate(gate: Gate, stored: Stored) -> dict[str, Any]:
    content = encode(gate)
    until = stored.time + gate.expires_seconds if gate.expires_seconds is not None else 0.0
    return {
        "gate": gate.id, "digest": digest(content), "until": until, "content": msgspec.Raw(content), "text": gate.asks
    }  # fmt: skip


def _allotment(allotment: Allotment) -> str:
    money = f", {allotment.micros} millionths of a dollar" if allotment.micros is not None else ""
    return (
        f"{allotment.tokens} tokens, {allotment.steps} model turns, {allotment.tool_calls} tool calls, "
        f"{allotment.seconds} seconds{money}"
    )


def _text(kind: str, body: msgspec.Raw) -> str:
    match kind:
        case "task.spec":
            return msgspec.json.decode(body, type=TaskSpec).goal
        case "step.order":
            order = msgspec.json.decode(body, type=WorkOrder)
            return f"{order.goal}" + (f" (again: {order.feedback[-1].text})" if order.feedback else "")
        case "step.failed":
            return msgspec.json.decode(body, type=Failed).reason
        case "step.released":
            return msgspec.json.decode(body, type=Released).reason
        case "step.revoked":
            return msgspec.json.decode(body, type=Revoked).reason
        case "step.granted":
            return f"now {_allotment(msgspec.json.decode(body, type=Grant).allotment)}"
        case "task.final":
            final = msgspec.json.decode(body, type=Final)
            return f"{final.state}: {final.reason}"
        case "task.tombstone":
            tombstone = msgspec.json.decode(body, type=Tombstone)
            return f"{tombstone.state}: {tombstone.reason}"
        case "ctl.limits":
            return encode(msgspec.json.decode(body, type=BoardLimits)).decode()
        case "ctl.intake":
            intake = msgspec.json.decode(body, type=Intake)
            state = "open" if intake.open else "closed: no new tasks are taken"
            return f"{state} ({intake.used_bytes} of {intake.limit_bytes} bytes)"
        case "ctl.role":
            return msgspec.json.decode(body, type=RegisteredRole).role
    return ""
