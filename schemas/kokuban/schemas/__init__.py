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
from kokuban.schemas.envelope import TRUST, VERSION, BadRecord, Record, Trust, least_trusted, open_record, seal
from kokuban.schemas.gates import (
    Control,
    Decision,
    Gate,
    GateRequest,
    Vote,
    Waiting,
)
from kokuban.schemas.records import (
    Allotment,
    Budget,
    Claimed,
    Decided,
    Done,
    Ending,
    Failed,
    Feedback,
    Final,
    Grant,
    Journal,
    KindRef,
    Opens,
    Ref,
    Released,
    Result,
    Revision,
    Revoked,
    Settles,
    Teammate,
    Usage,
    WorkOrder,
)
from kokuban.schemas.steering import (
    BoardLimits,
    Epoch,
    Intake,
    Lease,
    RegisteredKind,
    RegisteredRole,
    Snapshot,
    TenantLimits,
    Tombstone,
)
from kokuban.schemas.subjects import InvalidName

__all__ = [
    "KINDS", "MAX_STEPS", "TRUST", "VERSION", "Allotment", "BadRecord", "BoardLimits", "Budget", "CheckResult",
    "Citation", "Claimed", "Control", "Critique", "Decided", "Decision", "Deliverable", "Done", "Ending", "Epoch",
    "Failed", "Feedback", "FileChange", "Final", "Finding", "Gate", "GateRequest", "Grant", "Intake",
    "InvalidName", "Journal", "KindRef", "Lease", "Opens", "Part", "Patch", "Plan", "PlanStep", "Record", "Ref",
    "RegisteredKind", "RegisteredRole", "Released", "Result", "Revision", "Revoked", "Settles", "Snapshot",
    "TaskSpec", "Teammate", "TenantLimits", "Tombstone", "Trust", "Usage", "Verdict", "Vote", "Waiting", "Wire",
    "WorkOrder", "digest", "encode", "least_trusted", "open_record", "seal", "subjects",
]  # fmt: skip
