"""Judging and merging: nobody takes the word of whoever made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokuban.agents import Output, Work, Worker
from kokuban.agents.roles import BUILT_IN, program_for
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus
from kokuban.blackboard.workspace import changes, tree_digest, unified
from kokuban.schemas import Finding, Patch, Plan, PlanStep, Verdict
from kokuban.schemas.contracts import builtin_crew
from support.desk import Program, tree
from support.nats_server import NatsServer
from support.playing import play
from support.team import (
    CHECK,
    FILES,
    FIX_ADD,
    FIX_DOUBLE,
    edit,
    finish,
    plan,
    script,
    team,
    workspace,
)
from support.waiting import running

pytestmark = pytest.mark.anyio


async def test_work_that_does_not_fit_together_is_redone_on_top(nats_server: NatsServer, tmp_path: Path) -> None:
    files = {"calc.py": "a = 1\n", "check.sh": "grep -q '[235]' calc.py\n"}
    played = await play(
        nats_server.url, tmp_path, plan(("one", "coder", ()), ("two", "coder", ())),
        edit("one", ("a = 1", "a = 2")), finish("one"), edit("two", ("a = 1", "a = 3")), finish("two"),
        edit("two", ("a = 2", "a = 5")), finish("two"),
        files=files,
    )  # fmt: skip
    assert played.outcome.state == "done"
    assert played.outcome.files["calc.py"].content == b"a = 5\n"
    assert len(played.happened("failed", "integrate")) == 1
    orders = played.happened("ordered", "two")
    assert len(orders) == 2
    assert "does not fit together" in orders[1].text
    redone = played.artifacts("patch", "two")[-1]
    assert len(redone.onto) == 1
    assert "-a = 2" in redone.diff


async def test_a_bad_patch_does_not_pass_whoever_made_it(nats_server: NatsServer, tmp_path: Path) -> None:
    """The verifier does not take the coder's word: patches that fail or weaken the checks, by a coder of our own."""

    weakened = tree({**FILES, "check.sh": "true\n"})
    fails = tree({**FILES, "calc.py": FILES["calc.py"].replace(*FIX_ADD)})
    right = tree({**FILES, "calc.py": FILES["calc.py"].replace(*FIX_ADD).replace(*FIX_DOUBLE)})
    feedback: list[str] = []

    async def perform(work: Work) -> list[Output]:
        feedback.extend(f.text for f in work.assignment.order.feedback[-1:])
        start = await work.workspace()
        after = (weakened, fails, right)[work.assignment.order.tries]
        patch = Patch(
            tree_digest(start), tree_digest(after), await work.content.to_wire(changes(start, after)),
            unified(start, after),
        )  # fmt: skip
        return [Output("patch", patch)]

    crew = builtin_crew()
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())))
    others = [role for role in BUILT_IN if role != "coder"]
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=others),
        await Bus.connect(nats_server.url) as bus,
        running(Worker(bus, crew["coder"], Program(perform), home=tmp_path / "coder").run()),
        await Client.connect(nats_server.url) as board,
    ):
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        events = [event async for event in board.watch(task)]
        outcome = await board.result(task)
    verdicts = [e.artifact() for e in events if e.kind == "verdict" and e.step == "verify-fix"]
    assert [isinstance(v, Verdict) and v.passed for v in verdicts] == [False, False, True]
    assert "check.sh" in verdicts[0].reasons[0]
    assert verdicts[0].checks == ()
    assert verdicts[1].checks[0].exit_code == 1
    assert "double" in verdicts[1].checks[0].output
    assert "check.sh" in feedback[0]
    assert "double" in feedback[1]
    assert outcome.state == "done"


async def test_a_result_that_breaks_its_contract_comes_back_with_reasons(
    nats_server: NatsServer, tmp_path: Path
) -> None:

    feedback: list[str] = []

    async def perform(work: Work) -> list[Output]:
        feedback.extend(f.text for f in work.assignment.order.feedback[-1:])
        bad = [
            Output("plan", Plan((PlanStep("a", "coder", "g", ("a",)),))),  # a cycle
            Output("note", Finding("not a planner's", ())),
            Output("plan", Plan((PlanStep("a", "coder", "do it"),))),
        ]
        return [bad[work.assignment.order.tries]]

    crew = builtin_crew()
    model = script(tmp_path / "s.json", edit("a", FIX_ADD), edit("a", FIX_DOUBLE))
    others = [role for role in BUILT_IN if role != "planner"]
    async with (
        team(nats_server.url, model, tmp_path / "team", roles=others),
        await Bus.connect(nats_server.url) as bus,
        running(Worker(bus, crew["planner"], Program(perform), home=tmp_path / "planner").run()),
        await Client.connect(nats_server.url) as board,
    ):
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        outcome = await board.result(task, timeout=30)
    assert outcome.state == "done"
    assert "circle" in feedback[0]
    assert "contract allows only plan" in feedback[1]


def test_a_role_without_a_program_is_named() -> None:
    assert all(program_for(role) for role in BUILT_IN)
    with pytest.raises(LookupError, match="planner"):
        program_for("poet")
