"""Several tasks of several tenants at once, with budgets, parents, gates, cancels, facts and limits that change while
everything runs: what must hold after every single record, and that everything ends."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.folding import plain
from core.history import folded
from core.world import World
from kokuban.blackboard.core import Applied, Board, Step, Task
from kokuban.blackboard.core.snapshot import dump, load
from kokuban.schemas import Budget, Failed, Gate, Opens, Plan, Settles, TenantLimits, Usage
from kokuban.supervisor import Limits
from kokuban.supervisor.decide import GRACE_SECONDS

PLANS = [
    plan(("write", "coder", ())),
    plan(("write", "coder", ()), ("more", "coder", ("write",))),
    plan(("write", "coder", ()), ("other", "coder", ())),
    plan(("other", "coder", ("more",)), ("more", "coder", ())),
]
BUDGETS = [
    None, Budget(tokens=90_000), Budget(tokens=20_000, micros=4_000), Budget(steps=6, tokens=50_000), Budget(),
    Budget(seconds=900), Budget(tool_calls=3), Budget(tokens=0),
    Budget(steps=40, tool_calls=9, tokens=70_000, micros=90),
]  # fmt: skip
TENANTS = ("a", "b")
NEVER = 2**53
PER_TASK = 3


def numbers(usage: Usage) -> dict[str, int]:
    return {
        "steps": usage.model_calls, "tool_calls": usage.tool_calls, "tokens": usage.tokens, "micros": usage.micros,
        "seconds": usage.seconds,
    }  # fmt: skip


def may_still_spend(step: Step) -> dict[str, int]:
    """Of its allotment, what a running step has not spent since its work began; time is counted at its end."""
    spent, begun = numbers(step.usage), numbers(step.begun)
    return {
        d: max(0, (getattr(step.allotment, d) or 0) - (0 if d == "seconds" else spent[d] - begun[d])) for d in spent
    }


class Boards(RuleBasedStateMachine):
    """A leader and workers that keep the rules, people and limits that change, and some that come too late."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(limits=Limits(steps_per_task=PER_TASK), pedantic=False)
        self.world.stream.watch = self.watch
        self.owners: dict[tuple[str, str], list[int]] = {}
        self.most: dict[str, dict[str, int]] = {}
        self.number = 0
        self.change_limits(2, {"a": TenantLimits(), "b": TenantLimits(4, Budget(tokens=200_000))}, None)

    # ------------------------------------------------------------------ after every record

    @property
    def board(self) -> Board:
        return self.world.board

    def watch(self, before: Board, applied: Applied) -> None:
        if applied.ignored:
            assert plain(self.board) == plain(before)
            assert self.board.ignored == before.ignored + 1
        task, record = applied.task, applied.record
        if task is not None and record is not None and not applied.ignored:
            known = before.tasks.get(task.id)
            assert known is None or known.final is None, "nothing after the end"
            if record.type == "step.claimed":
                self.owners.setdefault((task.id, record.step or ""), []).append(self.board.last_seq)
            if record.type == "step.order":
                self.limits_hold(task)
        self.owners_are_the_last_that_claimed()
        self.counts_are_right()
        self.budgets_hold()

    def limits_hold(self, task: Task) -> None:
        """When anything was ordered, there was room for it."""
        limits, running = self.board.limits, self.board.under_way
        assert sum(name == task.id for name, _ in running) <= PER_TASK
        for role, most in limits.roles.items():
            assert self.board.running[role] <= most or task.steps[self.last_ordered(task)].role != role
        most_at_once = limits.tenants[task.tenant].concurrency
        if most_at_once is not None:
            assert sum(self.board.tasks[name].tenant == task.tenant for name, _ in running) <= most_at_once

    def last_ordered(self, task: Task) -> str:
        return max(task.steps.values(), key=lambda step: step.order_seq).id

    def owners_are_the_last_that_claimed(self) -> None:
        for (name, step), at in self.board.under_way.items():
            if at.status == "claimed":
                assert at.fence == self.owners[(name, step)][-1]

    def counts_are_right(self) -> None:
        running = {(t.id, s.id) for t in self.board.tasks.values() for s in t.steps.values() if s.running}
        assert running == set(self.board.under_way)
        tenants: dict[str, Usage] = {}
        for task in self.board.tasks.values():
            below = [self.board.tasks[name].tree_usage for name in task.children]
            assert task.tree_usage == sum(below, task.usage)
            tenants[task.tenant] = tenants.get(task.tenant, Usage()) + task.usage
        assert {t: u for t, u in tenants.items() if u != Usage()} == self.board.spent

    def budgets_hold(self) -> None:
        """Spent and promised together are within every budget, at every level, in every dimension."""
        held: dict[str, dict[str, int]] = {}
        for (name, _), step in self.board.under_way.items():
            for scope in (*self.above(name), f"tenant {self.board.tasks[name].tenant}"):
                one = held.setdefault(scope, dict.fromkeys(numbers(Usage()), 0))
                for d, amount in may_still_spend(step).items():
                    one[d] += amount
        for task in self.board.tasks.values():
            if task.spec.budget is not None:
                self.within(task.id, numbers(task.tree_usage), held.get(task.id, {}), self.limits_of(task.spec.budget))
        for tenant, most in self.most.items():
            spent = numbers(self.board.spent.get(tenant, Usage()))
            self.within(tenant, spent, held.get(f"tenant {tenant}", {}), most)

    def within(self, scope: str, spent: dict[str, int], held: dict[str, int], most: dict[str, int]) -> None:
        for d, limit in most.items():
            assert spent[d] + held.get(d, 0) <= limit, (scope, d, spent[d], held.get(d, 0), limit)

    def limits_of(self, budget: Budget) -> dict[str, int]:
        found = {d: getattr(budget, d) for d in numbers(Usage())}
        return {d: NEVER if limit is None else limit for d, limit in found.items()}

    def above(self, name: str | None) -> list[str]:
        found: list[str] = []
        while name is not None:
            found.append(name)
            name = self.board.tasks[name].parent
        return found

    # ------------------------------------------------------------------ people

    @precondition(lambda self: self.number < 6)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS), budget=st.sampled_from(BUDGETS), replans=st.integers(0, 1))
    def submit(self, data: st.DataObject, tenant: str, budget: Budget | None, replans: int) -> None:
        names = list(self.board.tasks)
        parent = data.draw(st.sampled_from([None, *names]))
        after = data.draw(st.sampled_from([(), (), *((name,) for name in names)]))
        approve = data.draw(st.sampled_from([(), (), ("patch",), ("plan",)]))
        deadline = data.draw(st.sampled_from([None, None, 4_000]))
        self.number += 1
        self.world.submit(
            f"t-{self.number}", parent=parent, tenant=tenant, budget=budget, after=after, replans=replans,
            approve=approve, approval_seconds=data.draw(st.sampled_from([None, 50])), deadline_seconds=deadline,
        )  # fmt: skip

    @precondition(lambda self: self.board.tasks)
    @rule(data=st.data(), op=st.sampled_from(["inject", "inject", "cancel"]))
    def say(self, data: st.DataObject, op: str) -> None:
        name = data.draw(st.sampled_from(list(self.board.tasks)))
        self.world.of[name].say(op, f"{op} {self.board.last_seq}")

    @precondition(lambda self: self.open_gates())
    @rule(data=st.data(), vote=st.sampled_from(["approve", "approve", "deny"]))
    def vote(self, data: st.DataObject, vote: str) -> None:
        name, gate = data.draw(st.sampled_from(self.open_gates()))
        self.world.of[name].vote(gate, vote, person=f"p-{self.board.last_seq}")

    def open_gates(self) -> list[tuple[str, str]]:
        open_tasks = [task for task in self.board.tasks.values() if task.final is None]
        return [(task.id, name) for task in open_tasks for name, gate in task.gates.items() if gate.decision is None]

    @rule(
        role=st.integers(0, 3), a=st.sampled_from([None, 0, 1, 3]),
        budget=st.sampled_from([None, Budget(tokens=30_000), Budget(tokens=300_000, micros=500)]),
        weights=st.sampled_from([None, "plan_order", "priority"]),
    )  # fmt: skip
    def limits_change(self, role: int, a: int | None, budget: Budget | None, weights: str | None) -> None:
        self.change_limits(role, {"a": TenantLimits(a), "b": TenantLimits(4, budget)}, weights)

    def change_limits(self, role: int, tenants: dict[str, TenantLimits], weights: str | None) -> None:
        """A budget that is lowered takes nothing back: the highest that there was still bounds what was promised."""
        for tenant, limits in tenants.items():
            now = self.limits_of(limits.budget or Budget())
            was = self.most.get(tenant, dict.fromkeys(now, 0))
            self.most[tenant] = {d: max(was[d], limit) for d, limit in now.items()}
        roles = {"coder": role, "planner": 3}
        self.world.limits(roles=roles, tenants=tenants, weights={weights: -5.0} if weights else {})

    @rule(seconds=st.sampled_from([1, 40, 200]))
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    # ------------------------------------------------------------------ the leader

    @rule()
    def leader(self) -> None:
        self.world.round()

    @rule()
    def another_leader(self) -> None:
        self.world.lead(f"s-{self.board.last_seq}")

    @precondition(lambda self: self.board.tasks)
    @rule(data=st.data())
    def a_past_leader(self, data: st.DataObject) -> None:
        """Its decisions cite an epoch that is over."""
        name = data.draw(st.sampled_from(list(self.board.tasks)))
        history = self.world.of[name]
        assert history.order("write", "coder", fence=1, attempt=1).ignored
        assert history.final(fence=1).ignored

    # ------------------------------------------------------------------ the owners

    def running(self, *status: str) -> list[tuple[str, str]]:
        """Those whose register stands where their owner thinks: what a zombie wrote has moved it, and ends them."""
        return [key for key, step in self.board.under_way.items() if step.status in status and not step.moved]

    @precondition(lambda self: self.running("ordered"))
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        self.world.claim(*data.draw(st.sampled_from(self.running("ordered"))))

    @precondition(lambda self: self.running("claimed"))
    @rule(data=st.data(), part=st.sampled_from([1, 2, 5]), tool=st.booleans())
    def calls(self, data: st.DataObject, part: int, tool: bool) -> None:
        """Settle the call that is open, at most at what was reserved; open another, if the allotment has room."""
        name, step = data.draw(st.sampled_from(self.running("claimed")))
        at = self.world.step(name, step)
        history, opened, left = self.world.of[name], at.opened, may_still_spend(at)
        settles = None
        if opened is not None:
            settles = Settles(opened.call, self.actual(opened, part))
            for d, amount in numbers(settles.usage).items():
                left[d] -= amount
        call = (opened.call if opened else 0) + 1
        room = left["tool_calls"] > 0 if tool else left["steps"] > 0 and left["tokens"] > 0
        opens = None
        if room and tool:
            opens = Opens(call, "tool", "list_files")
        elif room:
            micros = 0 if at.allotment.micros is None else -(-left["micros"] // part)
            opens = Opens(call, "model", reserved_tokens=-(-left["tokens"] // part), reserved_micros=micros)
        assert not history.journal(step, settles=settles, opens=opens).ignored

    def actual(self, opened: Opens, part: int) -> Usage:
        if opened.kind == "tool":
            return Usage(tool_calls=1)
        tokens, micros = opened.reserved_tokens // part, opened.reserved_micros // part
        return Usage(tokens - tokens // 3, tokens // 3, 1, micros=micros)

    @precondition(lambda self: self.running("claimed"))
    @rule(data=st.data())
    def asks(self, data: st.DataObject) -> None:
        name, step = data.draw(st.sampled_from(self.running("claimed")))
        at = self.world.step(name, step)
        assert at.order is not None
        settles = Settles(at.opened.call, self.actual(at.opened, 1)) if at.opened else None
        wants = replace(at.order.more or at.allotment, tokens=99_999)
        assert not self.world.of[name].journal(step, settles=settles, asks=wants).ignored

    @precondition(lambda self: self.running("claimed"))
    @rule(data=st.data(), how=st.sampled_from(["wait", "fail", "for good", "conflict", "tokens", "lose", "lose"]))
    def stops(self, data: st.DataObject, how: str) -> None:
        name, step = data.draw(st.sampled_from(self.running("claimed")))
        at, history = self.world.step(name, step), self.world.of[name]
        settles = Settles(at.opened.call, self.actual(at.opened, 2)) if at.opened and how != "conflict" else None
        if how == "lose":
            history.release(step)
        elif how == "wait":
            gate = Gate(f"{step}-{history.last}", "call", "May it?", call=1, expires_seconds=100)
            assert not history.wait(step, gate, settles=settles).ignored
        elif how == "conflict":
            history.failed(step, Failed("conflict", "clash", conflict=("write", "other"), settles=settles))
        elif how == "tokens":
            history.failed(step, Failed("tokens", "not enough", settles=settles))
        else:
            history.failed(step, Failed("model", "no answer", how == "fail", settles))

    @precondition(lambda self: self.running("claimed", "ordered"))
    @rule(data=st.data(), of=st.sampled_from(PLANS))
    def does_its_work(self, data: st.DataObject, of: Plan) -> None:
        self.finish(*data.draw(st.sampled_from(self.running("claimed", "ordered"))), of)

    def finish(self, name: str, step: str, of: Plan) -> None:
        at = self.world.step(name, step)
        if step == "plan":
            self.world.work(name, step, ("plan", of))
        elif at.role == "verifier" and self.board.last_seq % 7 == 0:
            self.world.verify(name, step, passed=False)
        else:
            self.world.honest(name, at)

    @precondition(lambda self: any(len(claims) > 1 for claims in self.owners.values()))
    @rule(data=st.data())
    def a_zombie(self, data: st.DataObject) -> None:
        """An owner that was replaced wakes up and commits: its fence is the old one."""
        stale = [(key, claims[:-1]) for key, claims in self.owners.items() if len(claims) > 1]
        (name, step), claims = data.draw(st.sampled_from(stale))
        was = self.board.tasks[name].steps.get(step)
        before = (was.status, was.fence, was.results) if was else None
        applied = self.world.of[name].done(
            step, ("late", contents.patch("late")), fence=data.draw(st.sampled_from(claims))
        )
        assert applied.ignored
        assert before is None or was is None or (was.status, was.fence, was.results) == before

    # ------------------------------------------------------------------ the end

    def teardown(self) -> None:
        limits: Any = self.board.limits
        self.world.limits(tenants={name: replace(one, concurrency=None) for name, one in limits.tenants.items()})
        self.world.lead("last")
        for _ in range(400):
            self.world.round()
            if all(task.final is not None for task in self.board.tasks.values()):
                break
            self.drain()
        else:
            raise AssertionError("it does not end")
        self.world.stream.watch = None
        again = folded(self.world.stream.messages)
        assert again == self.board
        assert load(dump(again)) == again

    def drain(self) -> None:
        """Honest workers, people that approve, and a clock that goes on when nothing else does."""
        gates = self.open_gates()
        for name, gate in gates:
            self.world.of[name].vote(gate, person=f"p-{self.board.last_seq}")
        running = self.running("claimed", "ordered")
        for name, step in running:
            self.finish(name, step, PLANS[0])
        if not running and not gates:
            before = self.board.last_seq
            self.world.round()
            assert self.board.last_seq > before or all(t.final for t in self.board.tasks.values()), self.stuck()
        self.world.pass_time(GRACE_SECONDS)

    def stuck(self) -> dict[str, Any]:
        return {
            task.id: {s.id: (s.status, s.attempt, s.reasons) for s in task.steps.values()}
            for task in self.board.tasks.values()
            if task.final is None
        }


TestBoards = Boards.TestCase
TestBoards.settings = settings(
    max_examples=30, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
