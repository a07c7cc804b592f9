"""Golden histories of what version 2 added: people, budgets and task trees; limits, intake, registered kinds and roles;
tombstones."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from core import contents
from core.history import History, begun
from kokuban.blackboard.core import Board, GateState, Task
from kokuban.schemas import (
    Allotment,
    BoardLimits,
    Budget,
    Decision,
    Final,
    Gate,
    GateRequest,
    Grant,
    Intake,
    Opens,
    RegisteredKind,
    RegisteredRole,
    Settles,
    Snapshot,
    TenantLimits,
    Tombstone,
    Usage,
    WorkOrder,
    digest,
    subjects,
)
from kokuban.schemas.records import Outcome

CALL = Opens(2, "tool", "run_command", msgspec.Raw(b'{"command":"make release"}'), "key-2", 0, 40)
ROLE = """\
role = "reviewer"
summary = "Reads a memo and says what it thinks."
when = "planned"
consumes = ["task", "finding"]
produces = ["finding"]
model = false
tools = []

[limits]
concurrency = 2
steps = 1
tool_calls = 0
tokens = 0
seconds = 60
"""
MEMO = b'{"type":"object","properties":{"text":{"type":"string","maxLength":100}},"required":["text"]}'


def people() -> History:
    """A call and an artifact that people decide about, a fact, an allotment that is raised, and a cancel."""
    history = begun(
        goal="release it", approve=("patch",), tenant="acme", priority=3, deadline_seconds=600, replans=1,
        budget=Budget(tokens=10_000, micros=5_000),
    )  # fmt: skip
    history.say("inject", "the branch is called main")
    history.order("ship", "coder")
    history.claim("ship", opens=Opens(1, "model", reserved_tokens=900))
    history.journal("ship", settles=Settles(1, Usage(300, 40, 1, micros=12)), opens=CALL)
    asked = Gate(
        "ship-1-2", "call", "May it release?", "run_command", CALL.arguments, digest(b"arguments"), "1", "p-1", 2,
        "key-2", need=2, expires_seconds=3_600,
    )  # fmt: skip
    history.wait("ship", asked, settles=Settles(2, Usage()))
    history.vote("ship-1-2")
    history.vote("ship-1-2", "deny", person="ann", text="a second word of hers")
    history.vote("ship-1-2", person="bob", bound=contents.NOTHING)
    history.vote("ship-1-2", "answer", "blue", person="cid")
    history.vote("ship-1-2", person="dan")
    decide(history, "ship-1-2", "approved", by=("ann", "dan"), fence=1)
    decide(history, "ship-1-2", "approved", by=("ann", "dan"))
    history.vote("ship-1-2", "deny", person="eve")
    again(history, "ship", resumes=1)
    history.claim("ship", opens=Opens(1, "model", reserved_tokens=900))
    history.journal("ship", opens=msgspec.structs.replace(CALL, gate="ship-1-2", tool="write_file"))
    history.journal("ship", settles=Settles(1, Usage(1)), opens=msgspec.structs.replace(CALL, gate="ship-1-2"))
    history.journal("ship", settles=Settles(2, Usage(tool_calls=1)), asks=Allotment(tokens=64_000))
    grant(history, "ship", Allotment(tokens=64_000), fence=1)
    grant(history, "ship", Allotment(tokens=64_000))
    history.journal("ship", opens=Opens(3, "model", reserved_tokens=4_000, reserved_micros=30))
    history.release("ship")  # the call that was open counts at its worst
    again(history, "ship", resumes=1)
    history.claim("ship")
    history.done("ship", ("change", contents.patch()))
    ref = history.board.tasks["t-1"].steps["ship"].results[0].ref
    request = GateRequest(Gate(f"approve-{ref.digest[7:23]}", "artifact", "May it be used?", subject=ref))
    subject = subjects.gate_request("t-1", "coder", request.gate.id)
    for fence in (1, history.fence):
        history.write(subject, request, "gate.request", role="coder", fence=fence)
    history.vote(request.gate.id, "deny", "not on a Friday")
    decide(history, request.gate.id, "denied", by=("ann",))
    again(history, "ship")
    history.claim("ship")
    question = Gate("ship-4-1", "question", "Which day, then?", call=1)
    history.wait("ship", question)
    history.say("cancel", "nobody needs it any more", person="bob")
    history.say("cancel", "said twice")
    history.say("drop")
    history.order("other", "researcher")
    history.claim("other", opens=Opens(1, "model", reserved_tokens=50))
    history.revoke("other", "cancelled by bob")
    history.final(Final("cancelled", "cancelled by bob", usage=Usage(5), unconfirmed=("other",)))
    return history


def board() -> History:
    """Limits, intake, what users registered; a tree of tasks; one that is archived, what comes late, its key again."""
    history = begun(goal="the whole")
    control(
        history,
        subjects.LIMITS,
        BoardLimits({"coder": 2}, {"acme": TenantLimits(4, Budget(tokens=9))}, 3, {"age": 2.0}),
    )
    control(history, subjects.kind("memo", 1), RegisteredKind("memo", 1, msgspec.Raw(MEMO)))
    control(history, subjects.kind("memo", 3), RegisteredKind("memo", 3, msgspec.Raw(MEMO)))
    control(history, subjects.contract("reviewer"), RegisteredRole("reviewer", ROLE))
    control(history, subjects.contract("planner"), RegisteredRole("planner", ROLE))
    control(history, subjects.SNAPSHOT, Snapshot(contents.NOTHING, 3, "op-3", "f" * 64))
    control(history, subjects.INTAKE, Intake(False, 81, 100))
    part = History("t-2", stream=history.stream)
    part.lead()
    part.spec(contents.spec("a part", key="once"), parent="t-1")
    control(history, subjects.INTAKE, Intake(True, 60, 100))
    part.perform("look", "researcher", ("fact", contents.finding()))
    part.final(Final("dead", "it takes its workers with it", usage=Usage(5)))
    part.say("drop")
    after = History("t-3", stream=history.stream)
    after.lead()
    after.spec(contents.spec("after it", after=("t-2",)))
    task = history.board.tasks["t-2"]
    stone = Tombstone(
        "dead", "it takes its workers with it", task.spec_seq, task.final_seq, "default", "once", contents.NOTHING,
        contents.NOTHING, task.usage, 6, True,
    )  # fmt: skip
    for fence in (1, part.fence, part.fence):
        part.write(subjects.buried("t-2"), stone, "task.tombstone", fence=fence, parent="t-1")
    part.write(subjects.spec("t-2"), stone, "task.tombstone", parent="t-1")
    part.claim("look")
    part.spec(contents.spec("too early"))
    after.final(Final("dependency_failed", "t-2 ended dead"))
    control(history, subjects.LIMITS, BoardLimits())
    history.order("look", "researcher")
    part.spec(contents.spec("the key again"))
    return history


def decide(history: History, gate: str, outcome: Outcome, *, by: tuple[str, ...] = (), **fields: Any) -> None:
    at = history.board.tasks["t-1"].gates[gate]
    body = Decision(gate, outcome, at.bound, by)
    subject = subjects.gate_decision("t-1", at.role, gate)
    history.write(subject, body, "gate.decision", **{"role": at.role, "fence": history.fence, **fields})


def grant(history: History, step: str, allotment: Allotment, **fields: Any) -> None:
    at = history.registers[step]
    subject, body = subjects.grant("t-1", at.role, step), Grant(at.fence, allotment)
    history.write(subject, body, "step.granted", **{"role": at.role, "step": step, "fence": history.fence, **fields})


def again(history: History, step: str, *, resumes: int = 0) -> None:
    at = history.registers[step]
    history.order(step, at.role, order=WorkOrder(at.reg, history.spec_seq, f"do {step}", ("patch",), resumes=resumes))


def control(history: History, subject: str, body: Any) -> None:
    kinds = {
        BoardLimits: "ctl.limits", Intake: "ctl.intake", RegisteredKind: "ctl.kind", RegisteredRole: "ctl.role",
        Snapshot: "ctl.snapshot",
    }  # fmt: skip
    history.write(subject, body, kinds[type(body)], task=None, worker="s-1")


def more(board: Board) -> dict[str, Any]:
    """What version 2 adds to the summary of a board."""
    return {
        "spent": {tenant: _plain(usage) for tenant, usage in board.spent.items()},
        "limits": _plain(board.limits),
        "intake": _plain(board.intake),
        "kinds": {kind: sorted(versions) for kind, versions in board.kinds.items()},
        "roles": sorted(board.roles),
        "tasks": {task.id: _task(task) for task in board.tasks.values()},
    }


def _task(task: Task) -> dict[str, Any]:
    return {
        "parent": task.parent, "children": task.children, "dependents": task.dependents, "tenant": task.tenant,
        "usage": _plain(task.usage), "tree_usage": _plain(task.tree_usage), "cancel": task.cancel, "facts": task.facts,
        "gates": {name: _gate(gate) for name, gate in task.gates.items()}, "deadline": task.deadline,
        "admissible": task.admissible, "dropped": task.dropped, "tombstone": _plain(task.tombstone),
        "steps": {
            step.id: [step.why, step.gate, _plain(step.granted), _plain(step.asks), _plain(step.opened)]
            for step in task.steps.values()
        },
    }  # fmt: skip


def _gate(gate: GateState) -> dict[str, Any]:
    votes = {person: vote.vote for person, vote in gate.votes.items()}
    outcome = gate.decision.outcome if gate.decision else None
    return {
        "step": gate.step,
        "role": gate.role,
        "bound": gate.bound,
        "votes": votes,
        "outcome": outcome,
        "used": gate.used,
    }


def _plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))
