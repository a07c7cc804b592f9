"""Long-term memory: what a tenant's teams may know from one task to the next. Written as proposals, which count when a
person has approved them, until they expire or are forgotten."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kokuban.schemas._base import Digest, Text, Token, Wire

MemoryKind = Literal["fact", "preference", "episode"]


class Proposal(Wire, frozen=True):
    """Something to be remembered: `text` under `key`, from `task` and `step` or a person. An episode is what a task
    tried and what came of it. `expires_seconds` counts from when the server stored this."""

    tenant: Token
    kind: MemoryKind
    key: Annotated[str, Meta(min_length=1, max_length=200)]
    text: Text
    author: Annotated[str, Meta(min_length=1, max_length=128)]
    task: Token | None = None
    step: Token | None = None
    source: Digest | None = None
    expires_seconds: Annotated[int, Meta(ge=1, le=315_360_000)] | None = None


class Judgement(Wire, frozen=True):
    """What somebody said about a proposal; the first word counts. `bound` is the digest of what was judged."""

    outcome: Literal["approved", "denied"]
    by: Annotated[str, Meta(min_length=1, max_length=128)]
    bound: Digest
    reason: Annotated[str, Meta(max_length=2_000)] = ""


class Forgotten(Wire, frozen=True):
    """It is to be forgotten. What it said is deleted; this stays, so that nothing late brings it back."""

    by: Annotated[str, Meta(min_length=1, max_length=128)]
