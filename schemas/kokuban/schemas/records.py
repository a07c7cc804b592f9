"""The bodies of the records that steer a task. The artifacts have a file each in `artifacts/`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kokuban.schemas._base import MAX_COUNT, Count, Digest, Path, Seq, ShortText, Text, Token, Wire


class Usage(Wire, frozen=True):
    """What a stretch of work cost. Counts add up, at most to what a record can carry; `estimated` is true when any part
    of them is our own estimate."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    model_calls: Count = 0
    tool_calls: Count = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=min(self.input_tokens + other.input_tokens, MAX_COUNT),
            output_tokens=min(self.output_tokens + other.output_tokens, MAX_COUNT),
            model_calls=min(self.model_calls + other.model_calls, MAX_COUNT),
            tool_calls=min(self.tool_calls + other.tool_calls, MAX_COUNT),
            estimated=self.estimated or other.estimated,
        )


class Allotment(Wire, frozen=True):
    """What one attempt at a step may spend. 0 is none, never unlimited."""

    steps: Annotated[int, Meta(ge=0, le=10_000, description="Model turns.")] = 12
    tool_calls: Annotated[int, Meta(ge=0, le=10_000)] = 20
    tokens: Annotated[int, Meta(ge=0, le=2**53 - 1, description="Input and output tokens together.")] = 32_000
    seconds: Annotated[int, Meta(ge=0, le=86_400, description="Wall clock.")] = 90


class Ref(Wire, frozen=True):
    """An artifact as others name it. `seq` is the record that carries it; `digest` is its identity."""

    step: Token
    kind: Token
    name: Token
    digest: Digest
    seq: Seq


class Feedback(Wire, frozen=True):
    """Why an earlier attempt did not count: data for the next one."""

    attempt: Count
    reason: Literal["refused", "verdict", "failed", "conflict", "plan"]
    text: Text
    digest: Digest | None = None  # of the critique, when there is one


class Teammate(Wire, frozen=True):
    """A role as the planner sees it."""

    role: Token
    summary: ShortText
    consumes: tuple[Token, ...] = ()
    produces: tuple[Token, ...] = ()


class WorkOrder(Wire, frozen=True):
    """What the leader asks for. `reg` is the step register's last sequence (0 when it has none): a claim must match it.

    `needs` are the steps that it follows, `inputs` the admitted artifacts it may use, `judges` those of them that want
    a verdict, `produces` the kinds that its contract allows, `team` the roles that a plan may name. `tries` counts the
    earlier attempts that failed, `recoveries` those that were lost with their worker; `resumes` is the first attempt of
    this same work, whose journal the owner takes up (0: none). `scope` says how much of the task's work
    is in the tree once this step is done.
    """

    reg: Seq
    spec: Seq
    goal: Text
    produces: tuple[Token, ...]
    needs: tuple[Token, ...] = ()
    inputs: tuple[Ref, ...] = ()
    judges: tuple[Digest, ...] = ()
    feedback: tuple[Feedback, ...] = ()
    allotment: Allotment = Allotment()
    team: tuple[Teammate, ...] = ()
    scope: Literal["part", "whole"] = "whole"
    tries: Count = 0
    recoveries: Count = 0
    resumes: Count = 0


class Opens(Wire, frozen=True):
    """A call that is about to be made: written before it is dispatched."""

    call: Count
    kind: Literal["model", "tool"]
    tool: Annotated[str, Meta(max_length=64)] = ""
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    key: Annotated[str, Meta(max_length=128, description="Idempotency key, from the step's identity.")] = ""
    reserved_tokens: Count = 0


class Settles(Wire, frozen=True):
    """How a call ended. For a model call `result` is the reply, for a tool call its observation and file changes."""

    call: Count
    usage: Usage = Usage()
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Journal(Wire, frozen=True):
    """One line of a step's log: settles call k and opens call k + 1."""

    settles: Settles | None = None
    opens: Opens | None = None


class Claimed(Wire, frozen=True):
    """A worker takes the step. This record's sequence is its fence. `opens` may carry the journal's first line."""

    order: Seq
    reg: Seq
    opens: Opens | None = None


class Result(Wire, frozen=True):
    """One artifact inside `done`: inline in `body`, or stored outside under `digest` when too large."""

    kind: Token
    name: Token
    digest: Digest
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    derived_from: tuple[Digest, ...] = ()


class Done(Wire, frozen=True):
    """The owner commits: results, the rest of the usage, and the release of the step in one message.

    `settles` closes the journal's last call.
    """

    results: tuple[Result, ...]
    settles: Settles | None = None
    usage: Usage = Usage()


FailureClass = Literal[
    "budget", "steps", "tool_calls", "tokens", "deadline", "no_progress", "model", "tool", "conflict", "input", "bug"
]


class Failed(Wire, frozen=True):
    """The owner gives up the attempt, with the reason. `conflict` names the steps whose work cannot be merged."""

    why: FailureClass
    reason: Text
    retryable: bool = True
    settles: Settles | None = None
    usage: Usage = Usage()
    conflict: tuple[Token, ...] = ()
    paths: tuple[Path, ...] = ()


class Released(Wire, frozen=True):
    """The leader takes the step back from an owner that fell silent, or replaces a lost order. A new order follows."""

    why: Literal["silent", "lost", "deadline", "moved"]
    reason: ShortText


class Revoked(Wire, frozen=True):
    """The leader seals the step: nothing more is wanted from it."""

    reason: ShortText


State = Literal["done", "failed"]


class Final(Wire, frozen=True):
    """The end of a task, once. `deliverable` and `verdict` prove a `done`."""

    state: State
    reason: Text
    checked: bool = False
    deliverable: Ref | None = None
    verdict: Ref | None = None
    usage: Usage = Usage()


class Lease(Wire, frozen=True):
    """Leadership. The record expires by the server's own clock (`Nats-TTL`); whoever writes the next one leads."""

    supervisor: Annotated[str, Meta(max_length=128)]


class Epoch(Wire, frozen=True):
    """A new leader's fence for one shard. This record's sequence must be cited by every decision in the shard."""

    supervisor: Annotated[str, Meta(max_length=128)]
    shard: Annotated[int, Meta(ge=0, le=1_023)]
