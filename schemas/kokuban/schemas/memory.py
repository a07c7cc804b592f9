"""Long-term memory: what a tenant's teams may know from one task to the next. Written as proposals, which count when a
person or a verifier has approved them, until they expire or are forgotten. Who wrote a record stands in its subject,
where the server checks it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kokuban.schemas._base import Digest, Text, Token, Wire

MemoryKind = Literal["fact", "preference", "episode"]


class Proposal(Wire, frozen=True):
    """Something to be remembered: `text` under `key`, from `task` and `step` or a person, and from the artifacts with
    the digests `sources`. An episode is what a task tried and what came of it. `principal` is whom it concerns alone,
    '' when it concerns everybody of the tenant. `expires_seconds` counts from when the server stored this; None is
    never."""

    tenant: Token
    kind: MemoryKind
    key: Annotated[str, Meta(min_length=1, max_length=200)]
    text: Text
    task: Token | None = None
    step: Token | None = None
    sources: Annotated[tuple[Digest, ...], Meta(max_length=100)] = ()
    principal: Annotated[str, Meta(max_length=128)] = ""
    expires_seconds: Annotated[int, Meta(ge=1, le=315_360_000)] | None = None


class Judgement(Wire, frozen=True):
    """What somebody said about a proposal; the first word counts. `bound` is the digest of the proposal's record."""

    outcome: Literal["approved", "denied"]
    bound: Digest
    reason: Annotated[str, Meta(max_length=2_000)] = ""


class Forgotten(Wire, frozen=True):
    """It is to be forgotten. What it said is deleted; this stays, so that nothing late brings it back. `by` is who says
    so."""

    by: Annotated[str, Meta(min_length=1, max_length=128)]
