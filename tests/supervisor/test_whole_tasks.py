"""Three goals, three DAGs, from the first order to the end, within every limit."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from core import contents
from core.contents import plan
from core.simulator import Act, Job, Simulator, honest
from kokuban.schemas import Plan, Verdict
from kokuban.schemas.contracts import Contract, Crew, builtin_crew
from kokuban.supervisor import End, Limits, Order

SOURCES = contents.spec(sources=contents.NOTHING)

FIX = plan(("write", "coder", ()))
FEATURE = plan(("look", "researcher", ()), ("write", "coder", ("look",)), ("document", "coder", ("write",)))
WIDE = plan(
    ("look-a", "researcher", ()), ("look-b", "researcher", ()), ("write-a", "coder", ("look-a",)),
    ("write-b", "coder", ("look-b",)), ("join", "coder", ("write-a", "write-b")),
)  # fmt: skip


def with_limits(crew: Crew, **concurrency: int) -> dict[str, Contract]:
    return {
        role: contract.model_copy(
            update={"limits": contract.limits.model_copy(update={"concurrency": concurrency.get(role, 4)})}
        )
        for role, contract in crew.items()
    }


@pytest.mark.parametrize("dag", [FIX, FEATURE, WIDE], ids=["fix", "feature", "wide"])
def test_a_goal_becomes_its_own_dag_and_is_done(dag: Plan) -> None:
    run = Simulator(honest(dag), SOURCES)
    task = run.run()
    assert task.final is not None
    assert (task.final.state, task.final.checked) == ("done", True)
    names = [command.step for command in run.commands if isinstance(command, Order)]
    planned = {step.id for step in dag.steps}
    assert sorted(names) == sorted(
        {"plan", "integrate", "verify-integrate", *planned, *(f"verify-{n}" for n in planned)}
    )
    for step in dag.steps:
        assert all(names.index(f"verify-{need}") < names.index(step.id) for need in step.needs)
    assert names[-2:] == ["integrate", "verify-integrate"]


def test_independent_steps_run_in_parallel() -> None:
    run = Simulator(honest(WIDE), SOURCES)
    run.run()
    assert any({"look-a", "look-b"} <= together for together in run.together)
    assert any({"write-a", "write-b"} <= together for together in run.together)


def test_a_step_gets_what_the_steps_before_it_made_and_no_more() -> None:
    run = Simulator(honest(WIDE), SOURCES)
    run.run()
    inputs = {name: [ref.step for ref in run.orders(name)[0].order.inputs] for name in ("write-a", "join", "integrate")}
    assert inputs == {
        "write-a": ["look-a"],
        "join": ["look-a", "look-b", "write-a", "write-b"],
        "integrate": ["look-a", "look-b", "write-a", "write-b", "join"],
    }
    judge = run.orders("verify-join")[0].order
    assert [ref.step for ref in judge.inputs] == ["write-a", "write-b", "join"]
    assert judge.judges == (judge.inputs[-1].digest,)
    scopes = {name: run.orders(name)[0].order.scope for name in ("write-a", "verify-write-a", "join", "verify-join")}
    assert scopes == {"write-a": "part", "verify-write-a": "part", "join": "whole", "verify-join": "whole"}


@pytest.mark.parametrize("per_role", [1, 2, 3])
@pytest.mark.parametrize("per_task", [1, 2, 8])
def test_limits_hold_at_every_point(per_role: int, per_task: int) -> None:
    wide = plan(*((f"s{n}", "coder", ()) for n in range(6)), ("last", "coder", tuple(f"s{n}" for n in range(6))))
    crew = with_limits(builtin_crew(), coder=per_role)
    run = Simulator(honest(wide), crew=crew, limits=Limits(steps_per_task=per_task))
    task = run.run()
    assert task.final is not None
    assert task.final.state == "done"
    most = max(sum(name.startswith("s") for name in together) for together in run.together)
    assert most == min(per_role, per_task)


def test_the_planner_sees_only_roles_that_this_task_can_use() -> None:
    without = Simulator(honest(FIX))
    without.run()
    assert [mate.role for mate in without.orders("plan")[0].order.team] == ["coder"]
    with_sources = Simulator(honest(FIX), SOURCES)
    with_sources.run()
    assert [mate.role for mate in with_sources.orders("plan")[0].order.team] == ["coder", "researcher"]
    assert with_sources.orders("write")[0].order.team == ()


def test_a_plan_with_a_researcher_needs_sources() -> None:
    run = Simulator(honest(FEATURE))
    task = run.run()
    assert task.final is not None
    assert task.final.state == "refused"
    assert "step 'look' names 'researcher'" in task.final.reason


def test_nothing_is_decided_after_the_end() -> None:
    run = Simulator(honest(FIX))
    task = run.run()
    assert run.decide() == ([], 0)
    assert isinstance(run.commands[-1], End)
    assert task.final == run.commands[-1].body


def test_an_unchecked_task_says_so() -> None:
    workers = honest(FIX)
    verifier = workers["verifier"]

    def unchecked(job: Job) -> Act:
        (name, verdict), *_ = cast("list[tuple[str, Verdict]]", verifier(job))
        return [(name, replace(verdict, checked=False))]

    run = Simulator({**workers, "verifier": unchecked}, contents.spec(checks=()))
    task = run.run()
    assert task.final is not None
    assert (task.final.state, task.final.checked) == ("done", False)
    assert "unchecked" in task.final.reason


def test_an_attempt_may_spend_what_the_task_says_else_what_the_contract_says() -> None:
    run = Simulator(honest(FIX), contents.spec(tokens=0, tool_calls=7, steps=3, seconds=400))
    run.run()
    given = {name: run.orders(name)[0].order.allotment for name in ("write", "verify-write")}
    assert {(a.tokens, a.tool_calls, a.steps) for a in given.values()} == {(0, 7, 3)}
    assert {name: a.seconds for name, a in given.items()} == {"write": 400, "verify-write": 400}
    run = Simulator(honest(FIX), contents.spec(seconds=5))
    run.run()
    given = {name: run.orders(name)[0].order.allotment for name in ("write", "verify-write")}
    assert {name: a.seconds for name, a in given.items()} == {"write": 5, "verify-write": 300}
    assert given["write"].tokens == builtin_crew()["coder"].limits.tokens
