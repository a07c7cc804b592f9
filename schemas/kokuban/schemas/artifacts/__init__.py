"""Artifact kinds: one small file each. `kinds` maps the name on the wire to its shape."""

from __future__ import annotations

from kokuban.schemas._base import Wire
from kokuban.schemas.artifacts.critique import Critique
from kokuban.schemas.artifacts.deliverable import Deliverable, Part
from kokuban.schemas.artifacts.finding import Citation, Finding
from kokuban.schemas.artifacts.patch import FileChange, Patch
from kokuban.schemas.artifacts.plan import MAX_STEPS, Plan, PlanStep
from kokuban.schemas.artifacts.task_spec import TaskSpec
from kokuban.schemas.artifacts.verdict import CheckResult, Verdict

KINDS: dict[str, type[Wire]] = {
    "task": TaskSpec,
    "plan": Plan,
    "finding": Finding,
    "patch": Patch,
    "verdict": Verdict,
    "critique": Critique,
    "deliverable": Deliverable,
}

__all__ = [
    "KINDS",
    "MAX_STEPS",
    "CheckResult",
    "Citation",
    "Critique",
    "Deliverable",
    "FileChange",
    "Finding",
    "Part",
    "Patch",
    "Plan",
    "PlanStep",
    "TaskSpec",
    "Verdict",
]
