"""One envelope: what is sealed opens again, what was tampered with does not, what is newer says so."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.samples import REF, SAMPLES, USAGE
from kokuban.schemas import VERSION, BadRecord, Critique, Epoch, Usage, digest, encode, open_record, seal

BODY = Epoch("s-1", 3)
GOOD = seal(BODY, id="op-1", type="ctl.epoch", worker="w", version=1)
"""Of the first version, in which none was written."""


@pytest.mark.parametrize("name", list(SAMPLES))
def test_what_is_sealed_opens_again(name: str) -> None:
    body = SAMPLES[name]
    fields = {"task": "t-1", "step": "s", "role": "coder", "attempt": 3, "fence": 9, "trust": "model"}
    record = open_record(seal(body, id="op-1", type="artifact", derived_from=(REF.digest,), **fields))
    assert {field: getattr(record, field) for field in fields} == fields
    assert (record.id, record.type, record.version, record.derived_from) == ("op-1", "artifact", VERSION, (REF.digest,))
    assert bytes(record.body) == encode(body)
    assert record.sha256 == digest(encode(body))
    assert msgspec.json.decode(record.body, type=type(body)) == body


def test_a_record_is_plain_json_for_anybody() -> None:
    assert json.loads(GOOD) == {
        "id": "op-1", "type": "ctl.epoch", "worker": "w",
        "sha256": digest(encode(BODY)), "body": {"supervisor": "s-1", "shard": 3},
    }  # fmt: skip


def test_a_record_says_its_version_and_one_that_says_none_is_of_the_first() -> None:
    assert json.loads(seal(BODY, id="op-1", type="ctl.epoch"))["version"] == VERSION
    assert open_record(GOOD).version == 1


def test_the_digest_is_of_the_bytes_as_they_stand() -> None:
    """Another language may space its JSON as it likes."""
    body = b'{ "supervisor": "s-1",\n "shard": 3 }'
    record = open_record(GOOD.replace(encode(BODY), body).replace(digest(encode(BODY)).encode(), digest(body).encode()))
    assert bytes(record.body) == body
    with pytest.raises(BadRecord, match="sha256 does not match the body"):
        open_record(GOOD.replace(encode(BODY), body))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"shard":3', b'"shard":4'), (b"s-1", b"s-2"), (b'"shard":3', b'"shard":3 '), (b"sha256:", b"sha256:0")],
)
def test_tampering_shows(old: bytes, new: bytes) -> None:
    assert old in GOOD
    with pytest.raises(BadRecord) as caught:
        open_record(GOOD.replace(old, new))
    assert caught.value.newer is False


@pytest.mark.parametrize(
    "addition",
    [
        b'"version":3',
        b'"version":1000',
        b'"version":1001',
        b'"version":3,"novel":{"a":[1]}',
        b'"version":3,"trust":"new"',
    ],
)
def test_a_newer_record_is_left_alone_and_said_to_be_newer(addition: bytes) -> None:
    with pytest.raises(BadRecord) as caught:
        open_record(GOOD.replace(b'"id":"op-1"', b'"id":"op-1",' + addition))
    assert caught.value.newer is True


@pytest.mark.parametrize(
    "addition",
    [b'"novel":1', b'"version":0', b'"version":-1', b'"version":"2"', b'"version":1.0', b'"version":null',
     b'"version":' + b"9" * 5_000, b'"attempt":-1', b'"fence":9007199254740992', b'"task":"a.b"', b'"task":"a\\n"',
     b'"step":"*"', b'"trust":"god"', b'"type":"step.stolen"', b'"derived_from":["sha256:0"]', b'"sha256":"md5:0"'],
)  # fmt: skip
def test_what_is_wrong_is_wrong_not_newer(addition: bytes) -> None:
    with pytest.raises(BadRecord) as caught:
        open_record(GOOD.replace(b'"id":"op-1"', b'"id":"op-1",' + addition))
    assert caught.value.newer is False


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 100_000, b'{"body":' + b"[" * 100_000,
        GOOD[:-1], GOOD + b"x", GOOD.replace(b"s-1", b"\xff"), GOOD.replace(b"s-1", b"\\ud800"),
        GOOD.replace(b'"shard":3', b'"shard":' + b"[" * 200 + b"]" * 200),
    ],
)  # fmt: skip
def test_no_bytes_are_more_than_a_bad_record(data: bytes) -> None:
    with pytest.raises(BadRecord):
        open_record(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 6), st.binary(max_size=4))
def test_no_damage_makes_it_raise_anything_else(at: int, cut: int, put: bytes) -> None:
    try:
        record = open_record(GOOD[:at] + put + GOOD[at + cut :])
    except BadRecord:
        return
    assert record.version <= VERSION
    assert digest(record.body) == record.sha256


@given(st.text().filter(lambda text: text.isprintable() and text))
def test_any_text_survives(text: str) -> None:
    body = Critique(REF, text)
    assert msgspec.json.decode(open_record(seal(body, id="x", type="artifact")).body, type=Critique) == body


def test_usage_adds_up_and_stays_what_a_record_can_carry() -> None:
    assert Usage(1, 2, 3, 4, False, 5, 6) + USAGE == Usage(11, 22, 4, 6, True, 705, 15)
    assert (Usage(1, 2).tokens, Usage() + Usage()) == (3, Usage())
    most = Usage(2**53 - 1, 2**53 - 1, 2**53 - 1, 2**53 - 1, False, 2**53 - 1, 2**53 - 1)
    assert most + most == most
