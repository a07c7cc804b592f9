"""`task`: what somebody wants done."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import Count, Digest, Text, Wire

Check = Annotated[str, Meta(min_length=1, max_length=4_000, description="A shell command, run in a fresh checkout.")]


class TaskSpec(Wire, frozen=True):
    """A goal, the content it is about (by digest) and the checks that prove it. Without checks nothing is proven, and
    the result says so."""

    goal: Text
    workspace: Digest
    sources: Digest | None = None
    checks: Annotated[tuple[Check, ...], Meta(max_length=32)] = ()
    check_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 60
    key: Annotated[str, Meta(max_length=256)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=10, description="Tries a step has.")] = 3
    steps: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    tool_calls: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    tokens: Count | None = None
    seconds: Annotated[int, Meta(ge=1, le=86_400)] | None = None
