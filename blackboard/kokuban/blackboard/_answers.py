"""What the client answers when people ask about a task, or say something to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kokuban.blackboard.core import Artifact, Task, ancestors, descendants
from kokuban.blackboard.core.lineage import current, stale
from kokuban.schemas import Decision, Gate, Ref, Vote


@dataclass(frozen=True, slots=True)
class Told:
    """What a person said to a task is stored, at sequence `seq`. The supervisor acts on it."""

    task: str
    person: str
    seq: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The task had ended before, so that what a person said to it counts for nothing. `landed`: it is stored all the
    same, because the end came in between; False: nothing was written."""

    task: str
    state: str
    reason: str
    landed: bool = False


@dataclass(frozen=True, slots=True)
class Voted:
    """The vote is stored, at sequence `seq`; the supervisor counts it. `again`: this person had said the same before,
    and nothing new was written."""

    task: str
    gate: str
    person: str
    seq: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class NotVoted:
    """The vote counts for nothing: the gate is `decided`, this person has `voted` otherwise before, the gate has
    `changed` since it was seen, or its task has `ended`. `text` says it in words. `landed`: the vote is stored all the
    same, because the decision came in between; False: nothing was written."""

    task: str
    gate: str
    why: Literal["decided", "voted", "changed", "ended"]
    text: str
    landed: bool = False


@dataclass(frozen=True, slots=True)
class Approval:
    """A gate as a person needs to see it. `bound` is its digest, `since` and `until` are seconds since 1970 by the
    server's clock (`until` None: it never expires). `step` and `worker` asked; both are '' for an artifact's."""

    task: str
    gate: Gate
    bound: str
    role: str
    step: str
    worker: str
    since: float
    until: float | None
    votes: dict[str, Vote]
    decision: Decision | None

    @property
    def id(self) -> str:
        return self.gate.id


@dataclass(frozen=True, slots=True)
class Kin:
    """An artifact in a lineage. `current`: it is among the last results of its step; `stale`: what it derives from was
    replaced."""

    ref: Ref
    role: str
    current: bool
    stale: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where an artifact comes from and what came of it, nearest first. `outside` are digests among what it derives from
    that are no artifacts of the task."""

    task: str
    artifact: Kin
    ancestors: tuple[Kin, ...]
    descendants: tuple[Kin, ...]
    outside: tuple[str, ...]


def approvals_of(task: Task) -> list[Approval]:
    """Every gate of a task, oldest first."""
    found = []
    for state in task.gates.values():
        step = task.steps.get(state.step)
        seconds = state.gate.expires_seconds
        until = state.time + seconds if seconds is not None else None
        found.append(
            Approval(
                task.id, state.gate, state.bound, state.role, state.step, step.worker if step else "", state.time,
                until, dict(state.votes), state.decision,
            )
        )  # fmt: skip
    return sorted(found, key=lambda a: a.since)


def lineage_of(task: Task, artifact: Artifact) -> Lineage:
    """The lineage of one of a task's artifacts."""
    now, old = current(task), stale(task.artifacts, current(task))

    def kin(digest: str) -> Kin:
        found = task.artifacts[digest]
        return Kin(found.ref, found.role, digest in now, digest in old)

    above = ancestors(artifact.ref.digest, task.artifacts)
    return Lineage(
        task.id,
        kin(artifact.ref.digest),
        tuple(kin(d) for d in above if d in task.artifacts),
        tuple(kin(d) for d in descendants(artifact.ref.digest, task.artifacts)),
        tuple(d for d in above if d not in task.artifacts),
    )
