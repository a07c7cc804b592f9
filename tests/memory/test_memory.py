"""Long-term memory (G4): one tenant's is nobody else's by any path, and only what was approved ever surfaces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles.agent import Agent
from kokuban.agents.worker import Worker
from kokuban.blackboard import Client
from kokuban.blackboard.core import Stored
from kokuban.blackboard.memory import EVERYTHING, Access, Memories, NoMemory, folded
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.schemas import InvalidName, digest, encode, seal, subjects
from kokuban.schemas.contracts import parse_contract
from kokuban.schemas.memory import Judgement, Proposal
from support.nats_server import NatsServer
from support.team import records, script, team
from support.waiting import running

DATA = Path(__file__).parents[1] / "data"
pytestmark = pytest.mark.anyio


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as found:
        await ensure_board(found)
        yield found


def of(bus: Bus, tenant: str = "acme", *, unapproved: bool = False) -> Memories:
    return Memories(bus, tenant=tenant, access=Access(EVERYTHING, unapproved))


async def approved(bus: Bus, key: str, text: str, tenant: str = "acme", **more: Any) -> str:
    name, _ = await of(bus, tenant).propose(kind="fact", key=key, text=text, author="coder", **more)
    await of(bus, tenant, unapproved=True).judge(name, "approved", by="ann")
    return name


async def test_a_proposal_counts_once_a_person_has_approved_it(bus: Bus) -> None:
    name, new = await of(bus).propose(
        kind="fact", key="port", text="The till listens on 8900.", author="coder", task="t-1"
    )
    assert new
    assert await of(bus).recall("till") == await of(bus).listed() == []
    with pytest.raises(NoMemory):
        await of(bus).get(name)
    assert [m.state for m in await of(bus, unapproved=True).listed()] == ["proposed"]
    await of(bus, unapproved=True).judge(name, "approved", by="ann", reason="seen it")
    (found,) = await of(bus).recall("where is the till?")
    assert (found.id, found.by, found.proposal.author, found.proposal.task) == (name, "ann", "coder", "t-1")
    again, new = await of(bus).propose(kind="fact", key="port", text="The till listens on 8900.", author="planner")
    assert (again, new) == (name, False)


async def test_the_first_word_counts(bus: Bus) -> None:
    name, _ = await of(bus).propose(kind="fact", key="k", text="t", author="coder")
    assert (await of(bus, unapproved=True).judge(name, "denied", by="ann")).state == "denied"
    assert (await of(bus, unapproved=True).judge(name, "approved", by="bob")).state == "denied"
    assert await of(bus).recall("k") == []


async def test_no_path_leads_to_another_tenant(bus: Bus) -> None:
    name = await approved(bus, "secret plan", "Buy the harbour.")
    for unapproved in (False, True):
        other = of(bus, "rival", unapproved=unapproved)
        assert await other.recall("secret plan") == await other.recall("harbour") == await other.listed() == []
        for ask in (other.get(name), other.judge(name, "denied", by="eve")):
            with pytest.raises(NoMemory):
                await ask
        assert await other.forget(name=name) == 0
    assert (await of(bus).get(name)).proposal.text == "Buy the harbour."
    for nobody in ("", None, "*", ">", "a.b", "acme.*"):
        with pytest.raises(InvalidName):
            Memories(bus, tenant=nobody, access=Access(EVERYTHING))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Memories(bus)  # type: ignore[call-arg]


async def test_what_is_filtered_out_cannot_be_asked_for(bus: Bus) -> None:
    await approved(bus, "k", "a fact")
    only = Memories(bus, tenant="acme", access=Access(frozenset({"preference"}), unapproved=True))
    assert await only.recall("k") == await only.listed() == []


def stored(seq: int, word: str, body: Any, time: float = 100.0, kind: str | None = None, name: str = "m1") -> Stored:
    data = seal(body, id=f"op{seq}", type=kind or f"memory.{word}", trust="model", time="2026-01-01T00:00:00.000Z")
    return Stored(seq, subjects.memory("acme", name, word), time, data)


def test_expiry_is_by_the_servers_clock() -> None:
    body = Proposal("acme", "fact", "k", "t", "coder", expires_seconds=60)
    said = [stored(1, "proposed", body), stored(2, "judged", Judgement("approved", "ann", digest(encode(body))))]
    assert folded(said, "acme", 159.9)[0].state == "approved"
    assert folded(said, "acme", 160.0)[0].state == "expired"


def test_what_is_none_of_its_records_is_passed_over() -> None:
    body = Proposal("acme", "fact", "k", "t", "coder")
    other = Judgement("approved", "ann", "sha256:" + "0" * 64)
    said = [
        stored(1, "proposed", body), stored(2, "proposed", Proposal("acme", "fact", "k", "evil", "coder")),
        stored(3, "judged", other), stored(4, "judged", body, kind="memory.judged"),
        stored(5, "judged", Judgement("approved", "x", digest(encode(body))), kind="step.done"),
        stored(6, "proposed", Proposal("rival", "fact", "k", "foreign", "coder"), name="m2"),
        Stored(7, subjects.memory("acme", "m3", "proposed"), 1.0, b"{nonsense"),
    ]  # fmt: skip
    assert [(m.proposal.text, m.state) for m in folded(said, "acme", 1e9)] == [("t", "proposed")]


@pytest.mark.parametrize("by", ["id", "task", "author", "all"])
async def test_forgetting_reaches_every_path_and_nothing_late_comes_back(
    nats_server: NatsServer, bus: Bus, by: str
) -> None:
    name = await approved(bus, "canary", "CANARY-4711", task="t-1")
    theirs = await approved(bus, "canary", "theirs", tenant="rival")
    chosen: dict[str, dict[str, str]] = {
        "id": {"name": name},
        "task": {"task": "t-1"},
        "author": {"author": "coder"},
        "all": {},
    }
    assert await of(bus).forget(**chosen[by]) == 1
    assert await of(bus).recall("canary") == await of(bus, unapproved=True).listed() == []
    with pytest.raises(NoMemory):
        await of(bus, unapproved=True).get(name)
    with pytest.raises(NoMemory, match="forgotten"):
        await of(bus).propose(kind="fact", key="canary", text="CANARY-4711", author="coder")
    assert not any(b"CANARY-4711" in one.data for one in await records(nats_server.url)), "its words are off the board"
    assert [m.id for m in await of(bus, "rival").listed()] == [theirs]


def test_records_of_this_version_fold_for_ever() -> None:
    lines = [json.loads(line) for line in (DATA / "memory.jsonl").read_text("utf-8").splitlines()]
    said = [Stored(line["seq"], line["subject"], line["time"], line["data"].encode()) for line in lines]
    assert [(m.proposal.key, m.state, m.by) for m in folded(said, "acme", 1e9)] == [
        ("port", "approved", "ann"), ("style", "denied", "bob"), ("old", "expired", "ann"),
    ]  # fmt: skip


async def test_recall_ranks_by_key_and_words(bus: Bus) -> None:
    await approved(bus, "code style", "Indent with tabs, never with blanks.")
    await approved(bus, "release day", "Releases are on Tuesday.")
    assert [m.proposal.key for m in await of(bus).recall("code style")] == ["code style"]
    assert [m.proposal.key for m in await of(bus).recall("on which day do we release, Tuesday?")] == ["release day"]
    assert await of(bus).recall('") OR 1=1 --') == []


CONTRACT = """
role = "answerer"
summary = "Answers from memory."
when = "planned"
consumes = ["task"]
produces = ["answer"]
tools = ["recall", "remember"]
model = true
shape = "react"
"""
ANSWER = (
    b'{"type": "object", "additionalProperties": false, "required": ["text"],'
    b' "properties": {"text": {"type": "string"}}}'
)


def replies() -> list[dict[str, Any]]:
    """A model that answers rightly when, and only when, it is shown the code."""
    plan = {"steps": [{"id": "answer", "role": "answerer", "goal": "Which code opens the gate?", "needs": []}]}
    call = {"name": "recall", "arguments": {"query": "gate code"}}
    right = {"name": "give_answer", "arguments": {"text": "4711"}}
    wrong = {"name": "give_answer", "arguments": {"text": "I do not know"}}
    return [
        {"when": {"role": "planner"}, "reply": {"content": plan}},
        {"when": {"role": "answerer", "turn": 1}, "reply": {"calls": [call]}},
        {"when": {"role": "answerer", "contains": "The gate opens with 4711"}, "reply": {"calls": [right]}},
        {"when": {"role": "answerer"}, "reply": {"calls": [wrong]}},
    ]


async def test_a_task_passes_only_with_the_memory(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    model = script(tmp_path / "s.json", *replies())
    await register_kind(bus, "answer", ANSWER)
    await register_role(bus, CONTRACT)
    contract = parse_contract(CONTRACT, "answerer.toml", ["answer"])
    program = Agent("answerer", contract.summary, None, {"answer": json.loads(ANSWER)})
    worker = Worker(bus, contract, program, home=tmp_path / "home", meter=Meter(open_model(model, env={})))
    async with (
        team(nats_server.url, model, tmp_path / "team"), running(worker.run()),
        await Client.connect(nats_server.url) as board,
    ):  # fmt: skip

        async def answer() -> str:
            task = await board.submit("Which code opens the gate?")
            async for event in board.watch(task):
                if event.event == "artifact" and event.kind == "answer":
                    found: str = event.artifact()["text"]
            return found

        assert await answer() == "I do not know"
        name = await approved(bus, "gate code", "The gate opens with 4711", tenant="default")
        assert await answer() == "4711"
        await of(bus, "default").forget(name=name)
        assert await answer() == "I do not know"
