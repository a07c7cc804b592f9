"""Records about the board as a whole (leadership, limits, intake, what users registered), and what stays of a task."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kokuban.schemas._base import Count, Digest, Seq, Text, Token, Wire
from kokuban.schemas.records import Budget, State, Usage


class Tombstone(Wire, frozen=True):
    """What stays of a task after it was archived: its key is taken and its end is known. `archive` is the payload that
    holds its records; `spec` the sequence that its spec had. From `keep_seconds` after it was stored (0: never) its key
    may be used again. `dropped`: a dead task that a person took off the list."""

    state: State
    reason: Annotated[str, Meta(max_length=2_000)]
    spec: Seq
    final: Seq
    tenant: Token
    key: Annotated[str, Meta(max_length=256)] | None = None
    spec_digest: Digest | None = None
    archive: Digest | None = None
    usage: Usage = Usage()
    keep_seconds: Count = 0
    dropped: bool = False


class TenantLimits(Wire, frozen=True):
    """`concurrency`: steps under way at once; `budget`: of all its tasks together. None: no limit."""

    concurrency: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    budget: Budget | None = None


class BoardLimits(Wire, frozen=True):
    """What the leader may have under way at once, over what the contracts say, and its agenda's weights. The last
    record counts, from the next decision on."""

    roles: dict[Token, Annotated[int, Meta(ge=0, le=10_000)]] = msgspec.field(default_factory=dict)
    tenants: dict[Token, TenantLimits] = msgspec.field(default_factory=dict)
    steps_per_task: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    weights: dict[Token, Annotated[float, Meta(ge=-1e9, le=1e9)]] = msgspec.field(default_factory=dict)


class Intake(Wire, frozen=True):
    """Whether new tasks are taken. Written by the leader when the store passes its high-water mark, and when it is
    below it again."""

    open: bool
    used_bytes: Count = 0
    limit_bytes: Count = 0


class RegisteredKind(Wire, frozen=True):
    """A user's artifact kind: `schema` is JSON Schema 2020-12."""

    kind: Token
    version: Annotated[int, Meta(ge=1, le=10_000)]
    schema: msgspec.Raw


class RegisteredRole(Wire, frozen=True):
    """A user's role: its contract, as TOML."""

    role: Token
    contract: Text


class Snapshot(Wire, frozen=True):
    """A fold's state up to `position`, kept as a payload, so that a restart need not read everything. `record` is the
    id of the record at that position: the log decides whether the snapshot fits it."""

    payload: Digest
    position: Seq
    record: Annotated[str, Meta(max_length=64)]
    format: Annotated[str, Meta(max_length=64)]


class Lease(Wire, frozen=True):
    """Leadership. The record expires by the server's own clock (`Nats-TTL`); whoever writes the next one leads."""

    supervisor: Annotated[str, Meta(max_length=128)]


class Epoch(Wire, frozen=True):
    """A new leader's fence for one shard. This record's sequence must be cited by every decision in the shard."""

    supervisor: Annotated[str, Meta(max_length=128)]
    shard: Annotated[int, Meta(ge=0, le=1_023)]
