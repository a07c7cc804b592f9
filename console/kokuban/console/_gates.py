"""Gates as text for people, with all that is needed to decide, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kokuban.console._live import artifact_summary, instant, ref_json, subject_of
from kokuban.console._terminal import Paint, clean, one_line

if TYPE_CHECKING:
    from kokuban.blackboard import Approval

SHOW_CHARS = 20_000


def gate_lines(approval: Approval, paint: Paint) -> Iterator[str]:
    """A gate in a few lines: where, what, since and until when, who has voted, and what to type."""
    gate, name = approval.gate, f"{approval.task}/{approval.id}"
    yield f"{paint(name, 'bold')}  {paint(_standing(approval), 'yellow' if approval.decision is None else '')}"
    yield f"  asks: {one_line(gate.asks, 1_000)}"
    if gate.about != "question":
        yield f"  what: {paint(subject_of(gate), 'cyan')}"
    asker = f"{approval.role}/{approval.step}" if approval.step else "supervisor"
    worker = f" on {one_line(approval.worker)}" if approval.worker else ""
    until = instant(approval.until) if approval.until is not None else "it never expires"
    yield f"  asked by: {asker}{worker}; since {instant(approval.since)}; until: {until}"
    if approval.votes:
        said = (f"{who}: {v.vote}" + (f" ({one_line(v.text, 200)})" if v.text else "") for who, v in
                approval.votes.items())  # fmt: skip
        yield f"  votes: {'; '.join(said)}"
    yield f"  bound to: {approval.bound}"
    if approval.decision is None:
        yield f"  {paint(_way(approval), 'dim')}"


def _standing(approval: Approval) -> str:
    if approval.decision is not None:
        by = f" by {', '.join(approval.decision.by)}" if approval.decision.by else ""
        text = f": {one_line(approval.decision.text, 300)}" if approval.decision.text else ""
        return f"{approval.decision.outcome}{by}{text}"
    if approval.gate.about == "question":
        return "waits for an answer"
    agreed = sum(vote.vote == "approve" for vote in approval.votes.values())
    return f"waits: {agreed} of {approval.gate.need} approvals"


def _way(approval: Approval) -> str:
    name = f"{approval.task}/{approval.id}"
    if approval.gate.about == "question":
        return f"kokuban answer {name} 'TEXT'"
    return f"kokuban approvals approve {name}    or: kokuban approvals deny {name} --reason 'WHY'"


def whole_gate(approval: Approval, content: Any, paint: Paint) -> Iterator[str]:
    """A gate with the whole call, or with the artifact that it is about (`content`, None when it cannot be read)."""
    import msgspec

    yield from gate_lines(approval, paint)
    gate = approval.gate
    if not isinstance(gate.arguments, msgspec.UnsetType):
        yield from _block("arguments", msgspec.json.format(bytes(gate.arguments), indent=2).decode())
    if content is not None:
        summary = artifact_summary(content)
        if summary:
            yield f"  summary: {one_line(summary, 2_000)}"
        diff = getattr(content, "diff", None)
        yield from _block(
            "diff" if diff else "content", diff or msgspec.json.format(msgspec.json.encode(content)).decode()
        )
    for name in ("hash", "tool_version", "policy", "key"):
        if value := getattr(gate, name):
            yield f"  {name.replace('_', ' ')}: {one_line(value, 200)}"


def _block(title: str, text: str) -> Iterator[str]:
    shown = clean(text[:SHOW_CHARS]).rstrip()
    yield f"  {title}:"
    yield from (f"    {line}" for line in shown.split("\n"))
    if len(text) > SHOW_CHARS:
        yield f"    … ({len(text) - SHOW_CHARS:,} more characters; --json shows all of it)"


def gate_json(approval: Approval) -> dict[str, Any]:
    """A gate for programs, with all that it is bound to."""
    import msgspec

    gate = approval.gate
    return {
        "task": approval.task, "gate": gate.id, "about": gate.about, "asks": gate.asks, "tool": gate.tool,
        "arguments": None if isinstance(gate.arguments, msgspec.UnsetType) else gate.arguments,
        "subject": ref_json(gate.subject) if gate.subject else None, "need": gate.need, "bound": approval.bound,
        "hash": gate.hash, "tool_version": gate.tool_version, "policy": gate.policy,
        "role": approval.role, "step": approval.step, "worker": approval.worker, "since": approval.since,
        "until": approval.until,
        "votes": {who: {"vote": vote.vote, "text": vote.text} for who, vote in approval.votes.items()},
        "decision": None if approval.decision is None else {
            "outcome": approval.decision.outcome, "by": approval.decision.by, "text": approval.decision.text,
        },
    }  # fmt: skip
