"""Reading one stored message: its address, its envelope, its body with the exact text of each part."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Any

from ._export import Message
from ._slices import BadJson, digest, elements, members, parse

KNOWN_VERSION = 2
SHARDS = 16
TYPES = {
    "spec": ("task.spec", "task.tombstone"),
    "work": ("step.order",),
    "step": ("step.claimed", "step.done", "step.failed", "step.waiting", "step.released", "step.revoked"),
    "journal": ("step.journal",),
    "grant": ("step.granted",),
    "artifact": ("artifact",),
    "gate.request": ("gate.request",),
    "gate.vote": ("gate.vote",),
    "gate.decision": ("gate.decision",),
    "control": ("task.control",),
    "ending": ("task.ending",),
    "final": ("task.final",),
    "buried": ("task.tombstone",),
}
_TOKEN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")


class BadRecord(ValueError):
    """Bytes that are no sound record."""


@dataclass
class Rec:
    """A record: where it stands (`kind`, `task`, `role`, `step`, `rest`), its envelope, its body. `raw` is the exact
    text of the body, `parts` that of its members."""

    seq: int
    time: float
    kind: str
    task: str
    role: str
    step: str
    rest: tuple[str, ...]
    envelope: dict[str, Any]
    body: dict[str, Any]
    raw: str
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return str(self.envelope.get("type", ""))

    @property
    def fence(self) -> int:
        return _int(self.envelope.get("fence", 0))

    @property
    def attempt(self) -> int:
        return _int(self.envelope.get("attempt", 0))

    @property
    def version(self) -> int:
        return _int(self.envelope.get("version", 1))

    @property
    def worker(self) -> str:
        return str(self.envelope.get("worker") or "")

    def items(self, name: str) -> list[Any]:
        """A member of the body that is an array, [] without it."""
        value = self.body.get(name)
        return value if isinstance(value, list) else []

    def texts(self, name: str) -> list[str]:
        """The exact texts of an array's elements."""
        return elements(self.parts[name]) if name in self.parts else []


def address(subject: str) -> tuple[str, str, str, str, tuple[str, ...]] | None:
    """Kind, task, role, step and what follows of a task's subject; None for any other."""
    parts = subject.split(".")
    if len(parts) < 4 or parts[:2] != ["kb", "task"] or not all(map(_TOKEN.match, parts)):
        return None
    task, kind, rest = parts[2], parts[3], tuple(parts[4:])
    if kind in ("spec", "ending", "final", "buried") and not rest:
        return kind, task, "", "", ()
    if kind in ("work", "step", "journal", "grant") and len(rest) == 2:
        return kind, task, rest[0], rest[1], ()
    if kind == "artifact" and len(rest) == 4:
        return kind, task, rest[0], "", rest[1:]
    if kind == "control" and len(rest) == 2:
        return kind, task, "", "", rest
    if kind == "gate" and len(rest) >= 3 and len(rest) == {"request": 3, "decision": 3, "vote": 4}.get(rest[2]):
        return f"gate.{rest[2]}", task, rest[0], "", (rest[1], *rest[3:])
    return None


def shard(task: str) -> int:
    """The epoch shard of a task."""
    return zlib.crc32(task.encode()) % SHARDS


def read(message: Message) -> Rec:
    """Read a message. Raises `BadRecord`."""
    at = address(message.subject) or ("", "", "", "", ())
    try:
        text = message.data.decode()
        slices = members(text)
        raw = slices.pop("body", "")
        envelope = {name: parse(value) for name, value in slices.items()}
        body = parse(raw)
        parts = members(raw) if isinstance(body, dict) else {}
    except (BadJson, UnicodeDecodeError) as error:
        raise BadRecord(f"not readable: {error}") from error
    if not isinstance(body, dict):
        raise BadRecord("its body is no object")
    rec = Rec(message.seq, message.time, *at, envelope, body, raw, parts)
    if rec.version > KNOWN_VERSION:
        raise BadRecord(f"its schema version {envelope.get('version')} is newer than {KNOWN_VERSION}, which this knows")
    if digest(raw) != envelope.get("sha256"):
        raise BadRecord("its sha256 is not that of its body")
    if not isinstance(envelope.get("id"), str) or not envelope["id"]:
        raise BadRecord("it has no operation id")
    if rec.kind:
        _agrees(rec)
    return rec


def _agrees(rec: Rec) -> None:
    if rec.type not in TYPES[rec.kind]:
        raise BadRecord(f"its type {rec.type!r} does not belong on a subject of kind {rec.kind}")
    for name, wanted in (("task", rec.task), ("role", rec.role), ("step", rec.step)):
        if wanted and (rec.envelope.get(name) or "") != wanted:
            raise BadRecord(f"its envelope says {name} {rec.envelope.get(name)!r}, its subject {wanted!r}")


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
