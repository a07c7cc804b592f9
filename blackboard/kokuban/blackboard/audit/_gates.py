"""Gates: one word a person, decisions that match the votes, an approval that is used at most once."""

from __future__ import annotations

from typing import Any

from ._leader import decided
from ._record import Rec
from ._slices import digest, parse
from ._state import Call, Gate, History, Step, Task


def waiting(h: History, task: Task, step: Step, rec: Rec) -> None:
    """An owner lets its step go until a person has decided."""
    gate = _ask(h, task, rec, step.role, step.id)
    if gate is not None:
        step.gate = gate.id


def request(h: History, task: Task, rec: Rec) -> None:
    """The leader asks about an artifact."""

    if decided(h, task, rec):
        _ask(h, task, rec, rec.role, "")


def _ask(h: History, task: Task, rec: Rec, role: str, step: str) -> Gate | None:
    body = rec.body.get("gate")
    if not isinstance(body, dict):
        h.wrong("record", rec.seq, f"{rec.type} of task {task.id} holds no gate")
        return None
    name, expires = str(body.get("id")), body.get("expires_seconds")
    bound = digest(rec.parts["gate"])
    known = task.gates.get(name)
    if known is not None and known.bound != bound:
        h.wrong("gate-bound", rec.seq, f"gate {name} of task {task.id} was asked before about something else")
        return known
    if known is not None:
        return known
    h.count("gates")
    task.gates[name] = gate = Gate(
        name, role, step, str(body.get("about")), bound, int(body.get("need", 1)), rec.seq, rec.time,
        rec.time + float(expires) if expires is not None else None, body.get("subject"), body,
    )  # fmt: skip
    return gate


def vote(h: History, task: Task, rec: Rec) -> None:
    """A person's word. Two on one subject would be two words of one person."""
    name, person = rec.rest
    if rec.envelope.get("principal") != person:
        h.wrong(
            "gate-vote", rec.seq, f"a vote of {person} on gate {name} was written by {rec.envelope.get('principal')}"
        )
        return
    gate = task.gates.get(name)
    if gate is None:
        h.note("a vote on a gate that nobody asked about; it counts for nothing")
        return
    if gate.expires is not None and rec.time >= gate.expires:
        h.note("a vote after the gate's time was over; it counts for nothing")
        return
    if person in gate.votes:
        h.wrong("gate-vote", rec.seq, f"{person} voted on gate {name} twice: at {gate.votes[person].seq} before")
        return
    h.count("votes")
    gate.votes[person] = rec


def decision(h: History, task: Task, rec: Rec) -> None:
    """The leader counts the votes, once."""

    if not decided(h, task, rec):
        return
    gate = task.gates.get(rec.rest[0])
    if gate is None:
        h.wrong("gate-decision", rec.seq, f"gate {rec.rest[0]} of task {task.id} was decided, and nobody had asked")
        return
    where = f"gate {gate.id} of task {task.id}"
    if gate.decision is not None:
        h.wrong("gate-decision", rec.seq, f"{where} was decided twice: at {gate.decision.seq} before")
        return
    if rec.body.get("bound") != gate.bound or rec.body.get("gate") != gate.id:
        h.wrong("gate-bound", rec.seq, f"{where}: the decision is bound to something else than what was asked")
    _matches(h, gate, rec, where)
    gate.decision = rec
    h.count(f"gates {rec.body.get('outcome')}")


def _matches(h: History, gate: Gate, rec: Rec, where: str) -> None:
    """The outcome follows from the votes on exactly what was asked that were stored before it, or from time."""
    valid = {p: v for p, v in gate.votes.items() if v.body.get("bound") == gate.bound and v.seq < rec.seq}
    said = {word: [p for p, v in valid.items() if v.body.get("vote") == word] for word in ("approve", "deny", "answer")}
    outcome, by = rec.body.get("outcome"), rec.items("by")
    if outcome == "approved" and len(said["approve"]) < gate.need:
        text = f"{len(said['approve'])} of the {gate.need} votes that it needs"
        h.wrong("gate-decision", rec.seq, f"{where} was approved with {text}")
    enough = sorted(valid[p].seq for p in said["approve"])[: gate.need]
    denied = [p for p in said["deny"] if enough and valid[p].seq < enough[-1]]
    if outcome == "approved" and denied:  # whoever had read enough approvals had read this, too
        h.wrong("gate-decision", rec.seq, f"{where} was approved although {denied[0]} had denied it before")
    if outcome == "denied" and not said["deny"]:
        h.wrong("gate-decision", rec.seq, f"{where} was denied, and nobody had said so")
    if outcome == "answered" and not said["answer"]:
        h.wrong("gate-decision", rec.seq, f"{where} was answered, and nobody had said anything")
    if outcome == "expired" and (gate.expires is None or rec.time < gate.expires - 0.5):
        h.wrong("gate-decision", rec.seq, f"{where} expired before its time")
    foreign = [person for person in by if person not in valid]
    if foreign:
        h.wrong("gate-decision", rec.seq, f"{where}: the decision names {foreign[0]}, who has no valid vote")


def decisions_in_order(h: History, task: Task, step: Step, rec: Rec) -> None:
    """What an order says about gates is what was decided; a step that waits is not ordered before that."""
    told: dict[str, Any] = {}
    for entry in rec.items("decided"):
        name = str(entry.get("gate"))
        gate = task.gates.get(name)
        made = gate.decision if gate is not None else None
        told[name] = entry
        if gate is None or made is None:
            h.wrong("gate-decision", rec.seq, f"the order of step {task.id}/{step.id} tells of gate {name}, undecided")
        elif (entry.get("outcome"), entry.get("bound")) != (made.body.get("outcome"), made.body.get("bound")):
            h.wrong("gate-decision", rec.seq, f"the order of step {task.id}/{step.id} tells gate {name} another way")
    if step.status == "waiting" and int(rec.body.get("resumes", 0)) and step.gate not in told:
        h.wrong("gate-decision", rec.seq, f"step {task.id}/{step.id} goes on before its gate {step.gate} was decided")


def used(h: History, task: Task, step: Step, call: Call) -> None:
    """A call that names its approval: the very call that was asked about, approved before, and no other call's."""
    if not call.gate:
        return
    gate, where = task.gates.get(call.gate), f"step {task.id}/{step.id}: call {call.number}"
    if gate is None or gate.decision is None or gate.decision.body.get("outcome") != "approved":
        h.wrong("gate-used", call.seq, f"{where} uses gate {call.gate}, which is not approved")
        return
    about = (gate.step, str(gate.body.get("tool", "")), int(gate.body.get("call", 0)), str(gate.body.get("key", "")))
    if about != (step.id, call.tool, call.number, call.key):
        h.wrong("gate-used", call.seq, f"{where} ({call.tool}) uses gate {call.gate}, which is about another call")
    shown = gate.body.get("arguments")
    cut = isinstance(shown, dict) and set(shown) == {"begins", "bytes"}  # very large ones, of which people saw a part
    if shown is not None and not cut and call.arguments is not None and parse(call.arguments) != shown:
        h.wrong("gate-used", call.seq, f"{where} uses gate {call.gate} with other arguments than were approved")
    gate.used.add((step.id, step.begun, call.number))
    if len(gate.used) > 1:
        h.wrong("gate-used", call.seq, f"{where} uses gate {call.gate} again, for another call")
