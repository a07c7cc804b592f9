"""Admission: whether what an owner committed counts (invariant 3). Data in, reasons out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kokuban.blackboard.core.dag import problems_of_plan
from kokuban.blackboard.core.registry import Kinds, schema_for
from kokuban.blackboard.core.state import Artifact
from kokuban.schemas import KINDS, Deliverable, Plan, Verdict, WorkOrder, digest
from kokuban.schemas.kinds import decode_artifact, problems

MAX_OF_A_KIND = 32
"""Artifacts of one kind that a step may give: the orders of the steps behind it list them all, in one record."""


class Candidate(NamedTuple):
    """An artifact that `done` cites. `body` is None when it was said to be stored outside and is not there."""

    kind: str
    name: str
    digest: str
    body: bytes | None


def reasons_against(
    candidates: Sequence[Candidate],
    order: WorkOrder,
    role: str,
    admitted: Mapping[str, Artifact],
    kinds: Kinds | None = None,
) -> tuple[str, ...]:
    """Why these results are refused, all or nothing: empty admits every one. Reasons name artifact and field, for the
    producer to mend. A registered kind is judged by its schema in `kinds`, in the version that the order names."""
    found: list[str] = []
    if not candidates:
        found.append(f"results: empty; the contract asks for {' or '.join(order.produces)}")
    for kind, count in Counter(candidate.kind for candidate in candidates).items():
        if count > MAX_OF_A_KIND:
            return (f"results: {count} of kind {kind!r} are too many; at most {MAX_OF_A_KIND}",)
    seen: set[tuple[str, str]] = set()
    for candidate in candidates:
        label = f"{candidate.kind} {candidate.name!r}"
        if (candidate.kind, candidate.name) in seen:
            found.append(f"{label}: given twice")
        seen.add((candidate.kind, candidate.name))
        if candidate.kind not in order.produces:
            found.append(f"{label}: the role's contract allows only {', '.join(order.produces)}")
        elif candidate.body is None:
            found.append(f"{label}: its content is neither in the commit nor stored under its digest")
        elif digest(candidate.body) != candidate.digest:
            found.append(f"{label}: its digest is not the digest of its content")
        else:
            found += _content(candidate, order, role, admitted, kinds or {})
    if not found:
        found += _unjudged(candidates, order)
    return tuple(found[:20])


def _content(
    candidate: Candidate, order: WorkOrder, role: str, admitted: Mapping[str, Artifact], kinds: Kinds
) -> tuple[str, ...]:
    assert candidate.body is not None
    there = admitted.get(candidate.digest)
    if there is not None and there.ref.kind != candidate.kind:  # a verdict names a digest: it must mean one thing
        return (f"{candidate.kind} {candidate.name!r}: the same content was admitted as {there.ref.kind!r}",)
    if candidate.kind in KINDS:
        return problems(candidate.kind, candidate.body) or _handoff(candidate, order, role, admitted)
    return problems(candidate.kind, candidate.body, schema=schema_for(candidate.kind, order, kinds))


def _unjudged(candidates: Sequence[Candidate], order: WorkOrder) -> list[str]:
    """What is wrong with the verdicts as a whole: one that was asked for is missing, or two are about one artifact."""
    judged = [
        decode_artifact("verdict", c.body).subject.digest  # type: ignore[attr-defined]
        for c in candidates
        if c.kind == "verdict" and c.body is not None
    ]
    missing = [f"verdict: none for {d}, which the order asks to judge" for d in order.judges if d not in judged]
    return missing + [f"verdict: more than one for {d}" for d in dict.fromkeys(judged) if judged.count(d) > 1]


def _handoff(candidate: Candidate, order: WorkOrder, role: str, admitted: Mapping[str, Artifact]) -> tuple[str, ...]:
    """What the schema alone cannot say: a plan is a DAG, a verdict is about an input that somebody else made, a
    deliverable cites what it was given."""
    assert candidate.body is not None
    artifact = decode_artifact(candidate.kind, candidate.body)
    given = {ref.digest for ref in order.inputs}
    if isinstance(artifact, Plan):
        return problems_of_plan(artifact, {mate.role for mate in order.team}, _replaced(order, admitted))
    if isinstance(artifact, Verdict):
        about = artifact.subject.digest
        if about not in given:
            return (f"verdict.subject: {about} is not among the order's inputs",)
        if about in admitted and admitted[about].role == role:
            return ("verdict.subject: a role cannot judge what it wrote itself",)
    if isinstance(artifact, Deliverable):
        named = {"cites": artifact.cites, "manifest": [ref for part in artifact.manifest for ref in part.sources]}
        for field, refs in named.items():
            foreign = [ref.digest for ref in refs if ref.digest not in given]
            if foreign:
                return (f"deliverable.{field}: not among the order's inputs: {', '.join(foreign[:5])}",)
    return ()


def _replaced(order: WorkOrder, admitted: Mapping[str, Artifact]) -> Mapping[str, str]:
    """The steps of the plan that is made again, with their roles."""
    ref = order.revision.plan if order.revision else None
    before = admitted.get(ref.digest) if ref else None
    plan = decode_artifact("plan", before.body) if before is not None and before.body else None
    return {step.id: step.role for step in plan.steps} if isinstance(plan, Plan) else {}
