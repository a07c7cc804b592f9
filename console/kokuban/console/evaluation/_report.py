"""What results say: rates with their uncertainty, costs, what changed, and whether that is good enough."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kokuban.console.evaluation._results import Result

_Z = 1.96
_GATE = re.compile(r"(?:(?P<arm>[a-z-]+)\.)?pass\s*>=\s*(?P<least>0|1|0?\.\d+|1\.0+)\Z")


class Gate(NamedTuple):
    """What must hold: a least pass rate of an arm, or (least None) that no task does worse than in the run compared."""

    arm: str
    least: float | None


def gates_of(texts: Sequence[str]) -> list[Gate]:
    """`pass>=0.6`, `single.pass>=0.2`, `no-regression`. Raises `ValueError` for anything else."""
    found = []
    for text in texts:
        match = _GATE.match(text)
        if text == "no-regression":
            found.append(Gate("crew", None))
        elif match is not None:
            found.append(Gate(match["arm"] or "crew", float(match["least"])))
        else:
            raise ValueError(f"gate: {text!r} is neither pass>=RATE (or ARM.pass>=RATE) nor no-regression")
    return found


def wilson(passed: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson, 1927); all of 0 to 1 for none."""
    if of == 0:
        return 0.0, 1.0
    rate = passed / of
    scale = 1 + _Z**2 / of
    middle = (rate + _Z**2 / (2 * of)) / scale
    half = _Z / scale * math.sqrt(rate * (1 - rate) / of + _Z**2 / (4 * of**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def summary(results: Iterable[Result]) -> dict[str, Any]:
    """By arm, and there by kind of task: runs, passed, rate, interval, and the mean costs of a run."""
    arms: dict[str, list[Result]] = {}
    for result in results:
        arms.setdefault(result.arm, []).append(result)
    return {
        arm: _of(found)
        | {"kinds": {k: _of([r for r in found if r.kind == k]) for k in sorted({r.kind for r in found})}}
        for arm, found in arms.items()
    }


def _of(results: Sequence[Result]) -> dict[str, Any]:
    n, passed = len(results), sum(r.passed for r in results)
    priced = [r.micros for r in results if r.micros is not None]
    low, high = wilson(passed, n)
    return {
        "runs": n, "passed": passed, "rate": passed / n, "low": round(low, 3), "high": round(high, 3),
        "tokens": round(sum(r.tokens for r in results) / n), "calls": round(sum(r.calls for r in results) / n, 1),
        "steps": round(sum(r.steps for r in results) / n, 1),
        "seconds": round(sum(r.seconds for r in results) / n, 1),
        "dollars": round(sum(priced) / len(priced) / 1e6, 6) if len(priced) == n else None,
        "limited": round(sum(r.limited for r in results) / n, 3),
    }  # fmt: skip


def changed(now: Iterable[Result], before: Iterable[Result], arm: str = "crew") -> tuple[list[str], list[str]]:
    """Tasks that do better than in the earlier run, and those that do worse: by their pass rates over all repeats,
    where both runs did them."""
    new, old = _rates(now, arm), _rates(before, arm)
    both = [task for task in new if task in old]
    return [t for t in both if new[t] > old[t]], [t for t in both if new[t] < old[t]]


def _rates(results: Iterable[Result], arm: str) -> dict[str, float]:
    runs: dict[str, list[bool]] = {}
    for result in results:
        if result.arm == arm:
            runs.setdefault(result.task, []).append(result.passed)
    return {task: sum(passed) / len(passed) for task, passed in runs.items()}


def table(said: dict[str, Any]) -> list[str]:
    """The summary as lines of a Markdown table."""
    lines = [
        "| arm | tasks | passed | rate (95 %) | tokens | calls | steps | seconds | $ | limited |",
        "|" + "---|" * 10,
    ]
    for arm, of in said.items():
        lines.append(_row(arm, "all", of))
        lines += [_row("", kind, row) for kind, row in of["kinds"].items()]
    return lines


def _row(arm: str, kind: str, of: dict[str, Any]) -> str:
    dollars = "-" if of["dollars"] is None else f"{of['dollars']:g}"
    return (
        f"| {arm} | {kind} | {of['passed']} of {of['runs']} | {of['rate']:.0%} ({of['low']:.0%} to {of['high']:.0%}) "
        f"| {of['tokens']} | {of['calls']} | {of['steps']} | {of['seconds']} | {dollars} | {of['limited']:.0%} |"
    )
