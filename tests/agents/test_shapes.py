"""Shapes that a contract selects: a role of one's own needs a contract, a prompt and tools, no code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.tools import Tool, ToolContext
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus
from support.nats_server import NatsServer
from support.own_role import TEXT, OwnRole, calls, gives, plans, says

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as found:
        yield found


@pytest.fixture
async def board(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with await Client.connect(nats_server.url) as found:
        yield found


async def look(context: ToolContext, values: Mapping[str, Any]) -> str:
    return f"{values['text']} is 7"


LOOK = Tool("look", "Says what something is.", TEXT, look, "read", "read")


async def given(board: Client, task: str) -> list[str]:
    """The answers that were admitted."""
    found = []
    async for event in board.watch(task):
        if event.event == "artifact" and event.kind == "answer":
            found.append(event.artifact()["text"])
    return found


async def test_react_looks_and_then_gives(nats_server: NatsServer, bus: Bus, board: Client, tmp_path: Path) -> None:
    role = OwnRole(bus, nats_server.url, tmp_path, [LOOK])
    async with role.working(
        plans(("one", "What is x?")),
        calls(("look", {"text": "x"}), turn=1),
        gives("x is 7", contains="x is 7"),
    ):
        task = await board.submit("What is x?")
        assert await given(board, task) == ["x is 7"]
        opened = await role.opened(task, "one")
    assert [(o.kind, o.tool) for o in opened] == [("tool", "look"), ("model", ""), ("tool", "give_answer")]
    assert {o.prompt for o in opened if o.kind == "model"} == {next(o.prompt for o in opened if o.prompt)}
    assert opened[1].prompt.startswith("answerer@")


def shown_lists(role: OwnRole) -> list[str]:
    """The list as it was shown at the beginning of each item."""
    found = []
    for _, request in role.asked:
        text = request.messages[-1].content if request.messages[-1].role == "user" else ""
        if text.startswith("The list:"):
            found.append(text.removeprefix("The list:\n").partition("\n\n")[0])
    return list(dict.fromkeys(found))


async def test_a_list_is_worked_off_and_an_item_that_fails_has_the_rest_made_anew(
    nats_server: NatsServer, bus: Bus, board: Client, tmp_path: Path
) -> None:
    role = OwnRole(bus, nats_server.url, tmp_path, [LOOK], "plan-execute", "[limits]\nsteps = 20\n")
    async with role.working(
        plans(("one", "What is z?")),
        says({"items": ["look x up", "ring them up"]}, contains="Make a list", turn=1) | {"times": 1},
        says({"items": ["look y up"]}, contains="an item failed"),
        calls(("end_item", {"done": True, "result": "x is 7"}), contains="Do this item now: look x up"),
        calls(("end_item", {"done": False, "result": "no telephone"}), contains="Do this item now: ring them up"),
        calls(("end_item", {"done": True, "result": "y is 7"}), contains="Do this item now: look y up"),
        gives("z is 14", contains="Give the result now"),
    ):
        task = await board.submit("What is z?")
        assert await given(board, task) == ["z is 14"]
        opened = await role.opened(task, "one")
    assert shown_lists(role) == [
        "[ ] look x up\n[ ] ring them up",
        "[x] look x up: x is 7\n[ ] ring them up",
        "[x] look x up: x is 7\n[!] ring them up: no telephone\n[ ] look y up",
        "[x] look x up: x is 7\n[!] ring them up: no telephone\n[x] look y up: y is 7",
    ]
    ended = [json.loads(bytes(o.arguments)) for o in opened if o.tool == "end_item"]
    assert [one["done"] for one in ended] == [True, False, True]


async def test_an_item_that_leads_nowhere_is_one_that_failed(
    nats_server: NatsServer, bus: Bus, board: Client, tmp_path: Path
) -> None:
    limits = "[limits]\nsteps = 40\ntool_calls = 40\ntokens = 200000\n"
    role = OwnRole(bus, nats_server.url, tmp_path, [LOOK], "plan-execute", limits)
    async with role.working(
        plans(("one", "What is z?")),
        says({"items": ["look x up"]}, contains="Make a list", turn=1) | {"times": 1},
        gives("a guess", contains="Do this item now: guess it"),
        says({"items": ["guess it"]}, contains="[!] look x up: nothing new came of 6 turns"),
        calls(("look", {"text": "x"}), contains="Do this item now: look x up"),
    ):
        task = await board.submit("What is z?")
        assert await given(board, task) == ["a guess"]


async def test_lists_are_made_anew_so_often_and_no_more(
    nats_server: NatsServer, bus: Bus, board: Client, tmp_path: Path
) -> None:
    role = OwnRole(bus, nats_server.url, tmp_path, [], "plan-execute", "[limits]\nsteps = 40\n")
    async with role.working(
        plans(("one", "What is z?")),
        says({"items": ["try it"]}, contains="Make a list"),
        gives("it could not be found out", contains="Give the result now"),
        calls(("end_item", {"done": False, "result": "no"}), contains="Do this item now"),
    ):
        task = await board.submit("What is z?")
        assert await given(board, task) == ["it could not be found out"]
        opened = await role.opened(task, "one")
    assert [o.tool for o in opened if o.kind == "tool"] == ["end_item"] * 3 + ["give_answer"]
