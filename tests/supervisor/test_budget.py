"""Budgets: nobody is given what is not there, at no level, and what was given back can be given again (invariant 6)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.history import History
from core.world import World, allotments, ends
from kokuban.schemas import Allotment, Budget, Failed, Opens, Settles, TenantLimits, Usage, WorkOrder
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import Allow, Order, Release
from kokuban.supervisor._budget import DIMENSIONS, Short, carve, grant, left_for, reserved_by

CODER = builtin_crew()["coder"].limits
WIDE = plan(*((f"s{n}", "coder", ()) for n in range(5)))
ORDER = WorkOrder(0, 1, "go", ("patch",), allotment=Allotment(10, 10, 1_000, 60))


def tokens(many: int) -> Usage:
    return Usage(input_tokens=many)


def left(world: World, name: str, promised: dict[tuple[str, str], Allotment] | None = None) -> dict[str, Any]:
    return {scope.scope: scope.amounts for scope in left_for(world.board, world.task(name), promised or {})}


def carved(world: World, name: str, promised: dict[tuple[str, str], Allotment] | None = None) -> WorkOrder | Short:
    return carve(world.board, world.task(name), ORDER, None, promised or {}, asks_model=True)


# ---------------------------------------------------------------------- what is carved, and from what


def test_without_budgets_an_order_has_what_the_contract_says() -> None:
    world = World()
    world.submit("t-1")
    assert carved(world, "t-1") == ORDER
    assert left(world, "t-1") == {}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_a_budget_bounds_its_dimension_and_leaves_the_others(dimension: str) -> None:
    world = World()
    world.submit("t-1", budget=Budget(**{dimension: 8}))
    order = carved(world, "t-1")
    assert isinstance(order, WorkOrder)
    given = 2 if dimension == "micros" else 8
    assert order.allotment == replace(ORDER.allotment, **{dimension: given})
    assert order.budgeted
    assert order.more == replace(ORDER.allotment, **({"micros": 8} if dimension == "micros" else {}))
    assert left(world, "t-1")["task t-1"] == {**dict.fromkeys(DIMENSIONS), dimension: 8}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_nothing_left_is_none_and_never_unlimited(dimension: str) -> None:
    """E2: a remainder of 0 handed on."""
    world = World()
    world.submit("t-1", budget=Budget(**{dimension: 0}))
    short = carved(world, "t-1")
    if dimension == "tool_calls":  # a turn without tools may still do
        assert isinstance(short, WorkOrder)
        assert short.allotment.tool_calls == 0
    else:
        assert isinstance(short, Short)
        assert (short.dimension, short.scope, short.final) == (dimension, "task t-1", True)
    if dimension in ("tokens", "micros", "steps"):
        done = carve(world.board, world.task("t-1"), ORDER, None, {}, asks_model=False)
        assert isinstance(done, WorkOrder), "who asks no model needs only time"


@pytest.mark.parametrize("level", ["task", "parent", "grandparent", "tenant"])
def test_the_tightest_level_decides(level: str) -> None:
    world = World()
    budgets = {name: {"budget": Budget(tokens=100 if name == level else 5_000)} for name in ("task", "parent")}
    world.submit("old", tenant="a", budget=Budget(tokens=100 if level == "grandparent" else 6_000))
    world.submit("mid", parent="old", tenant="a", **budgets["parent"])
    world.submit("new", parent="mid", tenant="a", **budgets["task"])
    world.limits(tenants={"a": TenantLimits(budget=Budget(tokens=100 if level == "tenant" else 7_000))})
    order = carved(world, "new")
    assert isinstance(order, WorkOrder)
    assert order.allotment.tokens == 100
    assert list(left(world, "new")) == ["task new", "task mid", "task old", "tenant a"]


def test_what_a_child_spends_is_gone_at_every_level_above_and_nowhere_else() -> None:
    world = World()
    for name, parent in (("old", None), ("mid", "old"), ("new", "mid"), ("aside", "old"), ("other", None)):
        world.submit(name, parent=parent, tenant="b" if name == "other" else "a", budget=Budget(tokens=10_000))
    world.limits(tenants={"a": TenantLimits(budget=Budget(tokens=10_000))}, roles={"planner": 9})
    history = world.of["new"]
    history.order("write", "coder", order=replace(ORDER, spec=history.spec_seq))
    assert left(world, "new")["task new"]["tokens"] == 9_000, "reserved in full"
    history.claim("write")
    history.journal("write", opens=Opens(1, "model", reserved_tokens=400))
    assert left(world, "new")["task new"]["tokens"] == 9_000
    history.journal("write", settles=Settles(1, tokens(150)))
    assert left(world, "new")["task new"]["tokens"] == 9_000, "850 reserved, 150 spent"
    history.done("write", ("p", contents.patch()), usage=tokens(50))
    for name, scopes in (("new", 3), ("mid", 2), ("old", 1)):
        found = left(world, name)
        assert len(found) == scopes + 1
        assert {amounts["tokens"] for amounts in found.values()} == {9_800}
    assert {s: a["tokens"] for s, a in left(world, "aside").items()} == {
        "task aside": 10_000, "task old": 9_800, "tenant a": 9_800,
    }  # fmt: skip
    assert left(world, "other")["task other"]["tokens"] == 10_000


def test_three_deep_delegation_of_one_remainder_gives_it_once() -> None:
    """E2: each level has a budget of its own as large as the whole; five children at once want ten times too much."""
    world = World()
    world.limits(roles={"planner": 9})
    world.submit("t", budget=Budget(tokens=20_000))
    world.submit("t-1", parent="t", budget=Budget(tokens=20_000))
    for n in range(5):
        world.submit(f"t-1-{n}", parent="t-1", budget=Budget(tokens=20_000))
    given = allotments(world.settle())
    assert sum(one.tokens for one in given.values()) == 20_000
    assert all(one.tokens > 0 for one in given.values())


@pytest.mark.parametrize("limit", [0, 1, 999, 5_000, 32_000, 99_999])
def test_orders_given_at_once_never_add_up_to_more_than_the_budget(limit: int) -> None:
    world = World()
    world.planned("t-1", WIDE, budget=Budget(tokens=50_000))
    spent = world.task("t-1").usage.tokens
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=limit))}, roles={"coder": 9})
    for name in [s for _, s in world.board.under_way]:
        world.claim("t-1", name)
        world.of["t-1"].release(name)
    given = allotments(world.settle())
    assert spent + sum(one.tokens for one in given.values()) <= min(limit, 50_000)


def test_orders_that_are_being_written_are_reserved() -> None:
    world = World()
    world.submit("t-1", budget=Budget(tokens=1_500))
    one = carved(world, "t-1")
    assert isinstance(one, WorkOrder)
    two = carved(world, "t-1", {("t-1", "a"): one.allotment})
    assert isinstance(two, WorkOrder)
    assert (one.allotment.tokens, two.allotment.tokens) == (1_000, 500)
    assert two.more == ORDER.allotment
    three = carved(world, "t-1", {("t-1", "a"): one.allotment, ("t-1", "b"): two.allotment})
    assert isinstance(three, Short)
    assert not three.final, "what is being written may give some back"
    assert str(three) == "no tokens left in the budget of task t-1"
    assert left(world, "t-1", {("gone", "a"): one.allotment})["task t-1"]["tokens"] == 1_500


def test_an_overdrawn_budget_has_nothing_left_and_not_less() -> None:
    """A provider that bills more than was reserved: actual usage counts, and the next order gets nothing."""
    world = World()
    world.submit("t-1", budget=Budget(tokens=1_000))
    world.settle()
    world.work("t-1", "plan", ("plan", plan(("write", "coder", ()))), usage=tokens(5_000))
    assert left(world, "t-1")["task t-1"]["tokens"] == 0
    world.settle()
    assert world.final("t-1").state == "out_of_budget"


def test_money_is_given_in_shares_and_the_owner_may_ask_for_the_rest() -> None:
    world = World()
    world.submit("t-1", budget=Budget(micros=1_001))
    order = carved(world, "t-1")
    assert isinstance(order, WorkOrder)
    assert (order.allotment.micros, order.more.micros if order.more else 0) == (251, 1_001)
    last = World()
    last.submit("t-1", budget=Budget(micros=1))
    order = carved(last, "t-1")
    assert isinstance(order, WorkOrder)
    assert order.allotment.micros == 1


# ---------------------------------------------------------------------- lost calls, resumed work


def begun(**budget: int) -> tuple[World, History]:
    """A task under a budget whose step `write` is claimed and has a call open."""
    world = World()
    history = world.planned("t-1", budget=Budget(**budget))
    world.claim("t-1", "write")
    history.journal("write", opens=Opens(1, "model", reserved_tokens=4_000, reserved_micros=40))
    return world, history


def test_a_call_that_nobody_settles_counts_at_its_worst() -> None:
    world, history = begun(tokens=50_000)
    history.release("write")
    usage = world.task("t-1").usage
    assert (usage.tokens, usage.micros, usage.model_calls, usage.estimated) == (4_000, 40, 1, True)
    assert left(world, "t-1")["task t-1"]["tokens"] == 46_000


@pytest.mark.parametrize("settles", [None, Settles(9, tokens(1))])
def test_a_call_that_its_owner_leaves_open_at_the_end_counts_at_its_worst_too(settles: Settles | None) -> None:
    world, history = begun(tokens=50_000)
    history.failed("write", Failed("model", "no answer", settles=settles))
    assert (world.task("t-1").usage.tokens, world.task("t-1").usage.model_calls) == (4_000, 1)


def test_resumed_work_does_not_get_its_allotment_twice() -> None:
    world, history = begun(tokens=50_000, micros=4_000)
    first = world.step("t-1", "write").allotment
    assert first.tokens == CODER.tokens
    history.release("write")
    (order,) = allotments(world.settle()).values()
    assert order.tokens == CODER.tokens, "in all, replayed and lost calls included"
    assert reserved_by(world.step("t-1", "write"))["tokens"] == CODER.tokens - 4_000
    assert order.micros == 40 + 990, "what was spent, and a share of what is left"
    total = world.task("t-1").usage.tokens + reserved_by(world.step("t-1", "write"))["tokens"]
    assert total == CODER.tokens


def test_resumed_work_gets_what_is_left_and_not_what_it_once_had() -> None:
    world, history = begun(tokens=CODER.tokens)
    history.journal("write", settles=Settles(1, tokens(4_000)))
    history.release("write")
    (order,) = allotments(world.settle()).values()
    assert order.tokens == CODER.tokens
    assert reserved_by(world.step("t-1", "write"))["tokens"] == CODER.tokens - 4_000
    assert left(world, "t-1")["task t-1"]["tokens"] == 0


def test_a_new_attempt_is_other_work_and_begins_at_nothing() -> None:
    world, history = begun(tokens=50_000)
    history.failed("write", Failed("model", "no answer", settles=Settles(1, tokens(3_000))))
    (order,) = allotments(world.settle()).values()
    assert order.tokens == CODER.tokens
    assert reserved_by(world.step("t-1", "write"))["tokens"] == CODER.tokens


def test_a_revoked_step_counts_its_call_in_flight() -> None:
    world, history = begun(tokens=50_000)
    history.say("cancel", "enough")
    world.settle()
    assert world.final("t-1").state == "cancelled"
    assert world.final("t-1").usage.tokens == 4_000
    assert world.board.spent["default"].tokens == 4_000


# ---------------------------------------------------------------------- asking for more


def asking(most: int, asks: Allotment, *, other: int = 0) -> tuple[World, History, Allotment]:
    """`write` was ordered when `most` tokens were left, and asks; then the tenant's budget is raised by `other`."""
    world = World()
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=most))})
    history = world.planned("t-1")
    world.claim("t-1", "write")
    has = world.step("t-1", "write").allotment
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=most + other))})
    assert not history.journal("write", asks=asks).ignored
    return world, history, has


@pytest.mark.parametrize(
    ("other", "asks", "given"),
    [(0, 5_000, 1_000), (500, 5_000, 1_500), (9_000, 5_000, 5_000), (99_000, 99_000, CODER.tokens), (9_000, 10, 1_000)],
)
def test_who_asks_gets_what_is_left_up_to_what_its_order_allows(other: int, asks: int, given: int) -> None:
    world, _, has = asking(1_000, Allotment(tokens=asks, steps=CODER.steps, seconds=86_400), other=other)
    assert has.tokens == 1_000
    ((_, command),) = world.settle()
    assert isinstance(command, Allow)
    assert command.allotment == replace(has, tokens=given)
    step = world.step("t-1", "write")
    assert (step.allotment, step.asks) == (command.allotment, None)
    assert world.settle() == [], "answered once"


def test_two_that_ask_at_once_do_not_both_get_the_same() -> None:
    """E2: check, then spend. Both questions are answered in one decision."""
    world = World()
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=2_000))}, roles={"coder": 2})
    history = world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())), tokens=1_000)
    for name in "ab":
        world.claim("t-1", name)
    assert [world.step("t-1", n).allotment.tokens for n in "ab"] == [1_000, 1_000]
    history = world.of["t-1"]
    for name in "ab":
        step = world.step("t-1", name)
        assert step.order is not None
        step.order = replace(step.order, more=Allotment(tokens=9_000))
        history.journal(name, asks=replace(step.allotment, tokens=9_000))
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=2_500))})
    world.round()
    total = sum(world.step("t-1", name).allotment.tokens for name in "ab")
    assert total == 2_500


def test_two_tasks_that_ask_at_once_do_not_both_get_the_same() -> None:
    world = World()
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=2_000))}, roles={"planner": 2})
    for name in ("t-1", "t-2"):
        world.submit(name, tokens=1_000)
    world.settle()
    for name in ("t-1", "t-2"):
        world.claim(name, "plan")
        step = world.step(name, "plan")
        assert step.order is not None
        step.order = replace(step.order, more=Allotment(tokens=9_000))
        world.of[name].journal("plan", asks=replace(step.allotment, tokens=9_000))
    world.limits(tenants={"default": TenantLimits(budget=Budget(tokens=2_500))})
    world.round()
    assert sum(world.step(name, "plan").allotment.tokens for name in ("t-1", "t-2")) == 2_500


def test_nobody_gets_more_time_or_a_money_limit_by_asking() -> None:
    world, _, has = asking(1_000, Allotment(seconds=86_400, micros=5, tokens=1_000), other=9_000)
    step = world.step("t-1", "write")
    assert grant(world.board, world.task("t-1"), step, {}) == has
    assert has.micros is None


def test_money_is_granted_up_to_what_was_left_and_no_further() -> None:
    world = World()
    history = world.planned("t-1", budget=Budget(micros=4_000))
    world.claim("t-1", "write")
    step = world.step("t-1", "write")
    assert step.allotment.micros == 1_000
    history.journal("write", asks=replace(step.allotment, micros=9_999))
    world.settle()
    assert step.allotment.micros == 4_000


def test_an_order_that_allows_no_more_gets_the_same_again() -> None:
    world, history, has = asking(99_000, Allotment(tokens=99_000))
    ((_, command),) = world.settle()
    assert isinstance(command, Allow)
    assert command.allotment == has
    history.journal("write", asks=Allotment(tokens=99_000))
    history.release("write")
    assert not [c for _, c in world.settle() if isinstance(c, Allow)], "nobody is there to be answered"


def test_who_asks_too_late_is_taken_back_and_not_answered() -> None:
    world, _, has = asking(1_000, Allotment(tokens=5_000), other=9_000)
    world.pass_time(has.seconds + 31)
    assert [type(command) for command in world.decide("t-1")] == [Release]


# ---------------------------------------------------------------------- ends


def test_short_of_a_budget_a_step_waits_for_what_running_work_may_give_back() -> None:
    two = plan(("a", "coder", ()), ("b", "coder", ()))
    world = World()
    world.limits(roles={"coder": 2})
    world.planned("t-1", two, budget=Budget(tokens=CODER.tokens))
    assert list(world.board.under_way) == [("t-1", "a")]
    assert world.task("t-1").final is None
    world.claim("t-1", "a")
    world.work("t-1", "a", ("change", contents.patch("a")), usage=tokens(1_000))
    given = allotments(world.settle())
    assert given[("t-1", "b")].tokens + given[("t-1", "verify-a")].tokens <= CODER.tokens - 1_000
    assert world.task("t-1").final is None


def test_a_budget_that_nothing_can_give_back_to_is_the_end() -> None:
    three = plan(("a", "coder", ()), ("b", "coder", ("a",)), ("c", "coder", ("b",)))
    world = World()
    world.planned("t-1", three, budget=Budget(tokens=20_000))
    world.work("t-1", "a", ("change", contents.patch("a")), usage=tokens(20_000))
    world.settle()
    world.verify("t-1", "verify-a")  # asks no model
    world.settle()
    final = world.final("t-1")
    assert (final.state, final.blocked) == ("out_of_budget", ("c",))
    assert final.reason == "step b cannot begin: no tokens left in the budget of task t-1"


def test_another_scope_that_is_busy_does_not_keep_a_spent_task_open() -> None:
    """The tenant has work under way and plenty left; the task's own budget is spent, and nothing can give to it."""
    world = World()
    world.limits(tenants={"a": TenantLimits(budget=Budget(tokens=900_000))}, roles={"planner": 4})
    world.submit("busy", tenant="a")
    world.settle()
    world.submit("poor", tenant="a", budget=Budget(tokens=0))
    world.settle()
    assert ends(world) == {"busy": "", "poor": "out_of_budget"}


def test_the_whole_tree_ends_when_the_root_is_out_of_budget() -> None:
    world = World()
    world.submit("root", budget=Budget(tokens=100))
    world.submit("child", parent="root")
    world.settle()
    running = [name for name, _ in world.board.under_way]
    world.work(running[0], "plan", ("plan", plan(("write", "coder", ()))), usage=tokens(100))
    world.settle()
    assert set(ends(world).values()) <= {"out_of_budget", "dependency_failed"}


@pytest.mark.parametrize(
    ("why", "budget", "state"),
    [
        ("tokens", Budget(tokens=5_000), "out_of_budget"),
        ("steps", Budget(steps=3), "out_of_budget"),
        ("tool_calls", Budget(tool_calls=1), "out_of_budget"),
        ("deadline", Budget(seconds=5), "out_of_budget"),
        ("budget", Budget(micros=50), "out_of_budget"),
        # It had all of it that its contract gives: another attempt may do better.
        ("steps", Budget(micros=50_000), ""),
        ("tokens", Budget(steps=200), ""),
        ("deadline", Budget(tokens=5_000), ""),
        ("model", Budget(tokens=5_000), ""),
        ("tokens", None, ""),
    ],
)
def test_an_attempt_that_had_only_a_rest_ends_the_task_and_one_that_had_all_is_tried_again(
    why: Any, budget: Budget | None, state: str
) -> None:
    world = World()
    history = world.planned("t-1", budget=budget)
    world.claim("t-1", "write")
    history.failed("write", Failed(why, "it was not enough"))
    world.settle()
    assert ends(world) == {"t-1": state}
    if not state:
        assert world.step("t-1", "write").attempt == 2


def test_a_step_that_was_given_all_it_may_have_is_tried_again() -> None:
    """Its first allotment was a share; it asked, and got everything that its order allowed."""
    world = World()
    history = world.planned("t-1", budget=Budget(micros=4_000))
    world.claim("t-1", "write")
    step = world.step("t-1", "write")
    history.journal("write", asks=replace(step.allotment, micros=4_000))
    world.settle()
    history.failed("write", Failed("tokens", "too few"))
    world.settle()
    assert (step.status, step.attempt) == ("ordered", 2)


def test_a_raised_budget_lets_what_waits_go_on() -> None:
    world = World()
    world.limits(roles={"coder": 2}, tenants={"default": TenantLimits(budget=Budget(tokens=CODER.tokens))})
    world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())))
    assert list(world.board.under_way) == [("t-1", "a")]
    world.limits(roles={"coder": 2}, tenants={"default": TenantLimits(budget=Budget(tokens=90_000))})
    assert [c.step for _, c in world.settle() if isinstance(c, Order)] == ["b"]
