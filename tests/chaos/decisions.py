"""What stored records must say when several supervisors took turns: a checker of its own, of which neither the fold nor
the audit knows. It reads JSON and counts.

It holds for boards without gates and archives. `Message` is (sequence, subject, server time in seconds, bytes).
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHARDS = 16


class Message(NamedTuple):
    """A stored record."""

    seq: int
    subject: str
    time: float
    data: bytes


@dataclass(frozen=True)
class Limits:
    """Steps under way at once, by role, by tenant, and of one task."""

    roles: Mapping[str, int]
    tenants: Mapping[str, int]
    per_task: int


@dataclass
class _Step:
    role: str
    attempt: int = 0
    ordered: int = 0  # the sequence of its order while that is open
    claimed: int = 0  # of its claim, likewise


@dataclass
class Decisions:
    """The history so far. `wrong` has a line for each broken rule, `orders` and `ends` count what was decided, `most`
    holds the greatest number of steps that were ever under way, by limit."""

    limits: Limits
    wrong: list[str] = field(default_factory=list)
    orders: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    epochs: dict[int, tuple[int, str]] = field(default_factory=dict)
    leaders: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._steps: dict[tuple[str, str], _Step] = {}
        self._running: dict[tuple[str, str], _Step] = {}
        self._tenants: dict[str, str] = {}
        self._attempts: set[tuple[str, str, int]] = set()
        self._final: dict[str, int] = {}

    def read(self, messages: Sequence[Message]) -> Decisions:
        """Read a whole board in sequence order."""
        for message in messages:
            parts, record = message.subject.split("."), json.loads(message.data)
            if parts[:3] == ["kb", "ctl", "epoch"]:
                self._epoch(int(parts[3]), message.seq, record["worker"])
            elif parts[1] == "task":
                self._task(message.seq, parts, record)
        for task in self._tenants.keys() - self._final.keys():
            self.wrong.append(f"task {task} was accepted and has not ended")
        self.wrong += [f"step {task}/{name} is still under way at the end" for task, name in self._running]
        return self

    def _epoch(self, shard: int, seq: int, worker: str) -> None:
        self.epochs[shard] = (seq, worker)
        if worker not in self.leaders[-1:]:
            self.leaders.append(worker)

    def _task(self, seq: int, parts: list[str], record: dict[str, Any]) -> None:
        task, kind = parts[2], parts[3]
        if kind == "spec":
            self._tenants[task] = record["body"].get("tenant", "default")
        elif kind == "work":
            if self._may(seq, task, record):
                self._order(seq, task, parts[4], parts[5], record)
        elif kind == "final":
            if self._may(seq, task, record):
                self._final[task] = seq
                self.ends[record["body"]["state"]] += 1
                for other, name in self._running:
                    if other == task:
                        self.wrong.append(f"{seq}: task {task} ended while step {name} was under way")
        elif kind == "step":
            self._register(seq, task, parts[5], record)

    def _may(self, seq: int, task: str, record: dict[str, Any]) -> bool:
        """In turn, by the leader, before the end, and about a task that was accepted."""
        what = f"{seq}: {record['type']} of task {task}"
        epoch, leader = self.epochs.get(zlib.crc32(task.encode()) % SHARDS, (0, ""))
        if record.get("fence") != epoch:
            self.wrong.append(f"{what} is out of turn: it cites epoch {record.get('fence')}, in force is {epoch}")
        elif record["worker"] != leader:
            self.wrong.append(f"{what} is by {record['worker']}, the epoch is {leader}'s")
        if task in self._final:
            self.wrong.append(f"{what} comes after the end at {self._final[task]}")
            return False
        if task not in self._tenants:
            self.wrong.append(f"{what}, which nobody submitted")
            return False
        return True

    def _order(self, seq: int, task: str, role: str, name: str, record: dict[str, Any]) -> None:
        self.orders += 1
        step = self._steps.setdefault((task, name), _Step(role))
        attempt = record["attempt"]
        if (task, name, attempt) in self._attempts:
            self.wrong.append(f"{seq}: attempt {attempt} of step {task}/{name} is ordered twice")
        elif attempt != step.attempt + 1:
            self.wrong.append(f"{seq}: attempt {attempt} of step {task}/{name} follows {step.attempt}")
        if step.ordered:
            self.wrong.append(f"{seq}: step {task}/{name} is ordered while it is under way")
        self._attempts.add((task, name, attempt))
        step.attempt, step.ordered, step.claimed = attempt, seq, 0
        self._running[(task, name)] = step
        self._count(seq)

    def _count(self, seq: int) -> None:
        """How much is under way at this sequence; only an order can make it more."""
        roles, tenants, tasks = Counter[str](), Counter[str](), Counter[str]()
        for (task, _), step in self._running.items():
            roles[step.role] += 1
            tenants[self._tenants[task]] += 1
            tasks[task] += 1
        for what, counted, limits in (
            ("role", roles, self.limits.roles),
            ("tenant", tenants, self.limits.tenants),
            ("task", tasks, dict.fromkeys(tasks, self.limits.per_task)),
        ):
            for name, count in counted.items():
                label = f"{what} {name}" if what != "task" else "a task"
                self.most[label] = max(self.most[label], count)
                if name in limits and count > limits[name]:
                    self.wrong.append(
                        f"{seq}: {count} steps of {what} {name} are under way, the limit is {limits[name]}"
                    )

    def _register(self, seq: int, task: str, name: str, record: dict[str, Any]) -> None:
        """A claim, an owner's commit, or the leader who takes the step back. What does not fit counts for nothing."""
        step = self._running.get((task, name))
        if step is None:
            return
        kind, fence = record["type"], record.get("fence")
        if kind == "step.claimed":
            if not step.claimed and record["body"]["order"] == step.ordered:
                step.claimed = seq
        elif kind in ("step.released", "step.revoked"):
            if fence == self.epochs.get(zlib.crc32(task.encode()) % SHARDS, (0, ""))[0]:
                self._ended(task, name, step)
        elif fence == step.claimed:
            self._ended(task, name, step)

    def _ended(self, task: str, name: str, step: _Step) -> None:
        step.ordered = 0
        del self._running[(task, name)]
