"""Any mixture of valid and invalid writes, by several owners and leaders, keeps invariants 2, 3, 4 and 11."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET, Raw
from msgspec.structs import replace

from core import contents
from core.folding import plain
from core.history import History, folded, result_of
from kokuban.blackboard.core import Applied, Board
from kokuban.schemas import Claimed, Failed, Final, Opens, Settles, Usage, WorkOrder, digest, encode, subjects
from kokuban.schemas.kinds import problems

STEPS = {"look": "researcher", "write": "coder", "other": "coder"}
steps = st.sampled_from(list(STEPS))
sequences = st.integers(0, 60)


class Interleavings(RuleBasedStateMachine):
    """Writers that know the rules, and writers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.owners: dict[str, list[int]] = {name: [] for name in STEPS}

    @initialize()
    def begin(self) -> None:
        self.history.lead()
        self.history.spec()
        for name in STEPS:
            self.history.order(name, STEPS[name])

    @property
    def board(self) -> Board:
        return self.history.board

    def wrote(self, before: Board, applied: Applied) -> None:
        """An ignored record changed nothing but positions; nothing changes after the end."""
        if applied.ignored:
            assert plain(self.board) == plain(before)
            assert self.board.ignored == before.ignored + 1
        if before.tasks["t-1"].final is not None:
            assert applied.ignored or applied.record is None or applied.record.type.startswith("ctl.")
        if applied.record is not None and applied.record.type == "step.claimed" and not applied.ignored:
            self.owners[applied.record.step or ""].append(self.history.last)

    # ------------------------------------------------------------------ honest writers

    @rule(name=steps)
    def order(self, name: str) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.order(name, STEPS[name]))

    @rule(name=steps)
    def claim(self, name: str) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.claim(name, opens=Opens(1, "model")))

    @rule(name=steps, tokens=st.integers(0, 9))
    def journal(self, name: str, tokens: int) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.journal(name, settles=Settles(1, Usage(tokens))))

    @rule(name=steps, inline=st.booleans(), stored=st.booleans())
    def done(self, name: str, inline: bool, stored: bool) -> None:
        text = f"{name} {self.history.last}"
        made = contents.finding(text) if STEPS[name] == "researcher" else contents.patch(text)
        if stored:
            before = copy.deepcopy(self.board)
            self.wrote(before, self.history.store(name, ("it", made)))
        before = copy.deepcopy(self.board)
        applied = self.history.done(name, results=[result_of(("it", made), outside=not inline)])
        self.wrote(before, applied)
        if applied.admitted:
            assert inline or stored
            assert applied.admitted[0].body == encode(made)

    @rule(name=steps)
    def failed(self, name: str) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.failed(name, Failed("model", "no answer", usage=Usage(1))))

    @rule(name=steps)
    def released(self, name: str) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.release(name))

    @rule()
    def another_leader(self) -> None:
        self.history.lead(f"s-{self.history.last}")

    @precondition(lambda self: self.history.last > 35)
    @rule()
    def end(self) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.final())

    # ------------------------------------------------------------------ the others

    @rule(name=steps, fence=sequences, order=sequences, reg=sequences)
    def claim_of_anything(self, name: str, fence: int, order: int, reg: int) -> None:
        before = copy.deepcopy(self.board)
        self.wrote(before, self.history.claim(name, body=Claimed(order, reg), fence=fence, worker="w-9"))

    @rule(name=steps, fence=sequences)
    def late_done(self, name: str, fence: int) -> None:
        before = copy.deepcopy(self.board)
        stands = before.tasks["t-1"].steps.get(name)
        made = contents.finding("late") if STEPS[name] == "researcher" else contents.patch("late")
        applied = self.history.done(name, ("it", made), fence=fence)
        self.wrote(before, applied)
        if not applied.ignored:
            assert stands is not None
            assert (stands.status, stands.fence, stands.reg) == ("claimed", fence, fence)

    @rule(name=steps, lie=st.sampled_from(["kind", "digest", "schema", "absent", "twice", "none"]))
    def done_with_a_lie(self, name: str, lie: str) -> None:
        good = result_of(("it", contents.finding() if STEPS[name] == "researcher" else contents.patch()))
        bad = {
            "kind": [replace(good, kind="verdict")],
            "digest": [replace(good, digest=digest(b"else"))],
            "schema": [replace(good, body=Raw(b"{}"), digest=digest(b"{}"))],
            "absent": [replace(good, body=UNSET)],
            "twice": [good, good],
            "none": [],
        }[lie]
        before = copy.deepcopy(self.board)
        applied = self.history.done(name, results=bad)
        self.wrote(before, applied)
        assert applied.admitted == ()
        assert bool(applied.refused) is not bool(applied.ignored)

    @rule(name=steps, fence=sequences, reg=sequences, attempt=st.integers(0, 4))
    def order_of_anything(self, name: str, fence: int, reg: int, attempt: int) -> None:
        before = copy.deepcopy(self.board)
        order = WorkOrder(reg, 1, "go", ("verdict",))
        at = self.history.registers[name]
        was = (at.attempt, at.order, at.order_reg)
        applied = self.history.order(name, STEPS[name], order=order, fence=fence, attempt=attempt)
        self.wrote(before, applied)
        if not applied.ignored:
            assert fence == before.epoch_of("t-1")
            assert before.tasks["t-1"].steps[name].reg == reg
        else:
            assert (at.attempt, at.order, at.order_reg) == was

    @rule(name=steps, junk=st.sampled_from([b"", b"junk", b'{"version":2}', b"[" * 2_000]), where=st.integers(0, 3))
    def junk(self, name: str, junk: bytes, where: int) -> None:
        before = copy.deepcopy(self.board)
        of = (subjects.register, subjects.journal, subjects.work)
        subject = of[where]("t-1", STEPS[name], name) if where < 3 else subjects.final("t-1")
        self.wrote(before, self.history.put(subject, junk))

    @rule(name=steps, fence=sequences)
    def end_by_anybody(self, name: str, fence: int) -> None:
        before = copy.deepcopy(self.board)
        applied = self.history.final(Final("failed", "enough"), fence=fence)
        self.wrote(before, applied)
        if not applied.ignored:
            assert fence == before.epoch_of("t-1")

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def owners_follow_one_another(self) -> None:
        for name, step in self.board.tasks["t-1"].steps.items() if self.board.tasks else ():
            assert self.owners[name] == sorted(self.owners[name])
            if step.status == "claimed":
                assert step.fence == self.owners[name][-1]

    @invariant()
    def the_running_steps_are_counted(self) -> None:
        for role in set(STEPS.values()):
            counted = sum(s.running for t in self.board.tasks.values() for s in t.steps.values() if s.role == role)
            assert self.board.running[role] == counted

    @invariant()
    def what_is_admitted_is_good(self) -> None:
        for task in self.board.tasks.values():
            for name, artifact in task.artifacts.items():
                assert artifact.ref.digest == name
                assert artifact.fence in self.owners[artifact.ref.step]
                if task.final is None:
                    assert digest(artifact.body) == name
                    assert problems(artifact.ref.kind, artifact.body) == ()
                assert {"researcher": "finding", "coder": "patch"}[artifact.role] == artifact.ref.kind

    def teardown(self) -> None:
        assert folded(self.history.messages) == self.board
        again = folded(self.history.messages + self.history.messages[-3:])
        assert again == self.board


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
