"""One envelope for every record on the board."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kokuban.schemas._base import Count, Digest, Seq, Token, Wire, check_depth, digest, encode

VERSION = 2
"""The version of the envelope and of the bodies of this release. A reader meets a higher one by leaving it alone.
Version 2 added budgets, gates, controls, tombstones, registered kinds and roles; a record without a version is of 1."""

Trust = Literal["system", "principal", "model", "untrusted"]
"""Where the content comes from: the runtime itself, the person who asked, a model, or a tool or foreign text. Ordered,
the most trusted first: what is made of several has the label of the least trusted."""

TRUST: tuple[Trust, ...] = ("system", "principal", "model", "untrusted")

Type = Literal[
    "task.spec", "step.order", "step.claimed", "step.done", "step.failed", "step.released", "step.revoked",
    "step.journal", "artifact", "task.final", "ctl.lease", "ctl.epoch",
    "step.waiting", "step.granted", "gate.request", "gate.vote", "gate.decision", "task.control", "task.ending",
    "task.tombstone", "ctl.limits", "ctl.intake", "ctl.kind", "ctl.role", "ctl.snapshot", "quota.endpoint",
    "quota.limits", "memory.proposed", "memory.judged", "memory.forgotten",
]  # fmt: skip


class Record(Wire, frozen=True, kw_only=True):
    """A record on the board: who wrote what, under which authority, from what.

    `fence` is the claim's sequence for an owner's write and the epoch's sequence for a leader's. `sha256` is the digest
    of the body's bytes exactly as they stand in this record. `time` is the writer's clock, for people only: every
    decision uses the server's timestamps or sequences.
    """

    id: Annotated[str, Meta(min_length=1, max_length=64, description="The write's own operation id.")]
    type: Type
    version: Annotated[int, Meta(ge=1, le=1_000)] = 1
    task: Token | None = None
    parent: Token | None = None
    step: Token | None = None
    role: Token | None = None
    attempt: Count = 0
    fence: Seq = 0
    worker: Annotated[str, Meta(max_length=128)] | None = None
    principal: Annotated[str, Meta(max_length=128)] | None = None
    policy: Annotated[str, Meta(max_length=128)] | None = None
    prompt: Annotated[str, Meta(max_length=128)] | None = None
    trust: Trust = "system"
    time: Annotated[str, Meta(max_length=40)] = ""
    trace: Annotated[str, Meta(max_length=64)] | None = None
    derived_from: tuple[Digest, ...] = ()
    sha256: Digest
    body: msgspec.Raw


def least_trusted(first: Trust, *others: Trust) -> Trust:
    """The label of what is made of these."""
    return max((first, *others), key=TRUST.index)


class BadRecord(ValueError):
    """Bytes on the board that are no record this release can read. `newer` is true for a higher schema version."""

    def __init__(self, why: str, *, newer: bool = False) -> None:
        super().__init__(why)
        self.newer = newer


class _Version(msgspec.Struct):
    version: int = 1


_record = msgspec.json.Decoder(Record)
_version = msgspec.json.Decoder(_Version)


def seal(body: object, **fields: object) -> bytes:
    """Encode `body` inside a `Record` with these fields, digest included. Raises `msgspec.ValidationError` never:
    field types are checked by the type checker, lengths by the reader."""
    raw = msgspec.Raw(encode(body))
    fields.setdefault("version", VERSION)
    return encode(Record(sha256=digest(raw), body=raw, **fields))  # type: ignore[arg-type]


def open_record(data: bytes) -> Record:
    """Decode one record and check its body against its digest. Raises `BadRecord`; a huge or deeply nested input is
    only ever a `BadRecord`, never a crash."""
    try:
        data.decode()  # the parser skips the body, broken UTF-8 and all
        check_depth(data)
        record = _record.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadRecord(str(error), newer=_is_newer(data)) from error
    if record.version > VERSION:
        raise BadRecord(f"schema version {record.version} is newer than {VERSION}", newer=True)
    if digest(record.body) != record.sha256:
        raise BadRecord("sha256 does not match the body")
    return record


def _is_newer(data: bytes) -> bool:
    try:
        return _version.decode(data).version > VERSION
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
