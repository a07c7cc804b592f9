"""The fold of what passes between a task and people: gates, votes, decisions, and what a person says to a task."""

from __future__ import annotations

import msgspec

from kokuban.blackboard.core._context import Applied, Context, Ignored, check_epoch
from kokuban.blackboard.core.state import GateState
from kokuban.schemas import Control, Decision, GateRequest, Vote, digest, encode

FACTS_KEPT = 64


def request(at: Context) -> Applied:
    """The leader asks for people's word on an artifact."""
    check_epoch(at)
    gate = msgspec.json.decode(at.record.body, type=GateRequest).gate
    if gate.id != at.address.rest[0] or gate.subject is None or gate.about != "artifact":
        raise Ignored("no request about an artifact")
    if gate.id in at.task.gates:
        raise Ignored("the gate is there")
    bound = digest(encode(gate))
    at.task.gates[gate.id] = GateState(gate, bound, at.address.role, "", at.message.seq, at.message.time)
    return Applied(at.task, at.record)


def vote(at: Context) -> Applied:
    gate, body = _gate(at), msgspec.json.decode(at.record.body, type=Vote)
    person = at.address.rest[2]
    if gate.decision is not None:
        raise Ignored("the gate is decided")
    expires = gate.gate.expires_seconds
    if expires is not None and at.message.time >= gate.time + expires:
        raise Ignored("the gate's time was over")
    if body.bound != gate.bound:
        raise Ignored("the vote is about something else")
    if (body.vote == "answer") != (gate.gate.about == "question"):
        raise Ignored(f"a gate about a {gate.gate.about} takes no {body.vote}")
    if person in gate.votes:
        raise Ignored(f"{person} has voted")
    gate.votes[person] = body
    return Applied(at.task, at.record)


def decision(at: Context) -> Applied:
    check_epoch(at)
    gate, body = _gate(at), msgspec.json.decode(at.record.body, type=Decision)
    if gate.decision is not None:
        raise Ignored("the gate is decided")
    if (body.gate, body.bound) != (gate.gate.id, gate.bound):
        raise Ignored("the decision is about something else")
    gate.decision = body
    return Applied(at.task, at.record)


def control(at: Context) -> Applied:
    body = msgspec.json.decode(at.record.body, type=Control)
    if body.op == "cancel" and at.task.cancel is None:
        at.task.cancel = body.text or "no reason was given"
    elif body.op == "inject" and body.text and len(at.task.facts) < FACTS_KEPT:
        at.task.facts.append(body.text)
    else:
        raise Ignored(f"{body.op}: nothing to do")
    return Applied(at.task, at.record)


def dropped(at: Context) -> Applied:
    """The one thing that may be said after the end: that nobody wants to see a dead task any more."""
    if msgspec.json.decode(at.record.body, type=Control).op != "drop":
        raise Ignored("after the end")
    at.task.dropped = True
    return Applied(at.task, at.record)


def _gate(at: Context) -> GateState:
    gate = at.task.gates.get(at.address.rest[0])
    if gate is None or gate.role != at.address.role:
        raise Ignored("no such gate")
    return gate
