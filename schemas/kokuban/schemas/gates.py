"""What passes between a task and people: gates, votes and decisions on them, and what a person says to a task."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kokuban.schemas._base import Count, Digest, Text, Token, Wire
from kokuban.schemas.records import Outcome, Ref, Settles, Usage


class Gate(Wire, frozen=True):
    """What a person is asked: to allow exactly this call or this artifact, or to answer a question.

    A call is bound by `call`, `key`, `hash` (of its canonical arguments), `tool_version` and `policy`; an artifact by
    `subject`. `need` votes decide; without a decision after `expires_seconds` the gate expires, which is no denial.
    """

    id: Token
    about: Literal["call", "artifact", "question"]
    asks: Text
    tool: Annotated[str, Meta(max_length=64)] = ""
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    hash: Digest | None = None
    tool_version: Annotated[str, Meta(max_length=64)] = ""
    policy: Annotated[str, Meta(max_length=128)] = ""
    call: Count = 0
    key: Annotated[str, Meta(max_length=128)] = ""
    subject: Ref | None = None
    need: Annotated[int, Meta(ge=1, le=100)] = 1
    expires_seconds: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None


class Waiting(Wire, frozen=True):
    """The owner lets the step go until a person has decided: it holds no lease, slot or time meanwhile. The stored call
    is taken up again by whoever owns the step next."""

    gate: Gate
    settles: Settles | None = None
    usage: Usage = Usage()


class GateRequest(Wire, frozen=True):
    """The leader asks for a person's word on an admitted artifact."""

    gate: Gate


class Vote(Wire, frozen=True):
    """One person's word. `bound` is the digest of the gate that the person saw: a vote on anything else is void."""

    vote: Literal["approve", "deny", "answer"]
    bound: Digest
    text: Annotated[str, Meta(max_length=16_384)] = ""


class Decision(Wire, frozen=True):
    """How a gate ended: the leader counts the votes."""

    gate: Token
    outcome: Outcome
    bound: Digest
    by: tuple[Token, ...] = ()
    text: Annotated[str, Meta(max_length=16_384)] = ""


class Control(Wire, frozen=True):
    """What a person says to a task: `cancel` it, `inject` a fact, `drop` it from the list of the dead."""

    op: Literal["cancel", "inject", "drop"]
    text: Annotated[str, Meta(max_length=2_000)] = ""
