"""Events, tasks and outcomes as text for people, and as JSON. What agents wrote is data: cleaned, never interpreted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kokuban.console._terminal import Paint, clean, one_line

if TYPE_CHECKING:
    from kokuban.blackboard import Client, Event, Outcome
    from kokuban.blackboard.core import Step, Task
    from kokuban.schemas import Ref, Verdict

_COLOURS = {
    "artifact": "green", "ended": "bold", "refused": "yellow", "failed": "red", "released": "yellow",
    "revoked": "yellow", "ignored": "yellow",
}  # fmt: skip


def event_line(event: Event, paint: Paint) -> str:
    """Time, sequence, task, step, what happened, and in a few words what it is about."""
    where = f"{event.role}/{event.step}" if event.step else event.role
    if event.attempt > 1:
        where += f"#{event.attempt}"
    words = [paint(_clock(event.time), "dim"), paint(f"#{event.seq}", "dim"), one_line(event.task), one_line(where)]
    words.append(paint(event.event, _COLOURS.get(event.event, "")))
    if event.kind:
        words += [paint(one_line(f"{event.kind}/{event.name}"), "cyan"), paint(_short(event.digest), "dim")]
    words.append(one_line(summary(event)))
    return "  ".join(word for word in words if word)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _short(digest: str) -> str:
    return one_line(digest.removeprefix("sha256:"), 200)[:8]


def summary(event: Event) -> str:
    """What an event is about. Never raises: an artifact that cannot be read has no summary."""
    if not event.kind:
        return event.text
    try:
        return _artifact_summary(event.artifact())
    except Exception:
        return ""


def _artifact_summary(artifact: Any) -> str:
    from kokuban.schemas import Critique, Deliverable, Finding, Patch, Plan, Verdict

    match artifact:
        case Plan():
            steps = [f"{s.id} ({s.role})" + (f" after {', '.join(s.needs)}" if s.needs else "") for s in artifact.steps]
            return f"{_count(len(steps), 'step')}: {'; '.join(steps)}"
        case Finding():
            return f"{artifact.statement} [{', '.join(dict.fromkeys(c.source for c in artifact.citations))}]"
        case Patch():
            paths = ", ".join(change.path for change in artifact.changes[:5])
            return f"{_count(len(artifact.changes), 'file')}: {paths}" + (
                f": {artifact.summary}" * bool(artifact.summary)
            )
        case Verdict():
            judged = f"{artifact.subject.kind}/{artifact.subject.name}"
            end = "passed" if artifact.passed else "failed"
            checks = f", {_count(len(artifact.checks), 'check')}" if artifact.checks else ""
            reasons = f": {'; '.join(artifact.reasons)}" if artifact.reasons else ""
            return f"{judged} {end} ({artifact.scope}{checks}){reasons}"
        case Critique():
            return artifact.text
        case Deliverable():
            checked = "checked" if artifact.checked else "unchecked"
            return f"{_count(len(artifact.changes), 'changed file')}, {checked}"
    return ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


async def verdict_of(board: Client, outcome: Outcome) -> Verdict | None:
    """The verdict on the result of a task that is done, None for any other."""
    from kokuban.schemas import Verdict

    final = (await board.status(outcome.task)).final
    if final is None or final.verdict is None:
        return None
    found = await board.artifact(final.verdict)
    return found if isinstance(found, Verdict) else None


def outcome_lines(outcome: Outcome, verdict: Verdict | None, paint: Paint) -> Iterator[str]:
    """A task's end for people."""
    done = outcome.state == "done"
    yield f"{paint(outcome.state, 'green' if done else 'red')}: {one_line(outcome.reason, 2_000)}"
    if outcome.deliverable is not None:
        if not outcome.checked:
            yield paint("unchecked: no check was given, so nothing is proven", "yellow")
        sources = {part.path: part.sources for part in outcome.deliverable.manifest}
        yield paint("changed files:", "bold")
        for change in outcome.deliverable.changes:
            names = ", ".join(f"{ref.kind}/{ref.name} {_short(ref.digest)}" for ref in sources.get(change.path, ()))
            yield f"  {change.op:<7}{one_line(change.path, 1_024)}  ← {names or 'no artifact'}"
        if verdict is not None and verdict.checks:
            yield paint("checks on the merged files:", "bold")
            for check in verdict.checks:
                end = "passed" if check.exit_code == 0 and not check.timed_out else f"exit code {check.exit_code}"
                yield f"  {one_line(check.command)}  {'timed out' if check.timed_out else end}"
        yield paint("report:", "bold")
        yield from (f"  {line}" for line in clean(outcome.deliverable.report).rstrip().split("\n"))
    usage = outcome.usage
    yield paint(
        f"used: {usage.input_tokens} input and {usage.output_tokens} output tokens"
        f"{' (estimated in part)' if usage.estimated else ''}, {_count(usage.model_calls, 'model call')}, "
        f"{_count(usage.tool_calls, 'tool call')}",
        "dim",
    )


def outcome_json(outcome: Outcome, verdict: Verdict | None) -> dict[str, Any]:
    """A task's end for programs. `parts` say which artifacts each changed file came from."""
    found: dict[str, Any] = {
        "task": outcome.task, "state": outcome.state, "reason": outcome.reason, "checked": outcome.checked,
        "usage": _usage(outcome.usage),
    }  # fmt: skip
    if outcome.deliverable is not None:
        deliverable = outcome.deliverable
        found |= {
            "base": deliverable.base, "tree": deliverable.tree, "report": deliverable.report, "diff": deliverable.diff,
            "changes": [{"path": c.path, "op": c.op, "after": c.after} for c in deliverable.changes],
            "parts": [{"path": p.path, "sources": [_ref(r) for r in p.sources]} for p in deliverable.manifest],
            "cites": [_ref(ref) for ref in deliverable.cites],
        }  # fmt: skip
    if verdict is not None:
        found["checks"] = [
            {"command": c.command, "exit_code": c.exit_code, "timed_out": c.timed_out} for c in verdict.checks
        ]
    return found


def _ref(ref: Ref) -> dict[str, Any]:
    return {"step": ref.step, "kind": ref.kind, "name": ref.name, "digest": ref.digest, "seq": ref.seq}


def _usage(usage: Any) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls, "estimated": usage.estimated,
    }  # fmt: skip


def state_of(task: Task) -> str:
    """`done`, `failed`, or `open` while it has not ended."""
    return task.final.state if task.final else "open"


def task_line(task: Task, paint: Paint) -> str:
    """A task in one line: id, state, how many steps are done, tokens, goal."""
    state = state_of(task)
    done = sum(step.status == "done" for step in task.steps.values())
    colour = {"done": "green", "failed": "red"}.get(state, "yellow")
    steps = f"{done}/{_count(len(task.steps), 'step')}"
    spent = f"{task.usage.tokens:>7} tokens"
    return f"{task.id}  {paint(f'{state:<6}', colour)}  {steps:<10}  {spent}  {one_line(task.spec.goal, 80)}"


def task_lines(task: Task, paint: Paint) -> Iterator[str]:
    """A task with its steps and artifacts."""
    yield task_line(task, paint)
    for step in task.steps.values():
        where = f"{step.role}/{step.id}" + (f"#{step.attempt}" if step.attempt > 1 else "")
        worker = f"  {one_line(step.worker)}" if step.status == "claimed" else ""
        reasons = f"  {one_line('; '.join(step.reasons))}" if step.reasons and step.status != "done" else ""
        yield f"  {where:<28}  {step.status}{worker}{reasons}"
    for artifact in task.artifacts.values():
        ref = artifact.ref
        yield f"  {paint(f'{ref.kind}/{ref.name}', 'cyan')}  {_short(ref.digest)}  #{ref.seq}"
    if task.final is not None:
        yield f"  {paint(task.final.state, 'bold')}: {one_line(task.final.reason, 2_000)}"


def task_json(task: Task, *, whole: bool) -> dict[str, Any]:
    """A task for programs; with `whole` also its steps and artifacts."""
    found: dict[str, Any] = {
        "task": task.id, "state": state_of(task), "goal": task.spec.goal, "submitted": task.time, "seq": task.last_seq,
        "checks": task.spec.checks, "usage": _usage(task.usage),
    }  # fmt: skip
    if task.final is not None:
        found |= {"reason": task.final.reason, "checked": task.final.checked}
    if whole:
        found["steps"] = [_step_json(step) for step in task.steps.values()]
        found["artifacts"] = [
            _ref(a.ref) | {"role": a.role, "attempt": a.attempt, "derived_from": a.derived_from}
            for a in task.artifacts.values()
        ]
    return found


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "step": step.id, "role": step.role, "status": step.status, "attempt": step.attempt, "worker": step.worker,
        "fence": step.fence, "reasons": step.reasons, "usage": _usage(step.usage),
    }  # fmt: skip
