"""Events and outcomes as text for people, and as JSON. What agents wrote is data: cleaned, never interpreted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kokuban.console._terminal import Paint, clean, one_line

if TYPE_CHECKING:
    from kokuban.blackboard import Client, Event, Outcome
    from kokuban.schemas import Gate, Ref, Verdict

LIST_CHARS = 600

_COLOURS = {
    "artifact": "green", "ended": "bold", "refused": "yellow", "failed": "red", "released": "yellow",
    "revoked": "yellow", "ignored": "yellow", "waiting": "yellow", "gate": "yellow", "cancel": "yellow",
    "intake": "yellow",
}  # fmt: skip
_ASKING = ("waiting", "gate")


def event_line(event: Event, paint: Paint) -> str:
    """Time, sequence, task, step, what happened, and in a few words what it is about."""
    where = f"{event.role}/{event.step}" if event.step else event.role
    if event.attempt > 1:
        where += f"#{event.attempt}"
    words = [paint(_clock(event.time), "dim"), paint(f"#{event.seq}", "dim"), one_line(event.task), one_line(where)]
    words.append(paint(event.event, _COLOURS.get(event.event, "")))
    if event.person:
        words.append(one_line(event.person))
    if event.gate:
        words.append(one_line(event.gate))
    if event.kind:
        words += [paint(one_line(f"{event.kind}/{event.name}"), "cyan"), paint(short(event.digest), "dim")]
        words += [paint(event.trust, "yellow")] * (event.trust == "untrusted")
    words.append(one_line(_asked(event), 1_200) if event.event in _ASKING else one_line(summary(event)))
    return "  ".join(word for word in words if word)


def _asked(event: Event) -> str:
    """What a person is asked to decide: the question, the call with its arguments or the artifact, by whom, until when,
    and what to type."""
    try:
        gate = event.asks()
    except ValueError:
        return event.text
    way = "kokuban answer" if gate.about == "question" else "kokuban approvals show"
    what = "" if gate.about == "question" else f"{subject_of(gate, 400)}; "
    until = f"until {instant(event.until)}; " if event.until else ""
    by = f"asked by {event.worker}; " if event.worker else ""
    return f"{one_line(gate.asks, 300)}: {what}{by}{until}{way} {event.task}/{gate.id}"


def subject_of(gate: Gate, most: int = LIST_CHARS) -> str:
    """What exactly is to be decided, in one line of about `most` characters: the call with its arguments, or the
    artifact."""
    import msgspec

    if gate.about == "call":
        arguments = "" if isinstance(gate.arguments, msgspec.UnsetType) else bytes(gate.arguments).decode()
        return f"call {one_line(gate.tool, 64)}({one_line(arguments, most)})"
    if gate.subject is not None:
        ref = gate.subject
        return f"artifact {ref.kind}/{ref.name} {short(ref.digest)} of step {ref.step}"
    return "question"


def instant(seconds: float) -> str:
    """A local time with its date."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def short(digest: str) -> str:
    """The first digits of a digest."""
    return one_line(digest.removeprefix("sha256:"), 200)[:8]


def summary(event: Event) -> str:
    """What an event is about. Never raises: an artifact that cannot be read has no summary."""
    if not event.kind:
        state, _, reason = event.text.partition(": ")
        return f"{state}: {reason_of(state, reason)}" if event.event == "ended" and reason else event.text
    try:
        return artifact_summary(event.artifact())
    except Exception:
        return ""


def artifact_summary(artifact: Any) -> str:
    """What an artifact is about, '' for one of a user's own kind."""
    from kokuban.schemas import Critique, Deliverable, Finding, Patch, Plan, Verdict

    match artifact:
        case Plan():
            steps = [f"{s.id} ({s.role})" + (f" after {', '.join(s.needs)}" if s.needs else "") for s in artifact.steps]
            return f"{count(len(steps), 'step')}: {'; '.join(steps)}"
        case Finding():
            return f"{artifact.statement} [{', '.join(dict.fromkeys(c.source for c in artifact.citations))}]"
        case Patch():
            paths = ", ".join(change.path for change in artifact.changes[:5])
            return f"{count(len(artifact.changes), 'file')}: {paths}" + (
                f": {artifact.summary}" * bool(artifact.summary)
            )
        case Verdict():
            judged = f"{artifact.subject.kind}/{artifact.subject.name}"
            end = "passed" if artifact.passed else "failed"
            checks = f", {count(len(artifact.checks), 'check')}" if artifact.checks else ""
            reasons = f": {'; '.join(artifact.reasons)}" if artifact.reasons else ""
            return f"{judged} {end} ({artifact.scope}{checks}){reasons}"
        case Critique():
            return artifact.text
        case Deliverable():
            checked = "checked" if artifact.checked else "unchecked"
            return f"{count(len(artifact.changes), 'changed file')}, {checked}"
    return ""


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


async def verdict_of(board: Client, outcome: Outcome) -> Verdict | None:
    """The verdict on the result of a task that is done, None for any other."""
    from kokuban.schemas import Verdict

    final = (await board.status(outcome.task)).final
    if final is None or final.verdict is None:
        return None
    found = await board.artifact(final.verdict)
    return found if isinstance(found, Verdict) else None


def reason_of(state: str, reason: str) -> str:
    """Why a task ended, in one line for behind its state: some reasons begin with the state as well."""
    return one_line(reason.removeprefix(f"{state}: "), 2_000)


def outcome_lines(outcome: Outcome, verdict: Verdict | None, paint: Paint) -> Iterator[str]:
    """A task's end for people."""
    done = outcome.state == "done"
    yield f"{paint(outcome.state, 'green' if done else 'red')}: {reason_of(outcome.state, outcome.reason)}"
    if outcome.deliverable is not None:
        if not outcome.checked:
            yield paint("unchecked: no check was given, so nothing is proven", "yellow")
        sources = {part.path: part.sources for part in outcome.deliverable.manifest}
        yield paint("changed files:", "bold")
        for change in outcome.deliverable.changes:
            names = ", ".join(f"{ref.kind}/{ref.name} {short(ref.digest)}" for ref in sources.get(change.path, ()))
            yield f"  {change.op:<7}{one_line(change.path, 1_024)}  ← {names or 'no artifact'}"
        if verdict is not None and verdict.checks:
            yield paint("checks on the merged files:", "bold")
            for check in verdict.checks:
                end = "passed" if check.exit_code == 0 and not check.timed_out else f"exit code {check.exit_code}"
                yield f"  {one_line(check.command)}  {'timed out' if check.timed_out else end}"
        yield paint("report:", "bold")
        yield from (f"  {line}" for line in clean(outcome.deliverable.report).rstrip().split("\n"))
    for label, steps in (("never done", outcome.blocked), ("not heard to have stopped", outcome.unconfirmed)):
        if steps:
            yield f"{label}: {one_line(', '.join(steps), 2_000)}"
    usage = outcome.usage
    yield paint(
        f"used: {usage.input_tokens} input and {usage.output_tokens} output tokens"
        f"{' (estimated in part)' if usage.estimated else ''}, {count(usage.model_calls, 'model call')}, "
        f"{count(usage.tool_calls, 'tool call')}" + (f", {usage.micros / 1_000_000:.6f} USD" if usage.micros else ""),
        "dim",
    )


def outcome_json(outcome: Outcome, verdict: Verdict | None) -> dict[str, Any]:
    """A task's end for programs. `parts` say which artifacts each changed file came from."""
    found: dict[str, Any] = {
        "task": outcome.task, "state": outcome.state, "reason": outcome.reason, "checked": outcome.checked,
        "usage": usage_json(outcome.usage), "blocked": outcome.blocked, "unconfirmed": outcome.unconfirmed,
    }  # fmt: skip
    if outcome.deliverable is not None:
        deliverable = outcome.deliverable
        found |= {
            "base": deliverable.base, "tree": deliverable.tree, "report": deliverable.report, "diff": deliverable.diff,
            "changes": [{"path": c.path, "op": c.op, "after": c.after} for c in deliverable.changes],
            "parts": [{"path": p.path, "sources": [ref_json(r) for r in p.sources]} for p in deliverable.manifest],
            "cites": [ref_json(ref) for ref in deliverable.cites],
        }  # fmt: skip
    if verdict is not None:
        found["checks"] = [
            {"command": c.command, "exit_code": c.exit_code, "timed_out": c.timed_out} for c in verdict.checks
        ]
    return found


def ref_json(ref: Ref) -> dict[str, Any]:
    """An artifact's identity for programs."""
    return {"step": ref.step, "kind": ref.kind, "name": ref.name, "digest": ref.digest, "seq": ref.seq}


def usage_json(usage: Any) -> dict[str, Any]:
    """What something cost, for programs."""
    return {
        "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls, "estimated": usage.estimated, "micros": usage.micros, "seconds": usage.seconds,
    }  # fmt: skip
