"""What is admitted and what is refused, with reasons that name artifact and field (invariant 3, and 9's verdicts)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from core import contents
from core.history import kind_of
from kokuban.blackboard.core import Artifact, Candidate, reasons_against
from kokuban.blackboard.core.admission import MAX_OF_A_KIND
from kokuban.schemas import Ref, Teammate, Wire, WorkOrder, digest, encode

PATCH = Ref("write", "patch", "p", digest(b"p"), 5)
FACT = Ref("look", "finding", "f", digest(b"f"), 6)
FOREIGN = Ref("else", "patch", "x", digest(b"x"), 7)
TEAM = (Teammate("coder", "writes"), Teammate("researcher", "looks"))


def order(*produces: str, judges: Sequence[str] = ()) -> WorkOrder:
    return WorkOrder(0, 1, "do it", produces, inputs=(PATCH, FACT), judges=tuple(judges), team=TEAM)


def given(artifact: Wire, name: str = "it", **changes: object) -> Candidate:
    body = encode(artifact)
    return Candidate(kind_of(artifact), name, digest(body), body)._replace(**changes)  # type: ignore[arg-type]


def admitted(ref: Ref, role: str) -> dict[str, Artifact]:
    return {ref.digest: Artifact(ref, role, "w", 1, 1, (), b"")}


def refused(candidates: Sequence[Candidate], to: WorkOrder, role: str = "coder") -> tuple[str, ...]:
    return reasons_against(candidates, to, role, admitted(PATCH, "coder") | admitted(FACT, "researcher"))


@pytest.mark.parametrize(
    ("candidates", "to"),
    [
        ([given(contents.patch())], order("patch")),
        ([given(contents.finding(), "a"), given(contents.finding(), "b")], order("finding", "patch")),
        ([given(contents.plan(("a", "coder", ()), ("b", "researcher", ("a",))))], order("plan")),
        ([given(contents.verdict(PATCH))], order("verdict", "critique", judges=[PATCH.digest])),
        (
            [
                given(contents.verdict(PATCH, False)),
                given(contents.critique(PATCH)),
                given(contents.verdict(FACT), "f"),
            ],
            order("verdict", "critique", judges=[PATCH.digest, FACT.digest]),
        ),
        ([given(contents.deliverable([PATCH, FACT]))], order("deliverable")),
        ([given(contents.deliverable([]))], order("deliverable")),
        ([given(contents.finding(), str(n)) for n in range(MAX_OF_A_KIND)], order("finding")),
    ],
)
def test_what_keeps_the_contract_is_admitted(candidates: list[Candidate], to: WorkOrder) -> None:
    assert refused(candidates, to, "verifier") == ()


@pytest.mark.parametrize(
    ("candidates", "to", "reason"),
    [
        ([], order("patch", "finding"), "results: empty; the contract asks for patch or finding"),
        ([given(contents.patch())], order("finding"), "patch 'it': the role's contract allows only finding"),
        ([given(contents.patch(), kind="poem")], order("finding"), "poem 'it': the role's contract allows only"),
        ([given(contents.patch(), kind="poem")], order("poem"), "kind: 'poem' is unknown"),
        ([given(contents.patch(), body=None)], order("patch"), "patch 'it': its content is neither in the commit nor"),
        ([given(contents.patch(), digest=digest(b""))], order("patch"), "patch 'it': its digest is not the digest of"),
        ([given(contents.patch())] * 2, order("patch"), "patch 'it': given twice"),
        ([given(contents.finding(), body=b"7", digest=digest(b"7"))], order("finding"), "finding: 7 is not of type"),
        (
            [given(contents.finding(), str(n)) for n in range(MAX_OF_A_KIND + 1)],
            order("finding"),
            "results: 33 of kind 'finding' are too many; at most 32",
        ),
        ([given(contents.plan(("a", "cook", ())))], order("plan"), "role: step 'a' names 'cook'"),
        ([given(contents.plan(("a", "verifier", ())))], order("plan"), "role: step 'a' names 'verifier'"),
        ([given(contents.verdict(FOREIGN))], order("verdict"), f"verdict.subject: {FOREIGN.digest} is not among"),
        (
            [given(contents.verdict(PATCH))],
            order("verdict"),
            "verdict.subject: a role cannot judge what it wrote itself",
        ),
        (
            [given(contents.critique(PATCH))],
            order("verdict", "critique", judges=[PATCH.digest]),
            f"verdict: none for {PATCH.digest}",
        ),
        (
            [given(contents.verdict(FACT))],
            order("verdict", judges=[PATCH.digest, FACT.digest]),
            f"verdict: none for {PATCH.digest}",
        ),
        (
            [given(contents.verdict(FACT)), given(contents.verdict(FACT, False), "other")],
            order("verdict", judges=[FACT.digest]),
            f"verdict: more than one for {FACT.digest}",
        ),
        (
            [given(contents.deliverable([PATCH, FOREIGN]))],
            order("deliverable"),
            f"deliverable.cites: not among the order's inputs: {FOREIGN.digest}",
        ),
    ],
)
def test_what_breaks_it_is_refused_with_the_reason(candidates: list[Candidate], to: WorkOrder, reason: str) -> None:
    (found,) = refused(candidates, to)
    assert found.startswith(reason)


def test_a_manifest_names_only_what_was_given() -> None:
    lie = contents.deliverable([PATCH])
    lie = replace(lie, manifest=tuple(replace(part, sources=(FOREIGN,)) for part in lie.manifest))
    (found,) = refused([given(lie)], order("deliverable"))
    assert found == f"deliverable.manifest: not among the order's inputs: {FOREIGN.digest}"


def test_one_fault_refuses_all_and_every_fault_is_named() -> None:
    candidates = [given(contents.finding(), "good"), given(contents.patch(), "bad"), given(contents.finding(), "good")]
    first, second = refused(candidates, order("finding"))
    assert "'bad'" in first
    assert "'good': given twice" in second


def test_reasons_are_bounded() -> None:
    many = [given(contents.patch(), str(n)) for n in range(MAX_OF_A_KIND)]
    assert len(refused(many, order("finding"))) == 20


@pytest.mark.parametrize("make", [contents.verdict, contents.critique])
def test_a_critique_alone_is_no_judgement(make: Callable[[Ref], Wire]) -> None:
    found = refused([given(make(FACT))], order("verdict", "critique", judges=[FACT.digest]))
    assert bool(found) is (make is contents.critique)


def test_an_input_that_this_reader_never_saw_admitted_can_still_be_judged() -> None:
    assert reasons_against([given(contents.verdict(FACT))], order("verdict"), "verifier", {}) == ()
