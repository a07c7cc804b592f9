"""Several tasks of several tenants on one board, with the one leader that decides about them all: as data, like the
simulator of one task, and for what only shows between tasks (budgets, fairness, ends that reach others)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from core import contents
from core.history import History, Stream
from kokuban.blackboard.core import Applied, Board, Step, Task
from kokuban.schemas import Allotment, BoardLimits, Epoch, Final, Intake, Lease, Plan, Usage, Wire, seal, subjects
from kokuban.schemas.contracts import Crew, builtin_crew
from kokuban.supervisor import (
    Agenda,
    Allow,
    Ask,
    Begin,
    Command,
    Decide,
    End,
    Limits,
    Offer,
    Order,
    Release,
    Revoke,
    decide,
)
from kokuban.supervisor._budget import Short
from kokuban.supervisor._room import Room
from kokuban.supervisor.decide import fitted

ONE = contents.plan(("write", "coder", ()))
TIME = "2026-01-01T00:00:00.000+00:00"


class World:
    """The tasks by name, and what the leader has done. `lead` makes another leader; `round` lets it decide once about
    every task; `settle` goes on until it has nothing more to say. `pedantic` looks whether a decision changes the
    board."""

    def __init__(self, *, crew: Crew | None = None, limits: Limits | None = None, pedantic: bool = True) -> None:
        self.pedantic = pedantic
        self.stream = Stream(Board())
        self.board = self.stream.board
        self.crew = crew or builtin_crew()
        self.of: dict[str, History] = {}
        self.commands: list[tuple[str, Command]] = []
        self.agenda = Agenda()
        self.room = Room(self.board, limits or Limits())
        self.lead()

    # ------------------------------------------------------------------ records about the board

    def lead(self, supervisor: str = "s-1") -> None:
        """A new leader: it decides from the board alone."""
        self.control(subjects.LEASE, Lease(supervisor), "ctl.lease")
        for shard in range(subjects.EPOCH_SHARDS):
            self.control(subjects.epoch(shard), Epoch(supervisor, shard), "ctl.epoch")
        for history in self.of.values():
            history.fence = self.board.epoch_of(history.task)
        self.agenda = Agenda()

    def control(self, subject: str, body: Wire, kind: str) -> Applied:
        return self.stream.put(subject, seal(body, type=kind, id=f"op-{self.stream.last + 1}", time=TIME))

    def limits(self, **fields: Any) -> None:
        """The board's limits, all of them."""
        assert not self.control(subjects.LIMITS, BoardLimits(**fields), "ctl.limits").ignored

    def intake(self, *, open: bool) -> None:
        assert not self.control(subjects.INTAKE, Intake(open), "ctl.intake").ignored

    def pass_time(self, seconds: float) -> None:
        self.stream.skipped += seconds

    # ------------------------------------------------------------------ tasks

    def submit(self, name: str, *, parent: str | None = None, **spec: Any) -> History:
        """A task; one that is written again changes nothing."""
        history = History(name, stream=self.stream)
        history.spec(contents.spec(**spec), parent=parent)
        return self.of.setdefault(name, history)

    def planned(self, name: str, plan: Plan = ONE, *, parent: str | None = None, **spec: Any) -> History:
        """A task whose plan is made."""
        history = self.submit(name, parent=parent, **spec)
        self.settle()
        self.work(name, "plan", ("plan", plan))
        self.settle()
        return history

    def task(self, name: str) -> Task:
        return self.board.tasks[name]

    def step(self, name: str, step: str) -> Step:
        return self.board.tasks[name].steps[step]

    def final(self, name: str) -> Final:
        final = self.board.tasks[name].final
        assert final is not None, {s.id: (s.status, s.reasons) for s in self.board.tasks[name].steps.values()}
        return final

    def claim(self, name: str, step: str) -> None:
        if self.step(name, step).status == "ordered":
            assert not self.of[name].claim(step).ignored

    def work(self, name: str, step: str, *outputs: tuple[str, Wire], usage: Usage = Usage()) -> None:
        """Claim what is ordered, and commit."""
        self.claim(name, step)
        applied = self.of[name].done(step, *outputs, usage=usage)
        assert applied.admitted, (applied.ignored, applied.refused)

    def verify(self, name: str, step: str, *, passed: bool = True) -> None:
        """Judge what the verifying step was asked to judge."""
        order = self.step(name, step).order
        assert order is not None
        refs = [ref for ref in order.inputs if ref.digest in order.judges]
        self.work(name, step, *((f"v-{ref.name}", contents.verdict(ref, passed, reasons=("no",))) for ref in refs))

    def finish(self, name: str) -> Final:
        """Honest workers do all that is left of a task of one `write` step."""
        for _ in range(50):
            self.settle()
            task = self.task(name)
            if task.final is not None:
                return task.final
            running = [step for step in task.steps.values() if step.running]
            assert running, {s.id: (s.status, s.reasons) for s in task.steps.values()}
            for step in running:
                self.honest(name, step)
        raise AssertionError("it does not end")

    def honest(self, name: str, step: Step) -> None:
        assert step.order is not None
        if step.role == "verifier":
            self.verify(name, step.id)
        elif step.role == "planner":
            self.work(name, step.id, ("plan", ONE))
        elif step.role == "integrator":
            self.work(name, step.id, ("result", contents.deliverable(step.order.inputs)))
        elif step.role == "researcher":
            self.work(name, step.id, ("fact", contents.finding(f"{name} {step.id} {step.attempt}")))
        else:
            self.work(name, step.id, ("change", contents.patch(f"{name} {step.id} {step.attempt}")))

    # ------------------------------------------------------------------ the leader

    def decide(self, name: str) -> list[Command]:
        """What the leader would do about one task now; nothing is done."""
        return decide(self.board, self.task(name), self.crew, self.stream.now, self.room.promised).commands

    def round(self) -> list[tuple[str, Command]]:
        """One decision about every task, as the shell makes them: all are made before any is stored."""
        done: list[tuple[str, Command]] = []
        for name in list(self.board.tasks):
            before = copy.deepcopy(self.board) if self.pedantic and len(self.board.tasks) < 12 else None
            commands, offers = decide(
                self.board, self.task(name), self.crew, self.stream.now, self.room.promised
            )  # fmt: skip
            assert before is None or before == self.board, "a decision changes nothing"
            self.agenda.put(self.task(name), offers, self.board.limits.weights, self.stream.now)
            for command in commands:
                if isinstance(command, Allow):
                    self.room.promise(name, command.step, command.role, command.allotment)
                done.append((name, command))
        for role in self.crew:
            done += self._filled(role)
        for name, command in done:
            self.carry_out(name, command)
        self.commands += done
        return done

    def _filled(self, role: str) -> list[tuple[str, Command]]:
        under_way = self.room.by_tenant()
        found: list[tuple[str, Command]] = []
        while self.room.of_role(role, self.crew) > 0:
            offer = self.agenda.pick(
                role, under_way, lambda tenant: self.room.is_full(tenant, under_way),
                lambda offer: self.room.of_task(offer.task) > 0,
            )  # fmt: skip
            if offer is None:
                break
            found += self._given(offer, under_way)
        return found

    def _given(self, offer: Offer, under_way: Any) -> list[tuple[str, Command]]:
        task = self.task(offer.task)
        order = fitted(self.board, task, self.crew, offer, self.room.promised)
        if isinstance(order, Short):
            return []
        self.room.promise(task.id, order.step, order.role, order.order.allotment)
        under_way[task.tenant] += 1
        return [(task.id, order)]

    def settle(self) -> list[tuple[str, Command]]:
        """Rounds until the leader has nothing to say."""
        found: list[tuple[str, Command]] = []
        for _ in range(60):
            done = self.round()
            if not done:
                return found
            found += done
        raise AssertionError(f"the leader never rests: {done}")

    def carry_out(self, name: str, command: Command) -> Applied:
        """Store a decision as the shell does."""
        history, task = self.of[name], self.task(name)
        if isinstance(command, Order):
            applied = history.order(command.step, command.role, order=command.order, attempt=command.attempt)
        elif isinstance(command, End):
            applied = history.final(command.body)
        elif isinstance(command, Release | Revoke):
            assert task.registers.get((command.role, command.step), 0) == command.reg
            kind = "step.released" if isinstance(command, Release) else "step.revoked"
            applied = history.write(
                subjects.register(name, command.role, command.step), command.body, kind,
                step=command.step, role=command.role, fence=history.fence,
            )  # fmt: skip
        else:
            assert isinstance(command, Allow | Ask | Begin | Decide)
            applied = history.decided(command)
        assert not applied.ignored, (command, applied.ignored)
        if isinstance(command, Order | Allow):
            self.room.kept(name, command.step)
        return applied


def allotments(commands: list[tuple[str, Command]]) -> dict[tuple[str, str], Allotment]:
    """What each order gave, by task and step."""
    return {(name, c.step): c.order.allotment for name, c in commands if isinstance(c, Order)}


def ends(world: World) -> Mapping[str, str]:
    """How each task ended, '' for one that is open."""
    return {name: task.final.state if task.final else "" for name, task in world.board.tasks.items()}
