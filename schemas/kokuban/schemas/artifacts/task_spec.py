"""`task`: what somebody wants done."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import Count, Digest, Text, Token, Wire
from kokuban.schemas.records import Budget

Check = Annotated[str, Meta(min_length=1, max_length=4_000, description="A shell command, run in a fresh checkout.")]


class TaskSpec(Wire, frozen=True):
    """A goal, the content it is about (by digest) and the checks that prove it. Without checks nothing is proven, and
    the result says so.

    `steps`, `tool_calls`, `tokens` and `seconds` bound one attempt at a step; `budget` bounds the task with all tasks
    below it. `after` are tasks that must be done first. `replans` is how often the plan may be made again when a step
    has used up its attempts. Artifacts of the kinds in `approve` count once `votes` people have approved them.
    """

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
    budget: Budget | None = None
    tenant: Token = "default"
    priority: Annotated[int, Meta(ge=-100, le=100, description="Higher goes first.")] = 0
    deadline_seconds: Annotated[int, Meta(ge=1, le=31_536_000, description="From the moment it is stored.")] | None = (
        None
    )
    after: Annotated[tuple[Token, ...], Meta(max_length=64)] = ()
    replans: Annotated[int, Meta(ge=0, le=10)] = 0
    approve: Annotated[tuple[Token, ...], Meta(max_length=32)] = ()
    votes: Annotated[int, Meta(ge=1, le=100)] = 1
    approval_seconds: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
