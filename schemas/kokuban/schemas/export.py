"""Write the JSON Schemas for other languages: `python -m kokuban.schemas.export` (a test keeps them current)."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import msgspec

from kokuban.schemas import gates, memory, quota, records, steering
from kokuban.schemas._base import Wire
from kokuban.schemas.artifacts import KINDS
from kokuban.schemas.envelope import Record
from kokuban.schemas.subjects import TOKEN, TOKEN_PYTHON

BODIES: dict[str, type[Wire]] = {
    "step.order": records.WorkOrder,
    "step.claimed": records.Claimed,
    "step.done": records.Done,
    "step.failed": records.Failed,
    "step.released": records.Released,
    "step.revoked": records.Revoked,
    "step.journal": records.Journal,
    "task.final": records.Final,
    "task.ending": records.Ending,
    "step.waiting": gates.Waiting,
    "step.granted": records.Grant,
    "gate.request": gates.GateRequest,
    "gate.vote": gates.Vote,
    "gate.decision": gates.Decision,
    "task.control": gates.Control,
    "task.tombstone": steering.Tombstone,
    "ctl.lease": steering.Lease,
    "ctl.epoch": steering.Epoch,
    "ctl.limits": steering.BoardLimits,
    "ctl.intake": steering.Intake,
    "ctl.kind": steering.RegisteredKind,
    "ctl.role": steering.RegisteredRole,
    "ctl.snapshot": steering.Snapshot,
    "quota.endpoint": quota.Endpoint,
    "quota.limits": quota.EndpointLimits,
    "memory.proposed": memory.Proposal,
    "memory.judged": memory.Judgement,
    "memory.forgotten": memory.Forgotten,
}
"""Record type to the shape of its body (`task.spec` carries the `task` artifact, `artifact` any kind)."""

FOLDER = pathlib.Path(__file__).parent / "json"


def all_schemas() -> dict[str, str]:
    """File name to file content, for every exported schema."""
    shapes: dict[str, type[Wire]] = {"record": Record, **KINDS, **BODIES}
    return {f"{name}.json": _render(name, shape) for name, shape in shapes.items()}


def _render(name: str, shape: type[Wire]) -> str:
    schema: dict[str, Any] = msgspec.json.schema(shape)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:kokuban:v1:{name}"}
    text = json.dumps({**head, **schema}, indent=1, ensure_ascii=False)
    return text.replace(json.dumps(TOKEN_PYTHON), json.dumps(TOKEN)) + "\n"


def main() -> None:
    from jsonschema import Draft202012Validator

    FOLDER.mkdir(exist_ok=True)
    wanted = all_schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        Draft202012Validator.check_schema(json.loads(text))
        (FOLDER / name).write_text(text, "utf-8")
    print(f"{len(wanted)} schemas in {FOLDER}")


if __name__ == "__main__":
    main()
