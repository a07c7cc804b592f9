"""What people type: memory list, show, recall, add, learn, approve, deny, forget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kokuban.blackboard import Client
from kokuban.blackboard.memory import EVERYTHING, Access, Memories
from kokuban.blackboard.wire import Bus, ensure_board
from support.nats_server import NatsServer
from support.team import FIX_ADD, act, edit, finish, plan, script, team, workspace

Here = Callable[..., Any]


@pytest.fixture
def ask(here: Here, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command as ann, on the test's board."""
    monkeypatch.setenv("KOKUBAN_PERSON", "ann")
    monkeypatch.setenv("KOKUBAN_NATS_URL", nats_server.url)

    def run(*arguments: object) -> Any:
        return here("memory", *arguments)

    return run


def proposed(url: str, text: str, **more: Any) -> str:
    """By a coder, as its tool does; the id."""

    async def propose() -> str:
        access = Access(kinds=EVERYTHING, principals=frozenset(), unapproved=False)
        async with await Bus.connect(url) as bus:
            await ensure_board(bus)
            memories = Memories(bus, tenant="default", access=access, who="role-coder")
            name, _ = await memories.propose(kind="fact", key="port", text=text, task="t-1", step="fix", **more)
            return name

    return _run(propose())


def _run(work: Coroutine[Any, Any, str]) -> str:
    return asyncio.run(work)


def test_from_proposal_to_oblivion(ask: Here, nats_server: NatsServer) -> None:
    name = proposed(nats_server.url, "It listens on 8900.\n\x1b[31mreally")
    assert ask("recall", "port").out == ""
    (line, text) = ask("list", "--pending").out.splitlines()
    assert line == f"{name}  proposed  fact of role-coder, from t-1/fix"
    assert text == "  port: It listens on 8900. [31mreally", "nothing in it reaches the terminal"
    done = ask("approve", name, "--reason", "looked it up")
    assert done.code == 0
    assert done.out.startswith(f"{name}  approved by person-ann (looked it up)")
    late = ask("deny", name, "--as", "bob")
    assert late.code == 1
    assert "approved by person-ann" in late.out
    assert ask("list", "--pending").out == ""
    (found,) = ask("recall", "which port", "--json").objects
    assert (found["id"], found["author"], found["by"], found["task"]) == (name, "role-coder", "person-ann", "t-1")
    assert "    It listens on 8900.\n" in ask("show", name).out
    assert ask("forget", "--author", "role-coder").out == "1 forgotten\n"
    gone = ask("show", name)
    assert gone.code == 2
    assert "has no" in gone.err
    assert ask("list").out == ask("recall", "port").out == ""


def test_a_person_adds_and_somebody_approves(ask: Here) -> None:
    (added,) = ask(
        "add", "code style", "Tabs.", "--kind", "preference", "--about", "bob", "--expires", "90d", "--json"
    ).objects
    assert (added["author"], added["state"], added["principal"]) == ("person-ann", "proposed", "bob")
    assert added["expires_seconds"] == 90 * 86_400
    assert ask("approve", added["id"]).code == 0
    assert ask("recall", "code style", "--tenant", "rival").out == ""
    assert "about bob" in ask("recall", "code style").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["forget"], "name one ID"), (["forget", "x", "--all"], "name one ID"),
        (["list", "--tenant", "a.b"], "tenant"), (["list", "--tenant", ""], "tenant"), (["show", "*"], "memory"),
        (["approve", "nothing"], "has no 'nothing'"), (["add", "", "x"], "memory"),
        (["add", "k", "x" * 70_000], "memory"),
        (["recall", "x", "--embeddings", "http://me:secret@x/v1"], "no password"),
        (["learn", "t-0123456789ab"], "t-0123456789ab"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(ask: Here, arguments: list[str], said: str) -> None:
    done = ask(*arguments)
    assert done.code not in (0, 1), done
    assert said in done.err
    assert "Traceback" not in done.err
    assert "secret" not in done.err


def test_what_a_task_tried_is_learnt(
    ask: Here, nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = script(
        tmp_path / "s.json", plan(("fix", "coder", ())),
        act(None, "edit_file", path="calc.py", old="not there", new="x"), edit(None, FIX_ADD), finish(None),
    )  # fmt: skip

    async def task() -> str:
        async with team(nats_server.url, model, tmp_path / "team"), await Client.connect(nats_server.url) as board:
            name = await board.submit(
                "Make add right", workspace=workspace(tmp_path / "w"), checks=("grep -q 'a + b' calc.py",)
            )
            assert (await board.result(name, timeout=60)).state == "done"
            return name

    name = _run(task())
    capsys.readouterr()  # the log of the team
    (learnt,) = ask("learn", name, "--json").objects
    assert (learnt["kind"], learnt["state"], learnt["key"]) == ("episode", "proposed", "Make add right")
    assert learnt["text"].splitlines()[:2][0] == "Goal: Make add right"
    assert "Outcome: done" in learnt["text"]
    assert learnt["task"] == name
    assert learnt["sources"]
    assert ask("recall", "add").out == "", "an episode is a proposal, too"
    ask("approve", learnt["id"])
    assert [one["id"] for one in ask("recall", "how to make add right", "--json").objects] == [learnt["id"]]
    assert ask("forget", "--source", learnt["sources"][0]).out == "1 forgotten\n"
    assert ask("list").out == ""
