"""Checking content: reasons name the field, and nothing that comes over the bus can make it raise (C3, C5, C8)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.samples import D1, SAMPLES
from kokuban.schemas import KINDS, encode
from kokuban.schemas._base import MAX_DEPTH, check_depth
from kokuban.schemas.kinds import MAX_ARTIFACT_BYTES, UnknownKind, _nothing, decode_artifact, problems, schema_of

FINDING = json.loads(encode(SAMPLES["finding"]))


def finding(**changes: object) -> bytes:
    return json.dumps({**FINDING, **changes}).encode()


def citation(**changes: object) -> bytes:
    return finding(citations=[{**FINDING["citations"][0], **changes}])


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_valid_has_no_problems_and_can_be_read(kind: str) -> None:
    data = encode(SAMPLES[kind])
    assert problems(kind, data) == problems(kind, msgspec.Raw(data)) == ()
    assert decode_artifact(kind, data) == SAMPLES[kind]
    assert encode(decode_artifact(kind, data)) == data


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'{"citations":[]}', ["statement", "finding.citations: "]),
        (finding(statement=""), ["finding.statement: "]),
        (finding(extra=1), ["finding: ", "extra"]),
        (citation(first=0), ["finding.citations.0.first: 0"]),
        (citation(first="1"), ["finding.citations.0.first: "]),
        (citation(first=True), ["finding.citations.0.first: "]),
        (citation(first=1.5), ["finding.citations.0.first: "]),
        (citation(first=1.0), ["finding: ", "$.citations[0].first"]),
        (citation(first=1e3), ["finding: ", "$.citations[0].first"]),
        (citation(first=2**63), ["finding.citations.0.first: "]),
        (citation(first=10**18), ["finding.citations.0.first: "]),
        (citation(sha256="sha256:" + "F" * 64), ["finding.citations.0.sha256: "]),
        (citation(sha256=D1 + "\n"), ["finding.citations.0.sha256: "]),
        (finding(citations=FINDING["citations"] * 21), ["finding.citations: "]),
        (b"[]", ["finding: "]),
        (b"null", ["finding: "]),
    ],
)
def test_a_problem_names_the_field(data: bytes, named: list[str]) -> None:
    text = "; ".join(problems("finding", data))
    assert [part for part in named if part not in text] == []


@pytest.mark.parametrize("step", ["a\n", "A", "a.b", "a*", ">", "", "a" * 65, "é"])
def test_a_name_in_an_artifact_can_stand_in_a_subject(step: str) -> None:
    plan = json.loads(encode(SAMPLES["plan"]))
    plan["steps"][0]["id"] = step
    assert any(reason.startswith("plan.steps.0.id: ") for reason in problems("plan", json.dumps(plan).encode()))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nope", b"\xff", b"\xef\xbb\xbf{}", b"{}{}", b"{'a':1}",
        b'{"statement":NaN}', b'{"statement":Infinity}', b'{"statement":1e999}', b'{"statement":01}',
        b'{"statement":' + b"9" * 5_000 + b"}",
        b'{"statement":"\\ud800"}', b'{"\\udc00":1}', b'{"statement":"\xed\xa0\x80"}', b'{"statement":"\xff"}',
        b'{"statement":"a\nb"}', b'{"statement":"\\x"}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_a_reason(data: bytes) -> None:
    (reason,) = problems("finding", data)
    assert reason.startswith("finding: not JSON")


@pytest.mark.parametrize("depth", [50, MAX_DEPTH, MAX_DEPTH + 1, 254, 255, 256, 300, 900, 1_000, 5_000, 100_000])
@pytest.mark.parametrize("way", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("closed", [True, False])
def test_any_depth_is_a_reason(depth: int, way: str, closed: bool) -> None:
    ends = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[way]
    for start in ("", '{"statement":'):
        data = start + way * depth + "1" + (ends * depth + "}" * bool(start)) * closed
        found = problems("finding", data.encode())
        assert found
        assert all(reason.startswith("finding") and len(reason) < 1_000 for reason in found)


def test_depth_is_ours_and_does_not_depend_on_the_stack() -> None:
    data = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)

    def deeper(levels: int) -> tuple[str, ...]:
        return deeper(levels - 1) if levels else problems("finding", data)

    assert deeper(0) == deeper(400)
    assert "nested deeper" in deeper(0)[0]


@pytest.mark.parametrize(
    "data",
    [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
        b"[" + b"[],{}," * 1_000 + b"[]]",
        encode("[{" * 1_000),
        encode('\\"[' * 1_000),
        b'"' + b'\\"' * 200_000,
        b"[[[",
    ],
)
def test_width_text_and_faults_of_other_kinds_are_not_depth(data: bytes) -> None:
    check_depth(data)


@pytest.mark.parametrize(
    "data",
    [b"[" * 129, b"[" * 129 + b"]" * 129, b'[{"a":' * 65 + b"}]" * 65, b'[[["]]]"' * 60, b"]" * 5 + b"[" * 200],
)
def test_too_deep_is_too_deep(data: bytes) -> None:
    with pytest.raises(ValueError, match="nested deeper than 128"):
        check_depth(data)


def test_of_duplicate_keys_the_last_counts_and_the_others_must_be_valid_too() -> None:
    data = encode(SAMPLES["finding"])
    twice = data.replace(b'{"statement":', b'{"statement":"other","statement":', 1)
    assert problems("finding", twice) == ()
    assert decode_artifact("finding", twice) == SAMPLES["finding"]
    bad = data.replace(b'{"statement":', b'{"statement":"","statement":', 1)
    assert "$.statement" in problems("finding", bad)[0]


def test_size_is_bounded_before_anything_is_read() -> None:
    (reason,) = problems("finding", b" " * (MAX_ARTIFACT_BYTES + 1))
    assert reason == f"finding: {MAX_ARTIFACT_BYTES + 1} bytes is above the limit of {MAX_ARTIFACT_BYTES}"


def test_reasons_are_few_and_short() -> None:
    data = finding(citations=[{"quote": "x" * 5_000}] * 20)
    assert len(problems("finding", data)) == 5
    assert len(problems("finding", data, most=2)) == 2
    assert max(map(len, problems("finding", data))) < 400


def test_a_kind_that_is_unknown_is_named_with_those_that_are_known() -> None:
    (reason,) = problems("poem", b"{}")
    assert reason.startswith("kind: 'poem' is unknown; this release knows task, plan, ")
    with pytest.raises(UnknownKind):
        decode_artifact("poem", b"{}")
    with pytest.raises(UnknownKind):
        schema_of("../plan")


def test_schemas_are_never_fetched() -> None:
    with pytest.raises(ValueError, match="never fetched: http://x"):
        _nothing("http://x")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(KINDS)),
    st.binary() | json_values.map(lambda value: json.dumps(value).encode("utf-8", "replace")),
)
def test_problems_never_raises(kind: str, value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    if not problems(kind, data):
        decode_artifact(kind, data)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(KINDS)), st.data())
def test_no_damage_to_the_bytes_makes_it_raise(kind: str, data: st.DataObject) -> None:
    text = encode(SAMPLES[kind])
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 8))
    damaged = text[:at] + data.draw(st.binary(max_size=4)) + text[at + cut :]
    if not problems(kind, damaged):
        decode_artifact(kind, damaged)
