"""Reflexion (Shinn et al., 2023): an attempt after one that did not count begins with a critique of that one. An
evaluator, which is the role's model with a prompt of its own, sees the task, what was done and the error.

All of it is read from this step's own subjects, so no other step's critique can appear; all of it is about attempts
that have ended, so that whoever takes the work up asks word for word the same.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kokuban.agents._asking import Asking
from kokuban.agents._data import framed
from kokuban.agents._owner import Owner
from kokuban.agents._past import head_and_tail, one_line
from kokuban.agents._prompts import prompt
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.models import ModelOverflow, Reply, Request, worst_request_tokens
from kokuban.agents.roles._shared import scope_of
from kokuban.blackboard.wire import crash_point
from kokuban.schemas import Claimed, Critique, Done, Failed, Feedback, Journal, Opens, Record, Ref, Settles, subjects

CRITIQUES_KEPT = 3
CRITIQUE_CHARS = 1_500
OUTPUT_TOKENS = 400
SHARE = 0.25
"""Of the attempt's tokens, and of its money: a critique that may need more is not written."""
ENTRIES, TRAJECTORY_CHARS, ERROR_CHARS, GOAL_CHARS = 24, 6_000, 3_000, 2_000
UNPAID = ("steps", "tokens", "budget")
SAYS_SOMETHING = ("failed", "verdict", "refused")
NOT_ITS_OWN = ("model", "bug", "budget", "in_doubt")
"""Failures of which what the attempt did is not the cause."""


async def reflect(owner: Owner, work: Work) -> tuple[str, ...]:
    """The last critiques of this step, oldest first, with one of the attempt before this work, which is asked for and
    stored where there is none yet and tokens are left. None at all for a first attempt. Raises `StepFailed`, `Fenced`,
    `BusError`; what it wrote then stands."""
    at = work.assignment
    failed = next((f for f in reversed(at.order.feedback) if f.reason in SAYS_SOMETHING), None)
    if failed is None or work.meter is None:
        return ()
    records = [(seq, r) for seq, r in await owner.records(at.register, at.journal) if r.attempt < at.begun]
    told = {f.attempt for f in at.order.feedback}
    stored = await _stored(owner, {seq for seq, record in records if record.attempt in told})
    earlier = [text for begun, text in stored if begun < at.begun]
    mine = [text for begun, text in stored if begun >= at.begun]
    subject = _subject(records, failed.attempt)
    text = mine[-1] if mine else ""
    if subject is not None:
        asking = Asking(work, await scope_of(work), prompt=prompt("reflect").version, _turn=-1)
        request = _request(work, records, failed)
        if work.tape.holds(asking.opening(request)):
            text = await _asked(asking, request)
        elif not mine and not work.tape.recorded and _affordable(work, request):
            crash_point("reflect:before")
            text = await _asked(asking, request)
            if text:
                await owner.criticise(Critique(subject, text), work.trust)
            crash_point("reflect:after")
    return tuple(part for part in (*earlier, text) if part)[-CRITIQUES_KEPT:]


async def _asked(asking: Asking, request: Request) -> str:
    """The critique, '' when the model has none or cannot take the request, or the step cannot pay for it."""
    try:
        reply = await asking.ask(request)
    except ModelOverflow:
        return ""
    except StepFailed as failed:
        if failed.why not in UNPAID:
            raise
        return ""
    return "".join(c for c in reply.content if c.isprintable() or c == "\n").strip()[:CRITIQUE_CHARS]


async def _stored(owner: Owner, about: set[int]) -> list[tuple[int, str]]:
    """This step's critiques of what these records say, oldest first, each with the attempt that wrote it. Of two about
    the same attempt, which a crash between them leaves, the last."""
    at = owner.assignment
    found: dict[str, tuple[int, str]] = {}
    for _, record in await owner.records(subjects.artifact(at.task, at.role, "critique", at.step, "*")):
        critique = msgspec.json.decode(record.body, type=Critique)
        if record.step == at.step and critique.subject.seq in about:
            found[critique.subject.digest] = record.attempt, critique.text
    return sorted(found.values())


def _subject(records: list[tuple[int, Record]], attempt: int) -> Ref | None:
    """What is judged: the first artifact that the attempt gave, or the record with which it failed. None when it is
    gone, or failed of what lay outside of it."""
    for seq, record in reversed(records):
        if record.attempt != attempt:
            continue
        if record.type == "step.done":
            first = msgspec.json.decode(record.body, type=Done).results[:1]
            return Ref(record.step or "", first[0].kind, first[0].name, first[0].digest, seq) if first else None
        if record.type == "step.failed":
            if msgspec.json.decode(record.body, type=Failed).why in NOT_ITS_OWN:
                return None
            return Ref(record.step or "", "failed", f"attempt-{attempt}", record.sha256, seq)
    return None


def _affordable(work: Work, request: Request) -> bool:
    """Whether enough is left for the critique and for the work after it."""
    given, ledger = work.assignment.order.allotment, work.ledger
    assert work.meter is not None
    tokens_in = worst_request_tokens(request)
    price = work.meter.worst(tokens_in, request.max_output_tokens)
    if given.micros is not None and (price is None or price > min(given.micros * SHARE, ledger.left_micros)):
        return False
    return given.steps > 1 and tokens_in + request.max_output_tokens <= min(given.tokens * SHARE, ledger.left_tokens)


def _request(work: Work, records: list[tuple[int, Record]], failed: Feedback) -> Request:
    at = work.assignment
    messages = prompt("reflect").fill(
        task=at.order.goal[:GOAL_CHARS],
        trajectory=framed(_trajectory(records), "what the attempt did", f"trajectory {at.step} {failed.attempt}"),
        error=framed(head_and_tail(failed.text, ERROR_CHARS), f"reason ({failed.reason})", f"error {failed.attempt}"),
    )
    return Request(messages=tuple(messages), max_output_tokens=OUTPUT_TOKENS)


def _trajectory(records: list[tuple[int, Record]]) -> str:
    """The last calls before this work and what came of them, a line each."""
    lines: list[str] = []
    opened: Opens | None = None
    for _, record in records:
        settles, opens, replaces = _calls(record)
        if settles is not None and opened is not None and settles.call == opened.call:
            line = _line(opened, settles)
            lines += [f"attempt {record.attempt}: {line}"] if line else []
            opened = None
        opened = opens if replaces else opened
    return head_and_tail("\n".join(lines[-ENTRIES:]) or "nothing that was written down", TRAJECTORY_CHARS)


def _calls(record: Record) -> tuple[Settles | None, Opens | None, bool]:
    """What a record settles, what it opens, and whether the latter counts."""
    if record.type == "step.journal":
        journal = msgspec.json.decode(record.body, type=Journal)
        return journal.settles, journal.opens, True
    if record.type in ("step.done", "step.failed"):
        return msgspec.json.decode(record.body, type=Done if record.type == "step.done" else Failed).settles, None, True
    if record.type == "step.claimed":
        return None, msgspec.json.decode(record.body, type=Claimed).opens, True
    return None, None, False


def _line(opened: Opens, settles: Settles) -> str:
    """One call in words, '' for one of which nothing is known."""
    if isinstance(settles.result, msgspec.UnsetType):
        return ""
    result: Any = msgspec.json.decode(settles.result)
    if opened.kind == "model":
        if not isinstance(result, dict) or "content" not in result:
            return ""
        reply = msgspec.convert(result, Reply)
        calls = ", ".join(call.name for call in reply.calls)
        words = one_line(reply.content) if reply.content.strip() else ""
        return f"it said: {words}" if words else f"it called {calls}" if calls else ""
    arguments = "" if isinstance(opened.arguments, msgspec.UnsetType) else one_line(bytes(opened.arguments).decode())
    said = result.get("text", result.get("report")) if isinstance(result, dict) else None
    return f"{opened.tool}({arguments}): {one_line(said if isinstance(said, str) else json.dumps(result))}"
