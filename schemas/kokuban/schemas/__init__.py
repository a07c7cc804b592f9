"""Shapes of every record and artifact, role contracts, and the subject grammar. Reads and writes nothing else.

Role contracts live in `kokuban.schemas.contracts` (which needs pydantic), checking in `kokuban.schemas.kinds` (which
needs jsonschema-rs): import them where you use them.
"""

from kokuban.schemas import subjects
from kokuban.schemas._base import Wire, digest, encode
from kokuban.schemas.artifacts import (
    KINDS,
    MAX_STEPS,
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
    TaskSpec,
    Verdict,
)
from kokuban.schemas.envelope import VERSION, BadRecord, Record, open_record, seal
from kokuban.schemas.records import (
    Allotment,
    Claimed,
    Done,
    Epoch,
    Failed,
    Feedback,
    Final,
    Journal,
    Lease,
    Opens,
    Ref,
    Released,
    Result,
    Revoked,
    Settles,
    Teammate,
    Usage,
    WorkOrder,
)
from kokuban.schemas.subjects import InvalidName

__all__ = [
    "KINDS", "MAX_STEPS", "VERSION", "Allotment", "BadRecord", "CheckResult", "Citation", "Claimed", "Critique",
    "Deliverable", "Done", "Epoch", "Failed", "Feedback", "FileChange", "Final", "Finding", "InvalidName", "Journal",
    "Lease", "Opens", "Part", "Patch", "Plan", "PlanStep", "Record", "Ref", "Released", "Result", "Revoked", "Settles",
    "TaskSpec", "Teammate", "Usage", "Verdict", "Wire", "WorkOrder", "digest", "encode", "open_record", "seal",
    "subjects",
]  # fmt: skip
