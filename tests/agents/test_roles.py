"""The built-in roles over a real board: from a goal to a proven deliverable, and every way that must not pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents import Output, Work, Worker
from kokuban.agents.loop import Loop
from kokuban.agents.models import CallContext, Meter, Reply, Request, open_model
from kokuban.agents.roles import BUILT_IN, program_for
from kokuban.agents.roles._actions import NativeActions
from kokuban.agents.roles._coding import Coding
from kokuban.agents.roles.researcher import cite, stands
from kokuban.agents.tools import BUILT_IN_TOOLS, Registry
from kokuban.blackboard import Client, Event, Outcome
from kokuban.blackboard.core import Board
from kokuban.blackboard.wire import Bus
from kokuban.blackboard.workspace import changes, tree_digest, unified
from kokuban.schemas import Finding, Patch, Plan, PlanStep, Verdict
from kokuban.schemas.contracts import builtin_crew
from support.desk import Desk, Program, tree
from support.nats_server import NatsServer
from support.team import (
    CHECK,
    FILES,
    FIX_ADD,
    FIX_DOUBLE,
    act,
    audited,
    edit,
    finish,
    plan,
    records,
    script,
    team,
    workspace,
)
from support.waiting import running

pytestmark = pytest.mark.anyio


class Played:
    """How a task went."""

    def __init__(self, task: str, outcome: Outcome, events: list[Event], board: Board) -> None:
        self.task, self.outcome, self.events, self.board = task, outcome, events, board

    def artifacts(self, kind: str, step: str | None = None) -> list[Any]:
        return [e.artifact() for e in self.events if e.kind == kind and step in (None, e.step)]

    def happened(self, event: str, step: str) -> list[Event]:
        return [e for e in self.events if (e.event, e.step) == (event, step)]


async def play(
    url: str, home: Path, *replies: dict[str, Any], files: dict[str, str] = FILES, docs: dict[str, str] | None = None,
    checks: Sequence[str] = (CHECK,), native: bool = False, **spec: Any,
) -> Played:  # fmt: skip
    model = script(home / "script.json", *replies)
    sources = [workspace(home / "docs", docs)] if docs else []
    async with team(url, model, home / "team", native_tools=native), await Client.connect(url) as board:
        async with asyncio.timeout(60):
            task = await board.submit(
                "Make adding and doubling pass the checks",
                workspace=workspace(home / "ws", files),
                sources=sources,
                checks=checks,
                **spec,
            )
            events = [event async for event in board.watch(task)]
            outcome = await board.result(task)
    folded, applied = audited(await records(url))
    assert [did.ignored for did in applied if did.ignored] == []
    return Played(task, outcome, events, folded)


def find(source: str, quote: str, statement: str = "That is what it says") -> dict[str, Any]:
    content = {"findings": [{"source": source, "quote": quote, "statement": statement}]}
    return {"when": {"role": "researcher"}, "reply": {"content": content}, "times": 1}


# ---------------------------------------------------------------------- the way through


async def test_a_task_comes_to_a_proven_deliverable(nats_server: NatsServer, tmp_path: Path) -> None:
    docs = {"rules.md": "# Rules\n\nTo add is to sum.\nDoubling adds a number\nto itself.\n", "other.md": "# Cakes\n"}
    played = await play(
        nats_server.url, tmp_path,
        plan(("facts", "researcher", ()), ("fix-add", "coder", ("facts",)), ("fix-double", "coder", ("facts",))),
        find("rules.md", "Doubling adds a number to itself."),
        edit("fix-add", FIX_ADD), finish("fix-add"), edit("fix-double", FIX_DOUBLE), finish("fix-double"),
        docs=docs,
    )  # fmt: skip
    outcome = played.outcome
    assert outcome.state == "done"
    assert outcome.checked
    assert outcome.deliverable is not None
    fixed = FILES["calc.py"].replace(*FIX_ADD).replace(*FIX_DOUBLE)
    assert {path: file.content.decode() for path, file in outcome.files.items()} == {"calc.py": fixed}
    # the manifest names exactly the artifacts that the file comes from
    patches = {a.ref for a in played.board.tasks[played.task].artifacts.values() if a.ref.kind == "patch"}
    (part,) = outcome.deliverable.manifest
    assert part.path == "calc.py"
    assert set(part.sources) == patches
    assert {ref.step for ref in part.sources} == {"fix-add", "fix-double"}
    assert {ref.step for ref in outcome.deliverable.cites} >= {"facts", "fix-add", "fix-double"}
    # the quote is the document's own words, and where they stand
    (finding,) = played.artifacts("finding")
    (citation,) = finding.citations
    assert (citation.quote, citation.first, citation.last) == ("Doubling adds a number\nto itself.", 4, 5)
    # each artifact was judged by somebody else, under its digest; the merged result as a whole
    verdicts = played.artifacts("verdict")
    assert {v.subject.kind for v in verdicts} == {"finding", "patch", "deliverable"}
    assert all(v.passed for v in verdicts)
    (final,) = [v for v in verdicts if v.subject.kind == "deliverable"]
    assert final.scope == "whole"
    assert final.tree == outcome.deliverable.tree
    assert [c.exit_code for c in final.checks] == [0]
    for verdict in verdicts:
        assert verdict.subject.digest in played.board.tasks[played.task].artifacts
    assert outcome.usage.model_calls == 6


async def test_without_a_check_it_is_labelled_unchecked(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), edit("fix", FIX_ADD), finish("fix"), checks=()
    )
    assert played.outcome.state == "done"
    assert not played.outcome.checked
    assert "unchecked" in played.outcome.reason
    assert "unchecked" in played.outcome.as_folder()["report.md"].content.decode()
    assert not any(v.checked for v in played.artifacts("verdict"))


async def test_different_plans_are_different_dags(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("one", "coder", ()), ("two", "coder", ("one",))),
        edit("one", FIX_ADD), finish("one"), edit("two", FIX_DOUBLE),
    )  # fmt: skip
    assert played.outcome.state == "done"
    first, second = played.artifacts("patch", "one") + played.artifacts("patch", "two")
    assert second.base == first.result
    assert len(second.onto) == 1
    assert "a - b" not in second.diff  # each diff shows its own work alone
    assert played.artifacts("verdict", "verify-two")[0].scope == "whole"
    assert played.artifacts("verdict", "verify-one")[0].scope == "part"


# ---------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (plan(("one", "coder", ("two",)), ("two", "coder", ("one",))), "circle: one"),
        (plan(("one", "coder", ()), ("one", "coder", ())), "refused"),
        (plan(("one", "coder", ("ghost",))), "ghost"),
        (plan(("integrate", "coder", ())), "refused"),
        (plan(("one", "verifier", ())), "refused"),
        (plan(("one", "researcher", ())), "refused"),  # the task brings no documents
        ({"when": {"role": "planner"}, "reply": {"content": "I would rather not"}}, "not the JSON"),
    ],
)
async def test_a_bad_plan_is_named_back_and_mended(
    nats_server: NatsServer, tmp_path: Path, bad: dict[str, Any], named: str
) -> None:
    mended = {**plan(("fix", "coder", ())), "when": {"role": "planner", "contains": named}}
    played = await play(
        nats_server.url, tmp_path, mended, {**bad, "times": 1}, edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE)
    )
    assert played.outcome.state == "done"
    assert len(played.artifacts("plan")) == 1
    assert played.outcome.usage.model_calls == 4


async def test_a_planner_that_cannot_ends_the_task_with_the_reason(nats_server: NatsServer, tmp_path: Path) -> None:
    bad = plan(("one", "coder", ("two",)), ("two", "coder", ("one",)))
    played = await play(nats_server.url, tmp_path, bad, attempts=2)
    assert played.outcome.state == "failed"
    assert "circle" in played.outcome.reason
    assert len(played.happened("ordered", "plan")) == 2
    assert played.outcome.deliverable is None
    assert played.outcome.as_folder() == {}


# ---------------------------------------------------------------------- findings


@pytest.mark.parametrize("quote", ["Doubling subtracts", "doubling adds a number", "To add is to sum!", "rules"])
async def test_a_quote_that_is_not_there_is_refused(nats_server: NatsServer, tmp_path: Path, quote: str) -> None:
    docs = {"rules.md": "To add is to sum.\nDoubling adds a number to itself.\nMake checks pass.\n"}
    quote = quote if len(quote) > 5 else quote + " of old"
    mended = {**find("rules.md", "To add is to sum."), "when": {"role": "researcher", "contains": "Refused"}}
    played = await play(
        nats_server.url, tmp_path, plan(("facts", "researcher", ()), ("fix", "coder", ("facts",))),
        mended, find("rules.md", quote), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE), docs=docs,
    )  # fmt: skip
    assert played.outcome.state == "done"
    assert [f.citations[0].quote for f in played.artifacts("finding")] == ["To add is to sum."]


def test_a_citation_is_verbatim_or_nothing() -> None:
    sources = tree({"a.md": "one two\n  three\nfour", "b.md": "x"})
    found = cite(sources, "a.md", "two three")
    assert found is not None
    assert (found.quote, found.first, found.last) == ("two\n  three", 1, 2)
    assert stands(sources, found)
    for quote in ("two  four", "Two three", "", "  ", "three.", "one two three four five"):
        assert cite(sources, "a.md", quote) is None
    assert cite(sources, "none.md", "one") is None
    for wrong in (
        {"first": 2}, {"last": 1}, {"quote": "two three"}, {"source": "b.md"}, {"sha256": "sha256:" + "0" * 64},
    ):  # fmt: skip
        values = {name: getattr(found, name) for name in found.__struct_fields__} | wrong
        assert not stands(sources, type(found)(**values)), wrong
    changed = tree({"a.md": "one two\n  three\nfive"})
    assert not stands(changed, found)  # the document is another now
    assert Finding("s", (found,)).citations


# ---------------------------------------------------------------------- coding


async def test_unfinished_work_is_not_handed_over(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())),
        finish("fix"),  # nothing is changed yet
        edit("fix", FIX_ADD), finish("fix"),  # one check still fails
        edit("fix", FIX_DOUBLE),
    )  # fmt: skip
    assert played.outcome.state == "done"
    assert played.outcome.usage.model_calls == 5
    assert len(played.artifacts("patch")) == 1


WEAKER = [
    act("fix", "write_file", path="check.sh", content="true\n"),
    act("fix", "delete_file", path="check.sh"),
    act("fix", "write_file", path="conftest.py", content="x"),
    act("fix", "write_file", path="sitecustomize.py", content="import os; os._exit(0)\n"),
]


@pytest.mark.parametrize("weaker", WEAKER, ids=["rewrites", "deletes", "runs before", "takes over"])
async def test_a_coder_cannot_weaken_the_checks(
    nats_server: NatsServer, tmp_path: Path, weaker: dict[str, Any]
) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), weaker, finish("fix"),
        edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE), finish("fix"), attempts=1,
    )  # fmt: skip
    outcome = played.outcome
    assert outcome.state == "done"
    assert set(outcome.files) == {"calc.py"}
    assert "a + b" in outcome.files["calc.py"].content.decode()


async def test_double_encoded_arguments_are_read_everywhere(nats_server: NatsServer, tmp_path: Path) -> None:
    files = {**FILES, "notes.md": "nothing here\n"}
    wrapped = act("fix", "read_file")
    wrapped["reply"]["content"]["arguments"] = json.dumps({"path": "notes.md"})
    odd: list[dict[str, Any]] = []
    for arguments in ("null", "[]", [], 3, None, "{"):
        one = act("fix", "read_file")
        one["reply"]["content"]["arguments"] = arguments
        odd.append(one)
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), wrapped, *odd, edit("fix", FIX_ADD),
        edit("fix", FIX_DOUBLE), files=files, attempts=1,
    )  # fmt: skip
    assert played.outcome.state == "done"


async def test_a_check_that_hangs_is_ended_and_said(nats_server: NatsServer, tmp_path: Path) -> None:
    files = {"calc.py": "x = 1\n", "check.py": "import calc, time\ntime.sleep(60 if calc.x == 1 else 0)\n"}
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), edit("fix", ("x = 1", "x = 2")), files=files,
        check_seconds=1, attempts=1, checks=["python3 check.py"],
    )  # fmt: skip
    assert played.outcome.state == "done"


async def test_a_check_that_floods_is_bounded(nats_server: NatsServer, tmp_path: Path) -> None:
    flood = "import sys, calc\nsys.stdout.write('y' * 10_000_000)\nassert calc.x == 2\n"
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), edit("fix", ("x = 1", "x = 2")),
        files={"calc.py": "x = 1\n", "check.py": flood}, attempts=1, checks=["python3 check.py"],
    )  # fmt: skip
    assert played.outcome.state == "done"
    for verdict in played.artifacts("verdict"):
        assert all(0 < len(check.output) <= 16_384 for check in verdict.checks)


async def test_a_check_that_does_not_exist_fails_the_task_honestly(nats_server: NatsServer, tmp_path: Path) -> None:
    replies = [edit("fix", FIX_ADD), *(finish("fix") for _ in range(12))]
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), *replies, checks=["no-such-program"], attempts=1, steps=4
    )
    assert played.outcome.state == "failed"
    assert "fix" in played.outcome.reason
    assert played.outcome.deliverable is None


# ---------------------------------------------------------------------- native tool calls


def turn(*calls: tuple[str, Any], step: str = "fix", times: int = 1, content: str = "") -> dict[str, Any]:
    reply = {"content": content, "calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
    return {"when": {"role": "coder", "step": step}, "reply": reply, "times": times}


def change(fix: tuple[str, str]) -> tuple[str, dict[str, str]]:
    return ("edit_file", {"path": "calc.py", "old": fix[0], "new": fix[1]})


async def test_native_calls_several_in_one_reply(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())),
        turn(("read_file", {"path": "calc.py"}), ("list_files", ""), ("no_such_tool", {}), ("edit_file", '{"path":')),
        turn(("finish", {"summary": "too early"})),
        turn(change(FIX_ADD), change(FIX_DOUBLE), ("run_checks", "null")),
        turn(("finish", {"summary": "both are right now"})),
        native=True, attempts=1,
    )  # fmt: skip
    assert played.outcome.state == "done"
    assert played.outcome.usage.model_calls == 5
    (patch,) = played.artifacts("patch")
    assert isinstance(patch, Patch)
    assert patch.summary == "both are right now"


async def test_native_every_call_is_answered_exactly_once(tmp_path: Path, nats_server: NatsServer) -> None:
    """What the model is shown: after each reply with calls, one result for each id, in order, before anything else."""

    inner = open_model(
        script(
            tmp_path / "s.json",
            turn(("read_file", {"path": "calc.py"}), ("nope", {}), ("edit_file", "{"), ("read_file", "[]")),
            turn(("finish", {"summary": "x"}), change(FIX_ADD)),
            turn(content="let me think"),
            turn(("finish", {"summary": "x"})),
            turn(change(FIX_DOUBLE)),
            turn(("finish", {"summary": "it is right"})),
        ),
        env={},
    )  # fmt: skip
    shown: list[Request] = []

    class Watched:
        name, context_tokens = "watched", None

        async def call(self, request: Request, context: CallContext, progress: Any) -> Reply:
            shown.append(request)
            return await inner.call(request, context, progress)

        async def aclose(self) -> None: ...

    async with await Bus.connect(nats_server.url) as bus:
        desk = await Desk.open(bus, FILES, checks=(CHECK,))
        owner = await desk.claimed(await desk.order())
        work = await desk.work(owner, tmp_path / "home", meter=Meter(Watched()), native_tools=True)
        coding = await Coding.begin(work)
        tools = Registry([tool for tool in BUILT_IN_TOOLS if tool.name in ("read_file", "edit_file", "run_checks")])
        await Loop(work, NativeActions(coding, tools), tools, coding.context).run()
    assert len(shown) == 6
    messages = shown[-1].messages
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.calls:
            results = messages[at : at + len(message.calls)]
            assert [m.role for m in results] == ["tool"] * len(message.calls)
            assert sorted(m.call_id or "" for m in results) == sorted(c.id for c in message.calls)
            at += len(message.calls)
        else:
            assert message.role != "tool"


# ---------------------------------------------------------------------- judging and merging


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
