"""The coder: what it may hand over, however its model speaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.loop import Loop
from kokuban.agents.models import CallContext, Meter, Reply, Request, open_model
from kokuban.agents.roles._coding import Coding
from kokuban.agents.roles._native import NativeActions
from kokuban.agents.tools import BUILT_IN_TOOLS, Registry
from kokuban.blackboard.wire import Bus
from kokuban.schemas import Patch
from support.desk import Desk, contract
from support.nats_server import NatsServer
from support.playing import play
from support.team import (
    CHECK,
    FILES,
    FIX_ADD,
    FIX_DOUBLE,
    act,
    edit,
    finish,
    plan,
    script,
)

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------------- coding


def test_the_coder_has_the_tools_that_its_contract_names() -> None:
    known = {tool.name for tool in BUILT_IN_TOOLS}
    assert set(contract("coder").tools) <= known


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
