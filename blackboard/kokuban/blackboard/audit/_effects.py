"""Effects in the world: the journal's openings joined, by key, with what the other side wrote down itself.

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
        if any(c.settled and _succeeded(c) for _, _, c in entries) and key not in requests:
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
    if len(applied) > 1:
        h.wrong("effect-once", entries[-1][2].seq, f"{key}: applied {len(applied)} times")
    if not honours and len(lines) > 1:
        h.wrong("effect-once", entries[-1][2].seq, f"{key}: sent {len(lines)} times to a side that honours no keys")
    settled = any(c.settled and _succeeded(c) for _, _, c in entries)
    if settled and not applied:
        h.wrong("effect-lost", entries[-1][2].seq, f"{key}: settled as done, and the other side did not apply it")
    if not honours and not settled:
        _told(h, key, entries)
    if len(applied) == 1 and settled:
        h.count("effects exactly once")


def _told(h: History, key: str, entries: list[tuple[Task, Step, Call]]) -> None:
    """An effect of unknown outcome is in doubt, and its task says so: it does not end done by that very work."""
    task, step, call = entries[-1]
    h.count("effects in doubt")
    if step.status == "done" and step.begun == call.begun:
        h.wrong("in-doubt", call.seq, f"{key}: its outcome was never known, and step {task.id}/{step.id} is done by it")


def _succeeded(call: Call) -> bool:
    return not (isinstance(call.result, dict) and call.result.get("ok") is False)
