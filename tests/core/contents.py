"""Valid artifacts, as small as they can be, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from kokuban.schemas import (
    CheckResult,
    Citation,
    Critique,
    Deliverable,
    FileChange,
    Finding,
    Part,
    Patch,
    Plan,
    PlanStep,
    Ref,
    TaskSpec,
    Verdict,
    digest,
)

NOTHING = digest(b"nothing")
WORKSPACE = digest(b"workspace")


def spec(goal: str = "mend it", **fields: object) -> TaskSpec:
    """A task with one check; without sources unless given."""
    return TaskSpec(**{"goal": goal, "workspace": WORKSPACE, "checks": ("true",), **fields})  # type: ignore[arg-type]


def plan(*steps: tuple[str, str, tuple[str, ...]]) -> Plan:
    """A plan of (id, role, needs)."""
    return Plan(tuple(PlanStep(name, role, f"do {name}", needs) for name, role, needs in steps))


def finding(statement: str = "it is so") -> Finding:
    return Finding(statement, (Citation("notes.md", 1, 1, "so it is", digest(b"so it is")),))


def patch(text: str = "new", *, onto: Sequence[str] = ()) -> Patch:
    """A patch whose identity is its text and what it builds on."""
    after = digest(text.encode())
    change = FileChange("a.txt", "add", after=after, text=text)
    return Patch(digest("".join(onto).encode()), after, (change,), f"+{text}", tuple(onto), "adds a file")


def verdict(about: Ref, passed: bool = True, **fields: object) -> Verdict:
    return Verdict(about, passed, "whole", True, NOTHING, (CheckResult("true", 0 if passed else 1),), **fields)  # type: ignore[arg-type]


def critique(about: Ref, text: str = "look at the first line") -> Critique:
    return Critique(about, text)


def deliverable(cites: Sequence[Ref], report: str = "# Report") -> Deliverable:
    parts = tuple(Part("a.txt", (ref,)) for ref in cites if ref.kind == "patch")
    change = FileChange("a.txt", "add", after=NOTHING, text="")
    return Deliverable(WORKSPACE, NOTHING, (change,), "+", report, parts, tuple(cites), True)
