"""Long-term memory (G4): one tenant's is nobody else's by any path, and only what was approved ever surfaces."""

from __future__ import annotations

import asyncio
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
from kokuban.blackboard.memory import ANYBODY, EVERYTHING, Access, InvalidMemory, Memories, NoMemory, Shelf, folded
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.schemas import digest, seal, subjects
from kokuban.schemas.contracts import builtin_crew, parse_contract
from kokuban.schemas.memory import Forgotten, Judgement, Proposal
from kokuban.supervisor import Supervisor
from support.nats_server import NatsServer
from support.team import records, script, team
from support.waiting import eventually, running

DATA = Path(__file__).parents[1] / "data"
SOURCE = digest(b"an artifact")
WIDE: dict[str, Any] = {"kinds": EVERYTHING, "principals": ANYBODY, "unapproved": True}
pytestmark = pytest.mark.anyio


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_server.url) as found:
        await ensure_board(found)
        yield found


def of(bus: Bus, tenant: str = "acme", *, unapproved: bool = False, who: str = "role-coder", **more: Any) -> Memories:
    access = Access(kinds=EVERYTHING, principals=more.pop("principals", ANYBODY), unapproved=unapproved)
    return Memories(bus, tenant=tenant, access=access, who=who, **more)


def people(bus: Bus, tenant: str = "acme", name: str = "ann") -> Memories:
    return of(bus, tenant, unapproved=True, who=f"person-{name}")


async def approved(bus: Bus, key: str, text: str, tenant: str = "acme", **more: Any) -> str:
    name, _ = await of(bus, tenant).propose(kind=more.pop("kind", "fact"), key=key, text=text, **more)
    await people(bus, tenant).judge(name, "approved")
    return name


async def test_a_proposal_counts_once_a_person_has_approved_it(bus: Bus) -> None:
    name, new = await of(bus).propose(kind="fact", key="port", text="The till listens on 8900.", task="t-1")
    assert new
    assert await of(bus).recall("till") == await of(bus).listed() == []
    with pytest.raises(NoMemory):
        await of(bus).get(name)
    assert [m.state for m in await people(bus).listed()] == ["proposed"]
    assert await people(bus).recall("till") == [], "recall shows nobody what is not approved"
    await people(bus).judge(name, "approved", reason="seen it")
    (found,) = await of(bus).recall("where is the till?")
    assert (found.id, found.by, found.author, found.proposal.task) == (name, "person-ann", "role-coder", "t-1")
    again, new = await of(bus, who="role-planner").propose(kind="fact", key="port", text="The till listens on 8900.")
    assert (again, new) == (name, False)
    assert (await of(bus).get(name)).author == "role-coder", "who said it first did"


async def test_the_first_word_counts(bus: Bus) -> None:
    name, _ = await of(bus).propose(kind="fact", key="k", text="t")
    said = await asyncio.gather(*(
        people(bus, name=one).judge(name, "denied" if n % 2 else "approved") for n, one in enumerate("abcdef")
    ))  # fmt: skip
    assert len({(m.state, m.by) for m in said}) == 1, "everybody is told the same"
    before = said[0].state
    other = "denied" if before == "approved" else "approved"
    assert (await people(bus, name="late").judge(name, other)).state == before  # type: ignore[arg-type]
    assert bool(await of(bus).recall("k")) is (before == "approved")


async def test_a_role_has_no_word_about_its_own_proposal(bus: Bus) -> None:
    verifier = of(bus, unapproved=True, who="role-verifier")
    own, _ = await verifier.propose(kind="fact", key="mine", text="trust me")
    assert (await verifier.judge(own, "approved")).state == "proposed"
    others, _ = await of(bus).propose(kind="fact", key="theirs", text="checked")
    assert (await verifier.judge(others, "approved")).state == "approved"
    assert [m.proposal.key for m in await of(bus).listed()] == ["theirs"]
    assert (await people(bus).judge(own, "denied")).by == "person-ann", "somebody else's word counts still"


async def test_what_is_filtered_out_cannot_be_asked_for(bus: Bus) -> None:
    fact = await approved(bus, "k", "a fact")
    mine = await approved(bus, "k", "mine", kind="preference", principal="ann")
    theirs = await approved(bus, "k", "theirs", kind="preference", principal="bob")
    only = Access(kinds=frozenset({"preference"}), principals=frozenset({"ann"}), unapproved=True)
    memories = Memories(bus, tenant="acme", access=only, who="role-coder")
    assert [m.id for m in await memories.recall("k")] == [m.id for m in await memories.listed()] == [mine]
    for name in (fact, theirs):
        with pytest.raises(NoMemory):
            await memories.get(name)
    with pytest.raises(InvalidMemory):
        await memories.propose(kind="fact", key="k", text="not allowed here")
    assert {m.id for m in await of(bus, principals=frozenset()).listed()} == {fact}, "nobody's are nobody's"


@pytest.mark.parametrize(("field", "value"), [("key", ""), ("key", "k" * 201), ("text", ""), ("text", "\ud800")])
async def test_what_no_reader_would_take_is_not_written(bus: Bus, field: str, value: str) -> None:
    with pytest.raises(InvalidMemory):
        await of(bus).propose(kind="fact", **{"key": "k", "text": "t", field: value})
    assert await people(bus).listed() == []


async def test_access_is_said_and_never_assumed(bus: Bus) -> None:
    for given in ({}, {"tenant": "acme"}, {"tenant": "acme", "access": Access(**WIDE)}, {"who": "person-ann"}):
        with pytest.raises(TypeError):
            Memories(bus, **given)
    for lacking in WIDE:
        with pytest.raises(TypeError):
            Access(**{name: value for name, value in WIDE.items() if name != lacking})
    with pytest.raises(ValueError, match="another tenant"):
        of(bus, "acme", shelf=Shelf("rival"))


def stored(
    seq: int, word: str, body: Any, *, time: float = 100.0, kind: str | None = None, name: str = "m1",
    who: str = "role-coder", tenant: str = "acme",
) -> Stored:  # fmt: skip
    data = seal(body, id=f"op{seq}", type=kind or f"memory.{word}", trust="model", time="2026-01-01T00:00:00.000Z")
    return Stored(seq, subjects.memory(tenant, name, word, "" if word == "forgotten" else who), time, data)


def judged(seq: int, proposal: Stored, outcome: str = "approved", **more: Any) -> Stored:
    return stored(seq, "judged", Judgement(outcome, digest(proposal.data)), **{"who": "person-ann", **more})  # type: ignore[arg-type]


def test_expiry_is_by_the_servers_clock_and_what_expired_may_be_said_again() -> None:
    body = Proposal("acme", "fact", "k", "t", expires_seconds=60)
    first = stored(1, "proposed", body)
    said = [first, judged(2, first)]
    assert folded(said, "acme", 159.9)[0].state == "approved"
    assert folded(said, "acme", 160.0)[0].state == "expired"
    early = stored(3, "proposed", body, time=159.0, who="role-planner")
    assert folded([*said, early], "acme", 159.9)[0].author == "role-coder", "what stands is not replaced"
    again = stored(3, "proposed", body, time=170.0, who="role-planner")
    assert folded([*said, again], "acme", 171.0)[0].state == "proposed", "the old approval was of the old proposal"
    late = judged(4, first, who="person-bob", time=171.0)
    assert folded([*said, again, late], "acme", 172.0)[0].state == "proposed"
    assert folded([*said, again, judged(5, again)], "acme", 172.0)[0].state == "approved"


def test_of_two_judgements_the_earlier_record_counts() -> None:
    first = stored(1, "proposed", Proposal("acme", "fact", "k", "t"))
    for one, other in (("approved", "denied"), ("denied", "approved")):
        said = [judged(3, first, other, who="person-bob"), first, judged(2, first, one)]
        assert [(m.state, m.by) for m in folded(said, "acme", 1e9)] == [(one, "person-ann")]


def test_what_is_none_of_its_records_is_passed_over() -> None:
    first = stored(1, "proposed", Proposal("acme", "fact", "k", "t"))
    foreign = stored(7, "proposed", Proposal("rival", "fact", "k", "foreign"), name="m2")
    said = [
        first, stored(2, "proposed", Proposal("acme", "fact", "k", "evil"), who="role-planner"),
        stored(3, "judged", Judgement("approved", "sha256:" + "0" * 64), who="person-ann"),
        stored(4, "judged", Proposal("acme", "fact", "k", "t")), judged(5, first, kind="step.done"),
        judged(6, first, who="role-coder"), foreign, judged(8, foreign, name="m2"),
        Stored(9, subjects.memory("acme", "m3", "proposed", "role-coder"), 1.0, b"{nonsense"),
        Stored(10, "kb.mem.acme", 1.0, b""), Stored(11, "kb.mem.acme.m4.proposed.x.y", 1.0, b"[]"),
    ]  # fmt: skip
    assert [(m.proposal.text, m.state) for m in folded(said, "acme", 1e9)] == [("t", "proposed")]


@pytest.mark.parametrize("by", ["id", "task", "source", "author", "all"])
async def test_forgetting_reaches_every_path_and_nothing_late_comes_back(
    nats_server: NatsServer, bus: Bus, by: str
) -> None:
    shelf = Shelf("acme")
    name = await approved(bus, "canary", "CANARY-4711", task="t-1", sources=(SOURCE,))
    other, _ = await of(bus, who="role-planner").propose(kind="fact", key="other", text="stays", task="t-2")
    theirs = await approved(bus, "canary", "theirs", tenant="rival", task="t-1", sources=(SOURCE,))
    assert len(await of(bus, shelf=shelf).recall("canary")) == 1
    replay = [one for one in await records(nats_server.url) if name in one.subject]
    chosen: dict[str, dict[str, str]] = {
        "id": {"name": name}, "task": {"task": "t-1"}, "source": {"source": SOURCE}, "author": {"author": "role-coder"},
    }  # fmt: skip
    forgotten = await (people(bus).forget_all() if by == "all" else people(bus).forget(**chosen[by]))
    assert forgotten == (2 if by == "all" else 1)

    async def nowhere() -> None:
        for reader in (of(bus), of(bus, shelf=shelf), people(bus), of(bus, unapproved=True, shelf=shelf)):
            assert await reader.recall("canary") == []
            assert name not in {m.id for m in await reader.listed()}
            with pytest.raises(NoMemory):
                await reader.get(name)
            with pytest.raises(NoMemory):
                await reader.judge(name, "approved")

    await nowhere()
    assert [m.id for m in await people(bus).listed()] == ([] if by == "all" else [other])
    with pytest.raises(NoMemory, match="forgotten"):
        await of(bus).propose(kind="fact", key="canary", text="CANARY-4711")
    assert not any(b"CANARY-4711" in one.data for one in await records(nats_server.url)), "its words are off the board"
    for late in replay:  # a writer that slept through it
        await bus.publish(late.subject, late.data)
    await nowhere()
    assert [m.id for m in await of(bus, "rival").listed()] == [theirs]
    assert await people(bus).forget_all() == (0 if by == "all" else 1)
    assert not any(b"CANARY-4711" in one.data for one in await records(nats_server.url)), "nor do they stay when late"


async def test_the_supervisor_deletes_what_others_forget_also_what_comes_late(
    nats_server: NatsServer, bus: Bus
) -> None:
    async with running(Supervisor(bus, crew=builtin_crew()).run()):
        name = await approved(bus, "canary", "CANARY-4711")
        replay = [one for one in await records(nats_server.url) if name in one.subject]
        data = seal(Forgotten("person-ann"), id="forget-1", type="memory.forgotten")
        await bus.publish(subjects.memory("acme", name, "forgotten"), data)

        async def gone() -> bool:
            return not any(b"CANARY-4711" in one.data for one in await records(nats_server.url))

        await eventually(gone)
        for late in replay:
            await bus.publish(late.subject, late.data)
        await eventually(gone)
    assert await people(bus).listed() == []


async def test_a_shelf_follows_the_log_and_another_board_under_the_same_name(bus: Bus) -> None:
    shelf = Shelf("acme")
    name = await approved(bus, "k", "first")
    assert [m.id for m in await of(bus, shelf=shelf).listed()] == [name]
    more = await approved(bus, "k", "second")
    assert [m.id for m in await of(bus, shelf=shelf).listed()] == [name, more]
    await bus.api(f"STREAM.DELETE.{subjects.BOARD}")
    await ensure_board(bus)
    assert await of(bus, shelf=shelf).listed() == []
    for n in range(4):
        await approved(bus, "k", f"anew {n}")
    assert len(await of(bus, shelf=shelf).listed()) == 4


def test_records_of_this_version_fold_for_ever() -> None:
    lines = [json.loads(line) for line in (DATA / "memory.jsonl").read_text("utf-8").splitlines()]
    said = [Stored(line["seq"], line["subject"], line["time"], line["data"].encode()) for line in lines]
    assert [(m.proposal.key, m.state, m.author, m.by) for m in folded(said, "acme", 1e9)] == [
        ("port", "approved", "role-coder", "person-ann"), ("style", "denied", "person-ann", "person-bob"),
        ("old", "expired", "role-coder", "person-ann"), ("checked", "approved", "role-planner", "role-verifier"),
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
        await people(bus, "default").forget(name=name)
        assert await answer() == "I do not know"
