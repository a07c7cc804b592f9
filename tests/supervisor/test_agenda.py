"""What runs next: how offers are rated, and that no tenant, task or old offer takes more than its turn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.history import History, Stream
from core.world import World, ends
from kokuban.blackboard.core import Board, Task
from kokuban.schemas import Allotment, TenantLimits, WorkOrder
from kokuban.supervisor import WEIGHTS, Agenda, Limits, Offer, Order, rating
from kokuban.supervisor._room import Room

NOW = 100_000.0


def task(name: str = "t-1", *, time: float = NOW, deadline: float | None = None, **spec: object) -> Task:
    found = Task(name, contents.spec(**spec), 1, time)  # type: ignore[arg-type]
    found.deadline = deadline
    return found


def offer(name: str = "t-1", step: str = "a", *, tokens: int = 0, position: int = 0, stale: bool = False) -> Offer:
    order = WorkOrder(0, 1, "go", ("patch",), allotment=Allotment(tokens=tokens))
    return Offer(name, Order(step, "coder", 1, order), position, stale)


def picks(agenda: Agenda, many: int = 100) -> list[str]:
    """Offers as they come when nobody is at a limit, and what is picked stays under way."""
    under_way: Counter[str] = Counter()
    found: list[str] = []
    while len(found) < many and (one := agenda.pick("coder", under_way, lambda tenant: False, lambda offer: True)):
        under_way[one.task.rsplit("-", 1)[0]] += 1
        found.append(f"{one.task}/{one.order.step}")
    return found


# ---------------------------------------------------------------------- ratings

PAIRS = {
    "plan_order": ((task(), offer(position=0)), (task(), offer(position=3))),
    "priority": ((task(priority=2), offer()), (task(priority=-1), offer())),
    "deadline": ((task(deadline=NOW + 3_600), offer()), (task(deadline=NOW + 20 * 3_600), offer())),
    "cost": ((task(), offer(tokens=1_000)), (task(), offer(tokens=90_000))),
    "staleness": ((task(), offer(stale=True)), (task(), offer())),
    "age": ((task(time=NOW - 3_600), offer()), (task(), offer())),
}


@pytest.mark.parametrize("term", list(PAIRS))
def test_each_term_puts_one_before_the_other_and_does_nothing_without_weight(term: str) -> None:
    (better, first), (worse, second) = PAIRS[term]
    others = dict.fromkeys(WEIGHTS, 0.0)
    assert rating(better, first, {}, NOW) > rating(worse, second, {}, NOW)
    assert rating(better, first, {**others, term: 1.0}, NOW) > rating(worse, second, {**others, term: 1.0}, NOW)
    assert rating(better, first, {**others, term: -1.0}, NOW) < rating(worse, second, {**others, term: -1.0}, NOW)
    assert rating(better, first, others, NOW) == rating(worse, second, others, NOW) == 0


def test_a_weight_that_is_not_known_or_not_given_changes_nothing() -> None:
    one = task(priority=3, deadline=NOW + 60)
    assert rating(one, offer(), {"beauty": 5.0}, NOW) == rating(one, offer(), {}, NOW)
    assert rating(one, offer(), dict(WEIGHTS), NOW) == rating(one, offer(), {}, NOW)


def test_a_deadline_counts_within_its_last_day_and_still_after_it() -> None:
    far, near, over = (rating(task(deadline=NOW + s), offer(), {}, NOW) for s in (48 * 3_600, 3_600, -3_600))
    assert far == rating(task(), offer(), {}, NOW)
    assert far < near < over


def test_changing_one_weight_changes_the_order() -> None:
    """Two steps of one plan, in plan order; the first may cost far more. Weighing cost turns the order round."""
    cheap_first = {"cost": 1.0}
    for weights, wanted in (({}, ["t-1/dear", "t-1/cheap"]), (cheap_first, ["t-1/cheap", "t-1/dear"])):
        agenda = Agenda()
        agenda.put(task(), [offer(step="dear", tokens=90_000), offer(step="cheap", position=1)], weights, NOW)
        assert picks(agenda) == wanted


def test_changing_a_weight_on_the_board_changes_which_step_is_ordered_first() -> None:
    """The same through the leader: the last limits record counts from its next decision on."""
    two = plan(("first", "coder", ()), ("second", "coder", ()))
    for weights, wanted in (({}, "first"), ({"plan_order": -1.0}, "second")):
        world = World(limits=Limits(steps_per_task=1))
        world.limits(weights=weights)
        world.planned("t-1", two)
        assert [step for step in world.task("t-1").steps if step != "plan"] == [wanted]


def test_equal_ratings_go_in_the_order_in_which_they_were_offered() -> None:
    agenda = Agenda()
    agenda.put(task(), [offer(step=name) for name in "cab"], {}, NOW)
    assert picks(agenda) == ["t-1/c", "t-1/a", "t-1/b"]


# ---------------------------------------------------------------------- fairness


def crowd(agenda: Agenda, many: int, tenant: str = "big", **spec: Any) -> None:
    for n in range(many):
        name = f"{tenant}-{n}"
        agenda.put(task(name, tenant=tenant, time=NOW - 9_000, **spec), [offer(name)], {}, NOW)


def test_another_tenants_one_step_is_next_though_a_thousand_older_better_ones_wait() -> None:
    agenda = Agenda()
    crowd(agenda, 1_000, priority=100)
    agenda.put(task("small-0", tenant="small", priority=-100), [offer("small-0")], {}, NOW)
    under_way = Counter({"big": 1})
    one = agenda.pick("coder", under_way, lambda tenant: False, lambda offer: True)
    assert one is not None
    assert one.task == "small-0"
    assert len(agenda) == 1_000


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_nobody_starves_when_all_have_the_same_under_way(slots: int) -> None:
    """Whatever frees a slot leaves them equal again: whoever had a turn last comes last."""
    agenda = Agenda()
    crowd(agenda, 1_000)
    agenda.put(task("small-0", tenant="small"), [offer("small-0")], {}, NOW)
    served: list[str] = []
    for _ in range(3):
        under_way: Counter[str] = Counter()
        for _ in range(slots):
            one = agenda.pick("coder", under_way, lambda tenant: False, lambda offer: True)
            assert one is not None
            served.append(one.task.split("-")[0])
            under_way[served[-1]] += 1
    assert "small" in served[:2]


def test_equal_load_alternates() -> None:
    agenda = Agenda()
    for tenant in ("one", "two", "three"):
        crowd(agenda, 4, tenant)
    tenants = [name.split("-")[0] for name in picks(agenda)]
    assert all(len(set(tenants[n : n + 3])) == 3 for n in range(0, 12, 3))
    one_slot = Agenda()
    for tenant in ("one", "two"):
        crowd(one_slot, 6, tenant)
    turns = [one_slot.pick("coder", Counter(), lambda t: False, lambda o: True) for _ in range(8)]
    assert [turn.task.split("-")[0] for turn in turns if turn] == ["one", "two"] * 4


def test_a_thousand_tasks_of_one_tenant_leave_the_other_its_turn() -> None:
    """The same through the leader, with one planner's slot: big's tasks were there long before small's one."""
    world = World()
    world.limits(roles={"planner": 1})
    for n in range(100):
        world.submit(f"big-{n}", tenant="big", priority=50)
    world.settle()
    world.submit("small-0", tenant="small")
    for _ in range(2):
        (busy,) = [task for task, step in world.board.under_way if step == "plan"]
        if busy == "small-0":
            break
        world.work(busy, "plan", ("plan", plan(("write", "coder", ()))))
        world.limits(roles={"planner": 1, "coder": 0})
        world.settle()
    assert ("small-0", "plan") in world.board.under_way


def test_among_a_tenants_own_offers_the_best_goes_first() -> None:
    agenda = Agenda()
    for n, priority in enumerate((0, 5, -5)):
        agenda.put(task(f"a-{n}", tenant="a", priority=priority), [offer(f"a-{n}")], {}, NOW)
    assert picks(agenda) == ["a-1/a", "a-0/a", "a-2/a"]


# ---------------------------------------------------------------------- limits


def test_a_full_tenant_is_passed_over() -> None:
    agenda = Agenda()
    crowd(agenda, 2)
    agenda.put(task("small-0", tenant="small"), [offer("small-0")], {}, NOW)
    taken = [agenda.pick("coder", Counter({"small": 9}), lambda t: t == "big", lambda o: True) for _ in range(2)]
    assert [one.task if one else None for one in taken] == ["small-0", None]
    assert len(agenda) == 2, "what nobody may have now stays"


def test_what_is_not_allowed_now_stays_and_the_next_best_goes() -> None:
    agenda = Agenda()
    agenda.put(task("a-0", tenant="a", priority=9), [offer("a-0"), offer("a-0", "b")], {}, NOW)
    agenda.put(task("a-1", tenant="a"), [offer("a-1")], {}, NOW)
    one = agenda.pick("coder", Counter(), lambda t: False, lambda o: o.task != "a-0")
    assert one is not None
    assert one.task == "a-1"
    assert picks(agenda) == ["a-0/a", "a-0/b"]


def test_what_a_task_offered_before_it_changed_is_void() -> None:
    agenda = Agenda()
    agenda.put(task(), [offer(step="old"), offer(step="older")], {}, NOW)
    agenda.put(task(), [offer(step="new")], {}, NOW)
    assert picks(agenda) == ["t-1/new"]
    agenda.put(task(), [offer(step="gone")], {}, NOW)
    agenda.drop("t-1")
    agenda.drop("t-1")
    assert (picks(agenda), len(agenda)) == ([], 0)
    assert agenda.pick("cook", Counter(), lambda t: False, lambda o: True) is None


@pytest.mark.parametrize("concurrency", [0, 1, 2])
def test_a_tenants_limit_holds_over_all_its_tasks_and_roles(concurrency: int) -> None:
    world = World()
    world.limits(tenants={"a": TenantLimits(concurrency=concurrency)})
    for n in range(4):
        world.submit(f"a-{n}", tenant="a")
    world.submit("b-0", tenant="b")
    world.settle()
    assert sum(task.startswith("a") for task, _ in world.board.under_way) == concurrency
    assert ("b-0", "plan") in world.board.under_way


@pytest.mark.parametrize(("said", "most"), [(None, 3), (2, 2), (0, 0)])
def test_a_tasks_limit_is_the_boards_and_else_the_supervisors_own(said: int | None, most: int) -> None:
    world = World(limits=Limits(steps_per_task=3))
    world.limits(roles={"coder": 9})
    world.planned("t-1", plan(*((f"s{n}", "coder", ()) for n in range(6))))
    assert len(world.board.under_way) == 3
    for name in [step for _, step in world.board.under_way]:
        world.claim("t-1", name)
        world.of["t-1"].release(name)
    world.limits(roles={"coder": 9}, steps_per_task=said)
    world.settle()
    assert len(world.board.under_way) == most


def test_a_lower_limit_takes_nothing_back_and_a_higher_one_counts_at_once() -> None:
    world = World()
    for n in range(4):
        world.submit(f"t-{n}")
    world.limits(roles={"planner": 3})
    world.settle()
    assert world.board.running["planner"] == 3
    world.limits(roles={"planner": 1})
    assert (world.settle(), world.board.running["planner"]) == ([], 3)
    world.limits(roles={"planner": 4})
    world.settle()
    assert world.board.running["planner"] == 4


def test_orders_that_are_being_written_count_as_if_they_were_there() -> None:
    history = History(stream=Stream(Board()))
    history.lead()
    history.spec(contents.spec(tenant="a"))
    board, crew = history.board, World().crew
    board.limits = replace(board.limits, roles={"coder": 2}, tenants={"a": TenantLimits(concurrency=1)})
    room = Room(board, Limits(steps_per_task=2))
    assert (room.of_role("coder", crew), room.of_task("t-1"), room.is_full("a", room.by_tenant())) == (2, 2, False)
    room.promise("t-1", "write", "coder", Allotment())
    assert (room.of_role("coder", crew), room.of_task("t-1"), room.is_full("a", room.by_tenant())) == (1, 1, True)
    history.order("write", "coder")
    assert (room.of_role("coder", crew), room.of_task("t-1"), room.by_tenant()) == (1, 1, Counter({"a": 1}))
    room.kept("t-1", "write")
    room.kept("t-1", "write")
    assert (room.of_role("coder", crew), room.of_task("t-1"), room.by_tenant()) == (1, 1, Counter({"a": 1}))
    assert not room.is_full("b", room.by_tenant())


def test_many_tasks_of_two_tenants_all_end() -> None:
    world = World()
    world.limits(tenants={"a": TenantLimits(concurrency=1)}, roles={"coder": 1})
    for n in range(6):
        world.submit(f"t-{n}", tenant="ab"[n % 2])
    for _ in range(60):
        world.settle()
        for name, step in list(world.board.under_way):
            world.honest(name, world.step(name, step))
    world.settle()
    assert set(ends(world).values()) == {"done"}
