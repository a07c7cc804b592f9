"""Every NATS name Kokuban uses: subjects, the stream, consumers, buckets. Nothing else in the project spells one.

The board (`kb.>`) is stored and true. The live space (`kl.>`) is core NATS: hints that may be lost.
A token (task, step, role, kind, name) is `[a-z0-9][a-z0-9_-]*`, at most 64 characters, so it can never widen a subject.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

BOARD = "BOARD"  # the stream
BOARD_SUBJECTS = "kb.>"
PAYLOADS = "KOKUBAN_PAYLOADS"  # the object store for content above the inline limit
CONTROL = "CONTROL"  # the stream of what tenants share: limits of model endpoints, and who holds their slots
CONTROL_SUBJECTS = "kc.>"
LEASE = "kb.ctl.lease"
LIMITS = "kb.ctl.limits"  # what the leader may have under way at once, and how it rates what could run next
INTAKE = "kb.ctl.intake"  # whether new tasks are taken
SNAPSHOT = "kb.ctl.snapshot"
REGISTERED_KINDS = "kb.ctl.kind.>"
REGISTERED_ROLES = "kb.ctl.role.>"
EPOCH_SHARDS = 16
HINTS = "kl.hint"  # where the server republishes the headers of stored records
HEARTBEATS = "kl.heartbeat"  # `kl.heartbeat.<role>.<worker>`
ANNOUNCEMENTS = "kl.artifact"  # `kl.artifact.<task>.<kind>.<name>`
STOPPED = "kl.stopped"  # `kl.stopped.<task>.<role>.<step>`: its worker let go of it, with everything it had started
DELTAS = "kl.delta"  # `kl.delta.<task>.<role>.<step>`: what a model is saying right now

SERVER_API = "$JS.API"  # where JetStream is asked about the streams of one's own account
MEMBERS_API = "$JS.board.API"  # the same for who is not in the board's account, so has no JetStream of their own
CONTROL_API = "$JS.control.API"  # about the stream CONTROL, when that lies in an account of its own
ACKS = "$JS.ACK"

TOKEN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
"""As JSON Schema writes it (ECMA 262)."""
TOKEN_PYTHON = TOKEN[:-1] + r"\Z"
"""The same for Python, whose `$` also matches before a final newline."""
_TOKEN = re.compile(TOKEN_PYTHON)


class InvalidName(ValueError):
    """A name that cannot be part of a subject. Nothing was written."""


def token(value: str, field: str) -> str:
    """Return `value` when it may stand in a subject; raise `InvalidName` naming `field` otherwise."""
    if not _TOKEN.match(value):
        raise InvalidName(
            f"{field}: {value[:80]!r} is not a name: use 1 to 64 of a-z, 0-9, '-' and '_', a letter or digit first"
        )
    return value


class Address(NamedTuple):
    """A board subject, parsed. `kind` is spec, work, step, journal, grant, artifact, gate, control, final or buried;
    tokens not in it are ''. `rest` is what follows: kind, name and fence of an artifact; the gate and request, decision
    or vote and person; person and id of a control."""

    kind: str
    task: str
    role: str = ""
    step: str = ""
    rest: tuple[str, ...] = ()


def spec(task: str) -> str:
    return f"kb.task.{task}.spec"


def work(task: str, role: str, step: str) -> str:
    return f"kb.task.{task}.work.{role}.{step}"


def register(task: str, role: str, step: str) -> str:
    """The step register: one compare-and-set chain that says who owns the step."""
    return f"kb.task.{task}.step.{role}.{step}"


def journal(task: str, role: str, step: str) -> str:
    return f"kb.task.{task}.journal.{role}.{step}"


def artifact(task: str, role: str, kind: str, name: str, fence: int | str) -> str:
    """`fence` may be `*`, to read what several owners stored."""
    return f"kb.task.{task}.artifact.{role}.{kind}.{name}.{fence}"


def grant(task: str, role: str, step: str) -> str:
    """Where the leader answers an owner that asked for more."""
    return f"kb.task.{task}.grant.{role}.{step}"


def gate_request(task: str, role: str, gate: str) -> str:
    return f"kb.task.{task}.gate.{role}.{gate}.request"


def gate_vote(task: str, role: str, gate: str, person: str) -> str:
    """One record a person: the second one is refused by the server."""
    return f"kb.task.{task}.gate.{role}.{gate}.vote.{person}"


def gate_decision(task: str, role: str, gate: str) -> str:
    return f"kb.task.{task}.gate.{role}.{gate}.decision"


def control(task: str, person: str, name: str) -> str:
    """What a person says to a running task: cancel, a fact."""
    return f"kb.task.{task}.control.{person}.{name}"


def ending(task: str) -> str:
    """Where the leader says that a task is about to end, and how."""
    return f"kb.task.{task}.ending"


def final(task: str) -> str:
    return f"kb.task.{task}.final"


def buried(task: str) -> str:
    """Where the leader says that an ended task is archived. The same words on the spec's subject only keep its key."""
    return f"kb.task.{task}.buried"


MEMORY = "kb.mem."
"""What the subjects of every tenant's memory begin with."""


def memory(tenant: str, name: str, word: str, who: str = "") -> str:
    """A record of a tenant's memory: `word` is proposed or judged, with who says so (`role-coder`, `person-ann`), or
    forgotten, which is the same whoever says it."""
    return f"kb.mem.{tenant}.{name}.{word}{f'.{who}' if who else ''}"


def memories(tenant: str, name: str = "") -> str:
    """The filter that matches what is said about one memory of a tenant, or about all of them."""
    return f"kb.mem.{tenant}.{name}.>" if name else f"kb.mem.{tenant}.>"


def task_records(task: str) -> str:
    """The filter that matches every record of one task."""
    return f"kb.task.{task}.>"


def orders_for(role: str) -> str:
    """The filter of a role's durable consumer."""
    return f"kb.task.*.work.{role}.*"


def consumer(role: str) -> str:
    """The durable consumer that a role's workers share."""
    return role


def shard(task: str) -> int:
    """The epoch shard of a task, 0 to `EPOCH_SHARDS` - 1: CRC-32 of the task id, so any language can compute it."""
    return zlib.crc32(task.encode()) % EPOCH_SHARDS


def epoch(shard_number: int) -> str:
    return f"kb.ctl.epoch.{shard_number}"


def kind(name: str, version: int) -> str:
    """Where a user's artifact kind is registered, one record a version."""
    return f"kb.ctl.kind.{name}.{version}"


def contract(role: str) -> str:
    """Where a user's role is registered."""
    return f"kb.ctl.role.{role}"


def endpoint(name: str) -> str:
    """Who holds the slots of a model endpoint: one compare-and-set chain."""
    return f"kc.endpoint.{name}"


def endpoint_limits(name: str) -> str:
    return f"kc.limits.{name}"


def stopped(task: str, role: str, step: str) -> str:
    return f"{STOPPED}.{task}.{role}.{step}"


def heartbeat(role: str, worker: str) -> str:
    return f"{HEARTBEATS}.{role}.{worker}"


def announcement(task: str, kind: str, name: str) -> str:
    return f"{ANNOUNCEMENTS}.{task}.{kind}.{name}"


def delta(task: str, role: str, step: str) -> str:
    return f"{DELTAS}.{task}.{role}.{step}"


_LENGTHS = {"spec": 4, "final": 4, "buried": 4, "ending": 4, "work": 6, "step": 6, "journal": 6, "grant": 6}
_GATE_RECORDS = {"request": 7, "decision": 7, "vote": 8}


def parse(subject: str) -> Address | None:
    """Read a board subject. None for anything the grammar does not know, control subjects included."""
    parts = subject.split(".")
    if len(parts) < 4 or parts[0] != "kb" or parts[1] != "task" or not all(map(_TOKEN.match, parts)):
        return None
    task, kind = parts[2], parts[3]
    if _LENGTHS.get(kind) == len(parts):
        role, step = parts[4:6] or ("", "")
        return Address(kind, task, role, step)
    if kind == "artifact" and len(parts) == 8:
        return Address(kind, task, parts[4], rest=tuple(parts[5:]))
    if kind == "control" and len(parts) == 6:
        return Address(kind, task, rest=tuple(parts[4:]))
    if kind == "gate" and len(parts) >= 7 and _GATE_RECORDS.get(parts[6]) == len(parts):
        return Address(kind, task, parts[4], rest=tuple(parts[5:]))
    return None
