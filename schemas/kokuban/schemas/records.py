"""The bodies of the records that steer a task. The artifacts have a file each in `artifacts/`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kokuban.schemas._base import MAX_COUNT, Count, Digest, Path, Seq, ShortText, Text, Token, Wire

Outcome = Literal["approved", "denied", "answered", "expired", "withdrawn"]
"""How a gate ended."""


class Usage(Wire, frozen=True):
    """What a stretch of work cost. Counts add up, at most to what a record can carry; `estimated` is true when any part
    of them is our own estimate. `micros` is money, in millionths of a US dollar. `seconds` is wall clock by the
    server's timestamps: the fold fills it in, no worker."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    model_calls: Count = 0
    tool_calls: Count = 0
    estimated: bool = False
    micros: Count = 0
    seconds: Count = 0

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
            micros=min(self.micros + other.micros, MAX_COUNT),
            seconds=min(self.seconds + other.seconds, MAX_COUNT),
        )


class Allotment(Wire, frozen=True):
    """What a piece of work (an attempt, with those that take it up) may spend. 0 is none, never unlimited. `micros` is
    money, in millionths of a US dollar; None: the task has no money limit."""

    steps: Annotated[int, Meta(ge=0, le=10_000, description="Model turns.")] = 12
    tool_calls: Annotated[int, Meta(ge=0, le=10_000)] = 20
    tokens: Annotated[int, Meta(ge=0, le=2**53 - 1, description="Input and output tokens together.")] = 32_000
    seconds: Annotated[int, Meta(ge=0, le=86_400, description="Wall clock.")] = 90
    micros: Count | None = None


class Budget(Wire, frozen=True):
    """What a task, with all tasks below it, may spend from its start to its end. None: no limit of its own; 0 is none.
    `micros` is money, in millionths of a US dollar; `seconds` adds up the time that steps are under way."""

    steps: Annotated[int, Meta(ge=0, le=10_000_000, description="Model turns.")] | None = None
    tool_calls: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    tokens: Count | None = None
    micros: Count | None = None
    seconds: Count | None = None


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
    reason: Literal["refused", "verdict", "failed", "conflict", "plan", "denied"]
    text: Text
    digest: Digest | None = None  # of the critique, when there is one


class Teammate(Wire, frozen=True):
    """A role as the planner sees it."""

    role: Token
    summary: ShortText
    consumes: tuple[Token, ...] = ()
    produces: tuple[Token, ...] = ()


class Decided(Wire, frozen=True):
    """How a gate of this work ended. `by` names the people; `text` is a reason or an answer, and only data."""

    gate: Token
    outcome: Outcome
    bound: Digest
    text: Annotated[str, Meta(max_length=16_384)] = ""
    by: tuple[Token, ...] = ()


class Revision(Wire, frozen=True):
    """Why the plan is to be made again: `plan` is the one in force, `done` the steps whose work stays when the new plan
    keeps them as they are."""

    number: Count
    reason: Text
    plan: Ref | None = None
    done: tuple[Token, ...] = ()


class KindRef(Wire, frozen=True):
    """A registered artifact kind, in the version that this order is judged by."""

    kind: Token
    version: Count


class WorkOrder(Wire, frozen=True):
    """What the leader asks for. `reg` is the step register's last sequence (0 when it has none): a claim must match it.

    `needs` are the steps that it follows, `inputs` the admitted artifacts it may use, `judges` those of them that want
    a verdict, `produces` the kinds that its contract allows, `team` the roles that a plan may name. `tries` counts the
    earlier attempts that failed, `recoveries` those that were lost with their worker; `resumes` is the first attempt of
    this same work, whose journal the owner takes up (0: none). `scope` says how much of the task's work
    is in the tree once this step is done. `facts` is what people said meanwhile, `decided` how this work's gates ended,
    `revision` why a plan is made again, `kinds` the registered kinds among `produces`. `more` says that the owner may
    ask for more than `allotment`, up to it; `budgeted` that a budget applies, so that no call may go unreserved.
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
    facts: tuple[ShortText, ...] = ()
    decided: tuple[Decided, ...] = ()
    revision: Revision | None = None
    kinds: tuple[KindRef, ...] = ()
    more: Allotment | None = None
    budgeted: bool = False


class Opens(Wire, frozen=True):
    """A call that is about to be made: written before it is dispatched."""

    call: Count
    kind: Literal["model", "tool"]
    tool: Annotated[str, Meta(max_length=64)] = ""
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    key: Annotated[str, Meta(max_length=128, description="Idempotency key, from the step's identity.")] = ""
    reserved_tokens: Count = 0
    reserved_micros: Count = 0
    gate: Token | None = None  # the approval that this call uses up
    effect: Literal["", "read", "keyed", "other"] = ""  # of a tool: whether it may be made again
    ruling: Annotated[str, Meta(max_length=200, description="What the policy decided: outcome, rule, version.")] = ""
    prompt: Annotated[str, Meta(max_length=128, description="Of a model call: the prompt file and its version.")] = ""
    reconciled: Annotated[
        Literal["", "done", "undone"],
        Meta(description="Of a tool call that an earlier owner had begun: what became of it, as a look has shown."),
    ] = ""


class Settles(Wire, frozen=True):
    """How a call ended. For a model call `result` is the reply, for a tool call its observation and file changes."""

    call: Count
    usage: Usage = Usage()
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Journal(Wire, frozen=True):
    """One line of a step's log: settles call k and opens call k + 1. `asks` wants the allotment raised to this."""

    settles: Settles | None = None
    opens: Opens | None = None
    asks: Allotment | None = None


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
    "budget",
    "steps",
    "tool_calls",
    "tokens",
    "deadline",
    "no_progress",
    "model",
    "tool",
    "conflict",
    "input",
    "bug",
    "in_doubt",
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


State = Literal[
    "done", "failed", "cancelled", "deadline", "out_of_budget", "dependency_failed", "refused", "dead"
]  # fmt: skip


class Released(Wire, frozen=True):
    """The leader takes the step back from an owner that fell silent, or replaces a lost order. A new order follows."""

    why: Literal["silent", "lost", "deadline", "moved", "replaced"]
    reason: ShortText


class Revoked(Wire, frozen=True):
    """The leader seals the step: nothing more is wanted from it. It counts once the leader has said (`task.ending`)
    that the task is about to end."""

    reason: ShortText


class Ending(Wire, frozen=True):
    """The task is about to end so: nothing more is ordered, and what is under way is sealed. A next leader carries it
    through; tasks below and behind it need not wait for the end itself. `step` is what stood in the way."""

    state: State
    reason: Text
    step: Token | None = None


class Grant(Wire, frozen=True):
    """The leader's answer to an owner that asked for more: what its work may spend now, all in all. Never less than
    before; the same as before is a no."""

    claim: Seq
    allotment: Allotment


class Final(Wire, frozen=True):
    """The end of a task, once. `deliverable` and `verdict` prove a `done`. `blocked` are planned steps that could not
    be done for that reason; `unconfirmed` steps whose worker had not said that it stopped when this was written.

    `refused`: the plan cannot run, or intake was closed. `dead`: a step that takes its workers down with it.
    """

    state: State
    reason: Text
    checked: bool = False
    deliverable: Ref | None = None
    verdict: Ref | None = None
    usage: Usage = Usage()
    blocked: tuple[Token, ...] = ()
    unconfirmed: tuple[Token, ...] = ()
