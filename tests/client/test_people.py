"""What people say to tasks: stored once, by whom, about exactly what they saw; and what does not count says so."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
import pytest

from core.contents import patch
from kokuban.blackboard import (
    Client,
    Ended,
    InvalidRequest,
    InvalidTask,
    KeyInUse,
    NoSuchArtifact,
    NoSuchGate,
    NoSuchTask,
    NotVoted,
    StoreFull,
    Told,
    Voted,
)
from kokuban.blackboard.client import person_name
from kokuban.schemas import Budget, Control, Final, Gate, Intake, InvalidName, Ref, Usage, Vote, open_record, subjects
from support.nats_server import NatsServer
from support.people import CALL, QUESTION, office

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_PERSON", "ann")


async def last_seq(board: Client) -> int:
    return await board._bus.last_seq()


def test_a_person_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (person_name(), person_name("bob-2")) == ("ann", "bob-2")
    for wrong in ("Ann", "a.b", "*", "a b", "x" * 65):
        with pytest.raises(InvalidName, match="person"):
            person_name(wrong)
    monkeypatch.delenv("KOKUBAN_PERSON")
    for user, name in (("Ann.Lee@corp", "ann-lee-corp"), ("_x_", "x"), ("検査", "local"), ("a" * 80, "a" * 64)):
        monkeypatch.setattr("getpass.getuser", lambda user=user: user)
        assert person_name() == name

    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert person_name() == "local"


# ---------------------------------------------------------------------- submit


async def test_everything_that_describes_a_task_is_stored(nats_server: NatsServer) -> None:
    async with await Client.connect(nats_server.url) as board:
        first = await board.submit("First")
        task = await board.submit(
            "Second", budget=Budget(tokens=0, micros=5), tenant="acme", priority=-3, deadline_seconds=60, after=[first],
            replans=2, approve=["patch"], votes=2, approval_seconds=9, parent=first,
        )  # fmt: skip
        state = await board.status(task)
        spec = state.spec
        assert spec.budget == Budget(tokens=0, micros=5)
        assert (spec.tenant, spec.priority, spec.deadline_seconds, spec.after) == ("acme", -3, 60, (first,))
        assert (spec.replans, spec.approve, spec.votes, spec.approval_seconds) == (2, ("patch",), 2, 9)
        assert state.parent == first
        assert (await board.status(first)).spec.replans == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"after": ["t-nobody"]}, "after: there is no task 't-nobody'"), ({"after": "t-1"}, "give a list"),
        ({"parent": "t-nobody"}, "parent: there is no task"), ({"approve": ["pacth"]}, "approve: there is no kind"),
        ({"approve": "patch"}, "give a list"), ({"priority": 101}, "priority"), ({"votes": 0}, "votes"),
        ({"replans": 11}, "replans"), ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"budget": Budget(tokens=-1)}, "budget.tokens"), ({"tenant": "A B"}, "tenant"), ({"after": ["a.b"]}, "after"),
        ({"approval_seconds": 0}, "approval_seconds"),
    ],
)  # fmt: skip
async def test_what_cannot_be_asked_for_is_named_and_not_stored(
    nats_server: NatsServer, wrong: dict[str, object], words: str
) -> None:
    async with await Client.connect(nats_server.url) as board:
        with pytest.raises((InvalidTask, InvalidName), match=words):
            await board.submit("Do it", **wrong)  # type: ignore[arg-type]
        assert await last_seq(board) == 0


async def test_a_full_board_takes_no_task_and_says_so(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.intake(Intake(False, 900, 1_000))
        before = await last_seq(board)
        with pytest.raises(StoreFull, match=r"900 of 1,000 bytes.*nothing was written") as refused:
            await board.submit("One more")
        assert refused.value.landed is False
        assert await last_seq(board) == before
        assert isinstance(await board.inject(at.task, "running tasks go on"), Told)
        await at.intake(Intake(True, 500, 1_000))
        await board.submit("One more")


# ---------------------------------------------------------------------- to a task


async def test_what_is_said_to_a_task_is_stored_under_the_persons_name(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        told = await board.inject(at.task, "  The fee is 25 euro ", person="bob")
        assert isinstance(told, Told)
        stored = await board._bus.read(told.seq)
        assert stored is not None
        assert stored.subject.startswith(f"kb.task.{at.task}.control.bob.")
        record = open_record(stored.data)
        assert (record.principal, record.trust) == ("bob", "principal")
        assert msgspec.json.decode(record.body, type=Control) == Control("inject", "The fee is 25 euro")
        assert isinstance(await board.cancel(at.task, "enough"), Told)
        state = await board.status(at.task)
        assert (state.facts, state.cancel) == (["The fee is 25 euro"], "enough")
        events = [(e.event, e.person, e.text) async for e in board.watch(at.task, follow=False)]
        assert events[-2:] == [("fact", "bob", "The fee is 25 euro"), ("cancel", "ann", "enough")]


async def test_saying_something_to_an_ended_task_writes_nothing(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.ends(Final("failed", "no luck"))
        before = await last_seq(board)
        assert await board.cancel(at.task) == Ended(at.task, "failed", "no luck", landed=False)
        assert await board.inject(at.task, "a fact") == Ended(at.task, "failed", "no luck", landed=False)
        assert await last_seq(board) == before


async def test_what_came_after_the_end_is_said_to_have_landed_for_nothing(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        say = board._control

        async def late(*what: str) -> Told:
            await at.ends(Final("failed", "no luck"))
            return await say(*what)  # type: ignore[arg-type]

        monkeypatch.setattr(board, "_control", late)
        assert await board.cancel(at.task) == Ended(at.task, "failed", "no luck", landed=True)


async def test_what_cannot_be_said(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        for text in ("", " \n", "x" * 2_001):
            with pytest.raises(InvalidRequest, match="text"):
                await board.inject(at.task, text)
        with pytest.raises(InvalidRequest, match="reason"):
            await board.cancel(at.task, "x" * 2_001)
        with pytest.raises(NoSuchTask, match="t-nobody"):
            await board.cancel("t-nobody")
        with pytest.raises(InvalidName, match="person"):
            await board.cancel(at.task, person="a.b")
        for n in range(64):
            await board.inject(at.task, f"fact {n}")
        with pytest.raises(InvalidRequest, match="64 facts"):
            await board.inject(at.task, "one too many")
        assert len((await board.status(at.task)).facts) == 64


# ---------------------------------------------------------------------- gates


async def test_a_gate_shows_what_a_person_needs_to_decide(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        gate = msgspec.structs.replace(CALL, expires_seconds=60, need=2)
        bound = await at.waits(gate)
        (found,) = await board.approvals()
        assert (found.task, found.id, found.gate, found.bound) == (at.task, "fix-1-3", gate, bound)
        assert (found.role, found.step, found.worker, found.decision) == ("coder", "fix", "w", None)
        assert found.until == found.since + 60
        (event,) = [e async for e in board.watch(at.task, follow=False) if e.event == "waiting"]
        assert (event.gate, event.digest, event.until, event.asks()) == ("fix-1-3", bound, found.until, gate)
        await board.vote(at.task, gate.id, "approve")
        assert (await board.approvals(at.task))[0].votes == {"ann": Vote("approve", bound)}
        await at.decides("denied", "ann", gate=gate, text="no")
        assert await board.approvals() == []
        assert (await board.approvals(decided=True))[0].decision is not None
        told = [(e.event, e.gate, e.text) async for e in board.watch(at.task, follow=False)][-2:]
        assert told == [("vote", "fix-1-3", "approve"), ("decision", "fix-1-3", "denied by ann: no")]


async def test_one_vote_a_person_however_often_it_is_sent(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.waits()
        both = await asyncio.gather(*(board.vote(at.task, "fix-1-3", "approve", "ok", person="ann") for _ in range(5)))
        assert {type(said) for said in both} == {Voted}
        assert sorted(said.again for said in both if isinstance(said, Voted)) == [False, True, True, True, True]
        other = await board.vote(at.task, "fix-1-3", "deny", person="ann")
        assert isinstance(other, NotVoted)
        assert (other.why, other.landed) == ("voted", False)
        assert "ann has said approve before" in other.text
        assert isinstance(await board.vote(at.task, "fix-1-3", "deny", person="bob"), Voted)
        (gate,) = await board.approvals(at.task)
        assert {who: vote.vote for who, vote in gate.votes.items()} == {"ann": "approve", "bob": "deny"}


async def test_votes_that_do_not_count_are_not_written(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        bound = await at.waits()
        before = await last_seq(board)
        changed = await board.vote(at.task, "fix-1-3", "approve", bound="sha256:" + hashlib.sha256(b"x").hexdigest())
        assert isinstance(changed, NotVoted)
        assert (changed.why, changed.landed) == ("changed", False)
        for wrong, error in (("fix-1-4", NoSuchGate), ("a b", NoSuchGate)):
            with pytest.raises(error, match="fix-1-3"):
                await board.vote(at.task, wrong, "approve")
        with pytest.raises(InvalidRequest, match="about a call"):
            await board.vote(at.task, "fix-1-3", "answer", "yes")
        with pytest.raises(InvalidRequest, match="bound"):
            await board.vote(at.task, "fix-1-3", "approve", bound="xyz")
        assert await last_seq(board) == before
        assert isinstance(await board.vote(at.task, "fix-1-3", "approve", bound=bound[7:19]), Voted)
        await at.decides("approved", "ann")
        after = await last_seq(board)
        late = await board.vote(at.task, "fix-1-3", "approve", person="bob")
        assert isinstance(late, NotVoted)
        assert (late.why, late.landed, "approved already by ann" in late.text) == ("decided", False, True)
        await at.ends(Final("failed", "no luck"))
        ended = await board.vote(at.task, "fix-1-3", "approve", person="bob")
        assert isinstance(ended, NotVoted)
        assert ended.why == "ended"
        assert await last_seq(board) == after + 1


async def test_a_vote_that_came_too_late_says_that_it_landed(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.waits()
        say = board._say

        async def late(*what: object, **fields: object) -> object:
            await at.decides("expired")
            return await say(*what, **fields)  # type: ignore[arg-type]

        monkeypatch.setattr(board, "_say", late)
        said = await board.vote(at.task, "fix-1-3", "approve")
        assert isinstance(said, NotVoted)
        assert (said.why, said.landed) == ("decided", True)


async def test_a_question_is_answered(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        bound = await at.waits(QUESTION)
        for word in ("approve", "deny"):
            with pytest.raises(InvalidRequest, match="answer it"):
                await board.vote(at.task, "fix-1-3", word)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="empty"):
            await board.vote(at.task, "fix-1-3", "answer", " ")
        assert isinstance(await board.vote(at.task, "fix-1-3", "answer", "of 2024"), Voted)
        (gate,) = await board.approvals(at.task)
        assert gate.votes == {"ann": Vote("answer", bound, "of 2024")}


async def test_a_gate_on_an_artifact(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        subject = Ref("fix", "patch", "change", "sha256:" + "1" * 64, 9)
        gate = Gate("approve-1111111111111111", "artifact", "May this patch count?", subject=subject)
        await at.requests(gate)
        assert isinstance(await board.vote(at.task, gate.id, "deny", "too large"), Voted)
        (found,) = await board.approvals()
        assert (found.step, found.gate.subject, found.votes["ann"].text) == ("", subject, "too large")
        (event,) = [e async for e in board.watch(at.task, follow=False) if e.event == "gate"]
        assert event.asks() == gate
        with pytest.raises(ValueError, match="no artifact"):
            event.artifact()


# ---------------------------------------------------------------------- the dead


async def test_the_dead_are_listed_tried_again_once_and_dropped(nats_server: NatsServer) -> None:
    async with office(nats_server.url, key="k", attempts=2) as at, await Client.connect(nats_server.url) as board:
        for ask in (board.retry, board.drop):
            with pytest.raises(InvalidRequest, match="has not ended"):
                await ask(at.task)
        await at.ends()
        assert [task.id for task in await board.dead()] == [at.task]
        names = {await board.retry(at.task) for _ in range(3)}
        assert len(names) == 1
        again = await board.status(names.pop())
        assert again.spec == msgspec.structs.replace(at.desk.spec, key=None)
        assert await board.dead() == []
        assert [task.id for task in await board.dead(dropped=True)] == [at.task]
        with pytest.raises(InvalidRequest, match="not ended"):
            await board.drop(again.id)
        with pytest.raises(NoSuchTask):
            await board.drop("t-nobody")


async def test_an_archived_task_keeps_its_key_and_takes_no_word(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        task = await board.submit("Count the words", key="k")
        await at.adopts(task)
        await at.buries()
        before = await last_seq(board)
        assert await board.submit("Count the words", key="k") == task
        with pytest.raises(KeyInUse, match="'k'"):
            await board.submit("Count the lines", key="k")
        said = await board.cancel(task)
        assert isinstance(said, Ended)
        assert (said.state, said.landed) == ("dead", False)
        with pytest.raises(InvalidTask, match="archived"):
            await board.retry(task)
        assert await last_seq(board) == before
        assert [dead.id for dead in await board.dead()] == [task]
        assert isinstance(await board.drop(task), Told)
        assert await board.submit("Next", after=[task]) != task


async def test_a_dropped_one_stays_off_the_list(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.ends(Final("failed", "no luck"))
        with pytest.raises(InvalidRequest, match="ended failed"):
            await board.drop(at.task)
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        await at.ends()
        assert isinstance(await board.drop(at.task, "looked at"), Told)
        assert await board.dead() == []
        events = [(e.event, e.person, e.text) async for e in board.watch(follow=False)]
        assert events[-1] == ("dropped", "ann", "looked at")


# ---------------------------------------------------------------------- spending


async def test_spending_counts_all_tasks_below(nats_server: NatsServer) -> None:
    async with office(nats_server.url, budget=Budget(tokens=100_000, micros=0)) as at:
        await at.desk.order()
        async with await Client.connect(nats_server.url) as board:
            child = await board.submit("Part", parent=at.task)
            await board.submit("Part of the part", parent=child)
            await board.submit("Somebody else's")
            found = await board.spending(await board.status(at.task))
            lines = {line.dimension: line for line in found.lines}
            allotment = (await board.status(at.task)).steps["fix"].allotment
            assert found.tasks == 2
            tokens = lines["tokens"]
            assert (tokens.spent, tokens.reserved, tokens.limit) == (0, allotment.tokens, 100_000)
            assert tokens.left == 100_000 - allotment.tokens
            assert (lines["micros"].left, lines["steps"].left, lines["steps"].limit) == (0, None, None)
            await at.ends(Final("failed", "no luck", usage=Usage()))
            ended = await board.spending(await board.status(at.task))
            assert {line.reserved for line in ended.lines} == {0}
            assert (await board.spending(await board.status(child))).tasks == 1


# ---------------------------------------------------------------------- lineage


async def test_a_lineage_says_what_was_replaced_and_what_is_stale(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        first = await at.makes("a", patch("one"))
        then = await at.makes("b", patch("two"), first, "sha256:" + "e" * 64)
        last = await at.makes("c", patch("three"), then)
        found = await board.lineage(then[7:15].upper())
        assert (found.task, found.artifact.ref.digest, found.outside) == (at.task, then, ("sha256:" + "e" * 64,))
        assert [kin.ref.digest for kin in found.ancestors] == [first]
        assert [kin.ref.digest for kin in found.descendants] == [last]
        assert {(k.current, k.stale) for k in (found.artifact, *found.ancestors, *found.descendants)} == {(True, False)}
        await at.makes("a", patch("other"))
        found = await board.lineage(then)
        assert [(k.current, k.stale) for k in found.ancestors] == [(False, False)]
        assert [(k.current, k.stale) for k in (found.artifact, *found.descendants)] == [(True, True)] * 2
        async with office(nats_server.url) as other:
            assert await other.makes("a", patch("two")) == then
            with pytest.raises(InvalidRequest, match=f"fits 2.*{other.task}.*or the task too"):
                await board.lineage(then)
            assert (await board.lineage(then, at.task)).task == at.task


async def test_what_is_no_artifact(nats_server: NatsServer) -> None:
    async with office(nats_server.url) as at, await Client.connect(nats_server.url) as board:
        for wrong in ("", "xyz", "12", "sha256:", "*", "g" * 10, "a" * 65):
            with pytest.raises(InvalidRequest, match="artifact"):
                await board.lineage(wrong)
        with pytest.raises(NoSuchArtifact):
            await board.lineage("abcd")
        with pytest.raises(NoSuchTask):
            await board.lineage("abcd", "t-nobody")
        assert (await board.status(at.task)).artifacts == {}


def test_subjects_of_people_fit_the_grammar() -> None:
    address = subjects.parse(subjects.control("t-1", "ann", "0123456789abcdef"))
    assert address is not None
    assert address.rest == ("ann", "0123456789abcdef")
