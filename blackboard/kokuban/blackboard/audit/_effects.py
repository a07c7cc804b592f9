"""Effects in the world: the journal's openings joined, by key, with what the other side wrote down itself. A key names
the same effect in every attempt.

A line of that log is `{"key", "time", "applied", "honours"}`: a request with this idempotency key arrived at that time
(in seconds since 1970, by the machine's clock); whether it was applied; whether that side honours keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._state import Call, History, Step, Task


def joined(h: History, log: Iterable[dict[str, Any]], *, clocks_apart_seconds: float = 1.0) -> None:
    """Check the log of an endpoint against the journal."""
    calls: dict[str, list[tuple[Task, Step, Call]]] = {}
    for entry in h.effects:
        calls.setdefault(entry[2].key, []).append(entry)
    requests: dict[str, list[dict[str, Any]]] = {}
    for line in log:
        requests.setdefault(str(line["key"]), []).append(line)
    for key, lines in requests.items():
        h.count("effects requested" if len(lines) == 1 else "effects requested more than once")
        _one(h, key, lines, calls.get(key, []), clocks_apart_seconds)
    for key, entries in calls.items():
        if any(_succeeded(c) for _, _, c in entries) and key not in requests:
            h.wrong("effect-lost", entries[-1][2].seq, f"{key}: settled as done, and the other side never saw it")


def _one(
    h: History, key: str, lines: list[dict[str, Any]], entries: list[tuple[Task, Step, Call]], apart: float
) -> None:
    applied = [line for line in lines if line["applied"]]
    honours = bool(lines[0]["honours"])
    if not entries:
        h.wrong("effect-journalled", 0, f"{key}: the other side saw it, and no journal tells of it")
        return
    first = min(c.time for _, _, c in entries)
    early = [line for line in lines if line["time"] < first - apart]
    if early:
        text = f"requested {first - early[0]['time']:.1f} s before it was journalled"
        h.wrong("effect-journalled", entries[0][2].seq, f"{key}: {text}")
    # Where no keys are honoured, who knows how the call before it ended may make it anew: an opening, one request.
    most = 1 if honours else len({(t.id, s.id, c.begun, c.number) for t, s, c in entries})
    if len(applied) > most:
        h.wrong("effect-once", entries[-1][2].seq, f"{key}: applied {len(applied)} times")
    if not honours and len(lines) > most:
        h.wrong("effect-once", entries[-1][2].seq, f"{key}: sent {len(lines)} times to a side that honours no keys")
    settled = any(_succeeded(c) for _, _, c in entries)
    if settled and not applied:
        h.wrong("effect-lost", entries[-1][2].seq, f"{key}: settled as done, and the other side did not apply it")
    unknown = [(t, c) for t, _, c in entries if not c.settled or (applied and not settled)]
    if not honours and unknown:
        _told(h, key, *unknown[-1])
    if len(applied) == 1 and settled:
        h.count("effects exactly once")


def _told(h: History, key: str, task: Task, call: Call) -> None:
    """An effect of unknown outcome is in doubt, and its task says so: it does not end done over it."""
    h.count("effects in doubt")
    if task.final is not None and task.final.body.get("state") == "done":
        h.wrong("in-doubt", call.seq, f"{key}: its outcome was never known, and task {task.id} ended done over it")


def _succeeded(call: Call) -> bool:
    return call.told and not (isinstance(call.result, dict) and call.result.get("ok") is False)
