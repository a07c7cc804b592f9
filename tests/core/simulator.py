"""A whole team as data: the fold, `decide` and workers that answer with artifacts, without NATS, clock or process.

Every decision is checked as it falls: made twice it is the same, it changes nothing it was given, it keeps the limits,
and what it writes counts. A task that can go no further without having ended is a failure, and so is a `done` that is
not proven (invariant 9).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from core import contents
from core.history import History, Output
from kokuban.blackboard.core import Applied, Artifact, Task
from kokuban.schemas import Deliverable, Failed, Plan, Ref, TaskSpec, Verdict, WorkOrder, subjects
from kokuban.schemas.contracts import Crew, builtin_crew
from kokuban.schemas.kinds import decode_artifact
from kokuban.supervisor import Agenda, Command, End, Limits, Offer, Order, Release, Revoke, decide
from kokuban.supervisor._budget import Short
from kokuban.supervisor._room import Room
from kokuban.supervisor.decide import fitted

MOST_COMMANDS = 1_500


class Job(NamedTuple):
    """What a worker sees of its step, and the task as it stands."""

    step: str
    role: str
    attempt: int
    order: WorkOrder
    task: Task

    def refs(self, kind: str) -> list[Ref]:
        return [ref for ref in self.order.inputs if ref.kind == kind]


Act = Sequence[Output] | Failed | Literal["silent", "lost", "stuck", "junk"]
"""Commit these, give up, be released as silent or lost, outlive the deadline, or find junk on the register."""
Worker = Callable[[Job], Act]
Choose = Callable[[int], int]
"""Picks one of n: the order in which things happen."""


def honest(plan: Plan) -> dict[str, Worker]:
    """Workers that do what they are asked. Every attempt gives something new."""
    return {
        "planner": lambda job: [("plan", plan)],
        "researcher": lambda job: [("fact", contents.finding(f"{job.step} {job.attempt}"))],
        "coder": lambda job: [
            ("change", contents.patch(f"{job.step} {job.attempt}", onto=[ref.digest for ref in job.refs("patch")]))
        ],
        "verifier": lambda job: judged(job, lambda ref: True),
        "integrator": lambda job: [("result", contents.deliverable(job.order.inputs))],
    }


def judged(job: Job, passes: Callable[[Ref], bool]) -> list[Output]:
    """A verdict on everything asked for, with a critique of what fails."""
    found: list[Output] = []
    for ref in job.order.inputs:
        if ref.digest in job.order.judges:
            name = f"{ref.kind}-{ref.name}"
            found.append((name, contents.verdict(ref, passes(ref), reasons=() if passes(ref) else ("wrong",))))
            if not passes(ref):
                found.append((name, contents.critique(ref, f"mend {ref.step} {ref.digest[-6:]}")))
    return found


@dataclass
class Simulator:
    """Runs one task to its end. `commands` is all that was decided; `orders` the orders among them by step."""

    workers: Mapping[str, Worker]
    spec: TaskSpec = field(default_factory=contents.spec)
    crew: Crew = field(default_factory=builtin_crew)
    limits: Limits = field(default_factory=Limits)
    choose: Choose = lambda n: 0
    interleave: bool = False
    commands: list[Command] = field(default_factory=list)
    together: set[frozenset[str]] = field(default_factory=set)
    admitted: dict[str, Artifact] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.history = History()
        self.history.lead()
        assert not self.history.spec(self.spec).ignored
        self.task = self.history.board.tasks["t-1"]

    def orders(self, step: str) -> list[Order]:
        return [command for command in self.commands if isinstance(command, Order) and command.step == step]

    def run(self) -> Task:
        """To the end; returns the task."""
        while self.task.final is None:
            commands, waiting = self.decide()
            for command in commands:
                if self.interleave and self.choose(3) == 0:
                    self.work()
                self.carry_out(command)
            if not commands and not self.work():
                raise AssertionError(f"stuck; {waiting} offers wait: {self.states()}")
            assert len(self.commands) < MOST_COMMANDS, self.states()
        return self.task

    def states(self) -> dict[str, str]:
        return {
            step.id: f"{step.status} {step.attempt} {'; '.join(step.reasons)[:80]}" for step in self.task.steps.values()
        }

    # ------------------------------------------------------------------ the leader

    def decide(self) -> tuple[list[Command], int]:
        """What the leader does now, and how many offers wait for room."""
        board, now = self.history.board, self.now or 1_000.0 + self.history.last
        before = copy.deepcopy(board)
        decided = decide(board, self.task, self.crew, now)
        assert decide(before, before.tasks[self.task.id], self.crew, now) == decided
        assert before == board
        room, agenda = Room(board, self.limits), Agenda()
        agenda.put(self.task, decided.offers, board.limits.weights, now)
        return [*decided.commands, *self._picked(room, agenda)], len(agenda)

    def _picked(self, room: Room, agenda: Agenda) -> list[Command]:
        """Fill the free slots, as the shell does."""
        picked: list[Command] = []
        for role in self.crew:
            while room.of_role(role, self.crew) > 0:
                under_way = room.by_tenant()
                offer = agenda.pick(
                    role, under_way, lambda tenant, now=under_way: room.is_full(tenant, now),  # type: ignore[misc]
                    lambda offer: room.of_task(offer.task) > 0,
                )  # fmt: skip
                if offer is None:
                    break
                picked += self._given(room, offer)
        return picked

    def _given(self, room: Room, offer: Offer) -> list[Command]:
        order = fitted(self.history.board, self.task, self.crew, offer, room.promised)
        if isinstance(order, Short):
            return []
        room.promise(self.task.id, order.step, order.role, order.order.allotment)
        return [order]

    def carry_out(self, command: Command) -> None:
        """Store the decision as the shell does: a compare-and-set on the register, or a fence on the epoch."""
        self.commands.append(command)
        history, task = self.history, self.task
        if isinstance(command, Order):
            assert command.order.tries < self.spec.attempts
            applied = history.order(
                command.step, command.role, order=command.order, attempt=command.attempt,
                derived_from=tuple(ref.digest for ref in command.order.inputs),
            )  # fmt: skip
            self.check_limits()
        elif isinstance(command, End):
            assert not any(step.running for step in task.steps.values()), "an unfinished step is sealed first"
            if command.body.state == "done":
                self.check_proven(command)
            applied = history.final(command.body)
        elif isinstance(command, Release | Revoke):
            register = task.registers.get((command.role, command.step), 0)
            if register != command.reg:
                assert self.interleave
                return
            kind = "step.released" if isinstance(command, Release) else "step.revoked"
            applied = history.write(
                subjects.register("t-1", command.role, command.step), command.body, kind,
                step=command.step, role=command.role, fence=history.fence,
            )  # fmt: skip
            self.now = 0.0
        else:
            applied = history.decided(command)
        assert self.interleave or not applied.ignored, (command, applied.ignored)

    def check_limits(self) -> None:
        running = [step for step in self.task.steps.values() if step.running]
        assert len(running) <= self.limits.steps_per_task
        for role, contract in self.crew.items():
            assert sum(step.role == role for step in running) <= contract.limits.concurrency
        self.together.add(frozenset(step.id for step in running))

    def check_proven(self, end: End) -> None:
        """Invariant 9, worked out from what was admitted and nothing else."""
        ref, by = end.body.deliverable, end.body.verdict
        assert ref is not None
        assert by is not None
        self._check_passed(ref.digest)
        deliverable = self._content(ref.digest)
        assert isinstance(deliverable, Deliverable)
        verdict = self._content(by.digest)
        assert isinstance(verdict, Verdict)
        assert (verdict.passed, verdict.subject.digest) == (True, ref.digest)
        cited = {cite.digest for cite in deliverable.cites}
        assert self.task.plan is not None
        for planned in self.task.plan.steps:
            step = self.task.steps[planned.id]
            assert step.status == "done"
            assert step.order is not None
            for needed in step.order.inputs:
                assert needed.digest in {a.ref.digest for a in self.task.steps[needed.step].results}, "stale"
            for artifact in step.results:
                assert artifact.ref.digest in cited
                self._check_passed(artifact.ref.digest)
        assert cited <= {a.ref.digest for p in self.task.plan.steps for a in self.task.steps[p.id].results}

    def _check_passed(self, digest: str) -> None:
        artifact, verdict = self.task.verdicts[digest]
        assert verdict.passed
        assert artifact.role != self.admitted[digest].role
        assert artifact.ref.digest in self.admitted

    def _content(self, digest: str) -> object:
        return decode_artifact(self.admitted[digest].ref.kind, self.admitted[digest].body)

    # ------------------------------------------------------------------ the owners

    def work(self) -> bool:
        """Let one running step go on. False when none runs."""
        running = sorted((step for step in self.task.steps.values() if step.running), key=lambda step: step.order_seq)
        if not running:
            return False
        step = running[self.choose(len(running))]
        assert step.order is not None
        act = self.workers[step.role](Job(step.id, step.role, step.attempt, step.order, self.task))
        if act == "junk":
            self._applied(self.history.put(subjects.register("t-1", step.role, step.id), b"junk"))
        elif step.status == "ordered" and act == "lost":
            self._applied(self.history.release(step.id, "lost"))
        elif step.status == "ordered":
            self._applied(self.history.claim(step.id))
        elif act == "stuck":
            self.now = step.claim_time + step.order.allotment.seconds + 31
        elif act in ("silent", "lost"):
            self._applied(self.history.release(step.id, "silent"))
        elif isinstance(act, Failed):
            self._applied(self.history.failed(step.id, act))
        else:
            outputs: Any = act
            self._applied(self.history.done(step.id, *outputs))
        return True

    def _applied(self, applied: Applied) -> None:
        for artifact in applied.admitted:
            self.admitted[artifact.ref.digest] = artifact
