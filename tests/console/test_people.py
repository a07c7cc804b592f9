"""What people type: cancel, inject, approvals, answer, dead, lineage, and what status tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from core import contents
from kokuban.blackboard import Client, Event
from kokuban.blackboard.core import Task
from kokuban.console._gates import gate_lines
from kokuban.console._live import event_line
from kokuban.console._terminal import Paint
from kokuban.schemas import Budget, Final, Gate, Intake, Ref, Teammate, encode
from support.nats_server import NatsServer
from support.people import CALL, QUESTION, Office, office

Here = Callable[..., Any]
T = TypeVar("T")


class Room:
    """An office on an event loop beside, for commands that run here."""

    def __init__(self, url: str, portal: Any, stack: ExitStack) -> None:
        self.url, self._portal, self._stack = url, portal, stack
        self._offices: list[Office] = []

    def open(self, **spec: Any) -> Office:
        """A task of its own. All offices decide as one leader, the latest."""
        at: Office = self._stack.enter_context(self._portal.wrap_async_context_manager(office(self.url, **spec)))
        self._offices.append(at)
        for one in self._offices:
            one.desk.epochs = at.desk.epochs
        return at

    def do(self, what: Awaitable[T]) -> T:
        """Run something of an office to its end."""

        async def run() -> T:
            return await what

        result: T = self._portal.call(run)
        return result


@pytest.fixture
def room(nats_server: NatsServer) -> Iterator[Room]:
    with start_blocking_portal("asyncio") as portal, ExitStack() as stack:
        yield Room(nats_server.url, portal, stack)


@pytest.fixture
def ask(here: Here, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs a command as ann, on the test's board."""
    monkeypatch.setenv("KOKUBAN_PERSON", "ann")
    monkeypatch.setenv("KOKUBAN_NATS_URL", nats_server.url)
    return here


def state(room: Room, task: str) -> Task:
    async def look() -> Task:
        async with await Client.connect(room.url) as board:
            return await board.status(task)

    return asyncio.run(look())


# ---------------------------------------------------------------------- gates


def test_a_person_sees_what_is_to_be_decided(ask: Here, room: Room) -> None:
    at = room.open()
    assert ask("approvals", "list").err == "Nothing waits for a person.\n"
    gate = msgspec.structs.replace(CALL, expires_seconds=3_600, need=2)
    bound = room.do(at.waits(gate))
    shown = ask("approvals", "list").out
    name = f"{at.task}/fix-1-3"
    for part in (
        name, "Post the news?", "call publish", '"url":"https://example.org/a"', "coder/fix on w", "0 of 2",
        "until: 20", bound, f"kokuban approvals approve {name}", f"kokuban approvals deny {name}",
    ):  # fmt: skip
        assert part in shown, part
    (told,) = ask("approvals", "list", at.task, "--json").objects
    assert (told["task"], told["gate"], told["bound"], told["need"]) == (at.task, "fix-1-3", bound, 2)
    assert told["arguments"] == {"url": "https://example.org/a", "text": "x"}
    assert told["until"] == told["since"] + 3_600
    whole = ask("approvals", "show", name).out
    for part in ('    "url": "https://example.org/a",', "tool version: 1", "policy: p-1", "key: k-3"):
        assert part in whole
    (line,) = [line for line in ask("watch", at.task, "--no-follow").out.splitlines() if "  waiting  " in line]
    for part in ("Post the news?", "call publish(", "asked by w", "until 20", f"kokuban approvals show {name}"):
        assert part in line
    assert "waits for people (1)" in ask("status").out
    status = ask("status", at.task).out
    assert "waiting  for gate fix-1-3" in status
    assert f"waits for people: Post the news?  (kokuban approvals show {name})" in status
    assert ask("status", at.task, "--json").objects[0]["waiting"] == ["fix-1-3"]


def test_approving_binds_to_what_was_seen_and_counts_once(ask: Here, room: Room) -> None:
    at = room.open()
    bound = room.do(at.waits())
    other = ask("approvals", "approve", f"{at.task}/fix-1-3", "--seen", "0000")
    assert (other.code, other.out) == (1, "")
    assert "nothing was written" in other.err
    assert f"'0000' does not match: the gate is bound to {bound}" in other.err
    first = ask("approvals", "approve", "fix-1-3", "--reason", "fine", "--seen", bound[7:15])
    assert (first.code, first.err) == (0, "")
    assert "ann: approve" in first.out
    assert "call publish" in first.out
    again = ask("approvals", "approve", "fix-1-3", "--reason", "fine")
    assert (again.code, "as before" in again.out) == (0, True)
    turned = ask("approvals", "deny", "fix-1-3", "--json")
    (told,) = turned.objects
    assert (turned.code, told["why"], told["landed"], told["counts"]) == (1, "voted", False, False)
    assert (ask("approvals", "approve", "fix-1-3", "--as", "bob", "--json").objects[0]["person"]) == "bob"
    votes = state(room, at.task).gates["fix-1-3"].votes
    assert {who: (vote.vote, vote.text) for who, vote in votes.items()} == {
        "ann": ("approve", "fine"), "bob": ("approve", ""),
    }  # fmt: skip
    room.do(at.decides("approved", "ann", "bob"))
    late = ask("approvals", "deny", "fix-1-3", "--as", "eve")
    assert late.code == 1
    assert "approved already by ann, bob" in late.err
    assert "approved by ann, bob" in ask("approvals", "list", "--all").out
    assert "eve" not in state(room, at.task).gates["fix-1-3"].votes


def test_gates_that_are_not_there_or_not_meant(ask: Here, room: Room) -> None:
    at, other = room.open(), room.open()
    room.do(at.waits())
    room.do(other.waits())
    unclear = ask("approvals", "approve", "fix-1-3")
    assert unclear.code == 2
    assert f"{at.task}/fix-1-3" in unclear.err
    assert f"{other.task}/fix-1-3" in unclear.err
    for name in ("fix-1-4", f"{at.task}/nothing", "t-nobody/fix-1-3"):
        missing = ask("approvals", "deny", name)
        assert (missing.code, missing.out) == (2, "")
        assert "there is no" in missing.err
    for wrong, words in ((("answer", f"{at.task}/fix-1-3", "yes"), "about a call"),
                         (("approvals", "approve", f"{at.task}/fix-1-3", "--as", "a b"), "person"),
                         (("approvals", "approve", f"{at.task}/fix-1-3", "--seen", "xyz"), "no digest")):  # fmt: skip
        said = ask(*wrong)
        assert said.code == 2
        assert words in said.err
    assert state(room, at.task).gates["fix-1-3"].votes == {}


def test_a_question_is_answered(ask: Here, room: Room) -> None:
    at = room.open()
    room.do(at.waits(QUESTION))
    assert f"kokuban answer {at.task}/fix-1-3 'TEXT'" in ask("approvals", "list").out
    told = ask("approvals", "show", "fix-1-3", "--json").objects[0]
    assert (told["about"], told["arguments"], told["asks"]) == ("question", None, QUESTION.asks)
    assert ask("answer", "fix-1-3", "of 2024").code == 0
    assert state(room, at.task).gates["fix-1-3"].votes["ann"].text == "of 2024"
    assert ask("answer", "fix-1-3", "  ").code == 2


def test_a_gate_on_an_artifact_shows_the_artifact(ask: Here, room: Room) -> None:
    at = room.open()
    patch = contents.patch("new text")
    found = room.do(at.makes("fix", patch))
    seq = state(room, at.task).artifacts[found].ref.seq
    gate = Gate("approve-1", "artifact", "May this count?", subject=Ref("fix", "patch", "change", found, seq))
    room.do(at.requests(gate))
    assert f"artifact patch/change {found[7:15]} of step fix" in ask("approvals", "list").out
    told = ask("approvals", "list", "--json").objects[0]
    assert (told["subject"]["digest"], told["arguments"], told["step"]) == (found, None, "")
    shown = ask("approvals", "show", f"{at.task}/approve-1").out
    assert "    +new text" in shown
    assert "summary: 1 file: a.txt: adds a file" in shown


HOSTILE = "\x1b]0;x\x07\u202eevil\n\r second line\x9b2J"


def test_nothing_that_a_model_wrote_reaches_a_terminal_raw(ask: Here, room: Room) -> None:
    at = room.open()
    arguments = msgspec.Raw(encode({"url": HOSTILE, "text": "x" * 5_000}))
    gate = msgspec.structs.replace(CALL, asks=HOSTILE, tool="pub\x1b[31m", arguments=arguments)
    room.do(at.waits(gate))
    for command in (
        ("approvals", "list"), ("approvals", "show", "fix-1-3"), ("watch", "--no-follow"), ("status", at.task),
        ("approvals", "list", "--json"), ("watch", "--no-follow", "--json"),
    ):  # fmt: skip
        out = ask(*command).out
        assert not set("\x1b\x07\u202e\x9b\r") & set(out)
    assert max(map(len, ask("approvals", "list").out.splitlines())) < 1_200
    content = msgspec.Raw(encode(gate))
    line = event_line(Event(7, 0.0, "waiting", "t-1", "fix", "coder", gate="g", content=content), Paint(None))
    assert len(line.splitlines()) == 1
    broken = Event(7, 0.0, "waiting", "t-1", gate="g", text="why", content=msgspec.Raw(b"{}"))
    assert event_line(broken, Paint(None)).endswith("why")


def test_gate_lines_say_who_voted_how(room: Room) -> None:
    at = room.open()
    room.do(at.waits())

    async def look() -> list[str]:
        async with await Client.connect(room.url) as board:
            await board.vote(at.task, "fix-1-3", "deny", "not on a Friday", person="bob")
            return list(gate_lines((await board.approvals())[0], Paint(None)))

    assert "  votes: bob: deny (not on a Friday)" in asyncio.run(look())


# ---------------------------------------------------------------------- cancel, inject


def test_cancel_and_inject_are_stored_and_say_so(ask: Here, room: Room) -> None:
    at = room.open()
    said = ask("inject", at.task, "The fee is 25 euro")
    assert (said.code, "is stored" in said.out) == (0, True)
    again = ask("inject", at.task, " The fee is 25 euro ")
    assert (again.code, "was there already" in again.out) == (0, True)
    assert ask("inject", at.task, "The fee is 25 euro", "--json").objects[0]["landed"] is False
    assert state(room, at.task).facts == ["The fee is 25 euro"]
    said = ask("cancel", at.task, "--reason", "enough", "--json")
    assert said.code == 0
    assert (said.objects[0]["counts"], said.objects[0]["person"]) == (True, "ann")
    shown = ask("status", at.task).out
    assert "facts: The fee is 25 euro" in shown
    assert "cancel is asked for: enough" in shown
    waited = ask("cancel", at.task, "--wait", "0.2")
    assert waited.code == 4
    assert "is a supervisor running?" in waited.err
    lines = ask("watch", at.task, "--no-follow").out
    assert "fact  ann  The fee is 25 euro" in lines
    assert "cancel  ann  enough" in lines
    room.do(at.ends(Final("cancelled", "ann: enough", unconfirmed=("fix",), blocked=("b",))))
    for command in ("cancel", "inject"):
        late = ask(command, at.task, *(["more"] if command == "inject" else []))
        assert (late.code, late.out) == (1, "")
        assert "cancelled: ann: enough" in late.err
    told = ask("cancel", at.task, "--json")
    assert (told.code, told.objects[0]["counts"], told.objects[0]["landed"]) == (1, False, False)
    result = ask("result", at.task)
    assert result.code == 1
    for part in ("cancelled: ann: enough", "never done: b", "not heard to have stopped: fix"):
        assert part in result.out
    found = ask("result", at.task, "--json").objects[0]
    assert (found["state"], found["blocked"], found["unconfirmed"]) == ("cancelled", ["b"], ["fix"])


def test_how_a_task_ended_is_said_once(ask: Here, room: Room) -> None:
    at = room.open()
    room.do(at.ends(Final("cancelled", "cancelled: waiter gone")))
    for command in (("result",), ("status",), ("watch", "--no-follow"), ("cancel",)):
        said = ask(*command, at.task)
        assert "cancelled: waiter gone" in said.out + said.err
        assert "cancelled: cancelled" not in said.out + said.err
    assert ask("result", at.task, "--json").objects[0]["reason"] == "cancelled: waiter gone"


def test_what_cannot_be_said_to_a_task(ask: Here, room: Room) -> None:
    at = room.open()
    for command, words in ((("inject", at.task, " "), "it is empty"), (("cancel", "t-nobody"), "t-nobody"),
                           (("inject", "t-nobody", "x"), "t-nobody"), (("cancel", "a.b"), "not a name"),
                           (("cancel", at.task, "--as", "*"), "person"),
                           (("inject", at.task, "x" * 2_001), "at most 2,000")):  # fmt: skip
        said = ask(*command)
        assert (said.code, said.out) == (2, "")
        assert words in said.err


@pytest.mark.parametrize(
    "state_", ["failed", "cancelled", "deadline", "out_of_budget", "dependency_failed", "refused", "dead"]
)
def test_every_end_but_done_is_exit_code_1_and_named(ask: Here, room: Room, state_: Any) -> None:
    at = room.open()
    room.do(at.ends(Final(state_, "that is why")))
    text, told = ask("result", at.task), ask("result", at.task, "--json")
    assert (text.code, told.code) == (1, 1)
    assert text.out.startswith(f"{state_}: that is why")
    assert told.objects[0]["state"] == state_
    assert state_ in ask("status").out
    assert ask("status", at.task, "--json").objects[0]["reason"] == "that is why"


# ---------------------------------------------------------------------- the dead


def test_the_dead(ask: Here, room: Room) -> None:
    at, alive = room.open(), room.open()
    assert ask("dead", "list").err == "There is no dead task.\n"
    room.do(at.ends())
    assert at.task in ask("dead", "list").out
    assert "lost with its worker" in ask("dead", "list").out
    assert ask("dead", "list", "--json").objects[0]["state"] == "dead"
    assert "dead: step fix" in ask("dead", "show", at.task).out
    for command in ("show", "retry", "drop"):
        said = ask("dead", command, alive.task)
        assert (said.code, said.out) == (2, "")
        assert "dead" in said.err
    first, second = ask("dead", "retry", at.task), ask("dead", "retry", at.task)
    assert first.code == second.code == 0
    assert first.out == second.out
    assert state(room, first.out.strip()).spec.goal == "Fix it"
    assert ask("dead", "list").out == ""
    assert "(dropped)" in ask("dead", "list", "--all").out
    other = room.open()
    room.do(other.ends())
    assert ask("dead", "drop", other.task, "--reason", "looked at").code == 0
    assert ask("dead", "list").out == ""


# ---------------------------------------------------------------------- lineage, status, submit


def test_lineage(ask: Here, room: Room) -> None:
    at = room.open()
    first = room.do(at.makes("a", contents.patch("one")))
    then = room.do(at.makes("b", contents.patch("two"), first))
    room.do(at.makes("c", contents.patch("three"), then))
    room.do(at.makes("a", contents.patch("other")))
    shown = ask("lineage", then[7:15])
    assert shown.code == 0
    above, below = shown.out.split("what derives from it:")
    assert f"{first[7:15]}  coder/a" in above
    assert "replaced" in above
    assert "stale" in below
    told = ask("lineage", then, "--task", at.task, "--json").objects[0]
    assert told["artifact"]["stale"] is True
    assert [(k["digest"], k["current"]) for k in told["ancestors"]] == [(first, False)]
    for wrong, words in (("zz", "no digest"), ("abcd", "no admitted one"), ("12", "no digest")):
        said = ask("lineage", wrong)
        assert said.code == 2
        assert words in said.err


def test_status_shows_what_is_spent_reserved_and_left(ask: Here, room: Room) -> None:
    at = room.open(budget=Budget(tokens=50_000, micros=2_500_000), tenant="acme", priority=5)
    room.do(at.desk.order())
    shown = ask("status", at.task).out
    assert "tenant: acme; priority: 5" in shown
    reserved = state(room, at.task).steps["fix"].allotment.tokens
    assert f"tokens       0 spent, {reserved:,} reserved, {50_000 - reserved:,} left of 50,000" in shown
    assert "USD          0.000000 spent, 0.000000 reserved, 2.500000 left of 2.500000" in shown
    assert "no limit" in shown
    budget = ask("status", at.task, "--json").objects[0]["budget"]
    assert budget["tokens"] == {"spent": 0, "reserved": reserved, "limit": 50_000, "left": 50_000 - reserved}
    assert budget["seconds"]["left"] is None


def test_status_shows_planned_steps_that_were_never_ordered(ask: Here, room: Room) -> None:
    at = room.open()
    plan = contents.plan(("a", "coder", ()), ("b", "coder", ("a",)))
    room.do(at.makes("plan", plan, role="planner", team=(Teammate("coder", "writes"),)))
    assert "coder/b" in ask("status", at.task).out
    assert "not ordered yet, after a" in ask("status", at.task).out
    room.do(at.ends(Final("out_of_budget", "no tokens are left")))
    assert "blocked, after a" in ask("status", at.task).out
    assert [step["step"] for step in ask("status", at.task, "--json").objects[0]["planned"]] == ["a", "b"]


def test_what_is_asked_for_is_submitted(ask: Here, room: Room) -> None:
    first = ask("submit", "First").out.strip()
    said = ask(
        "submit", "Second", "--budget", "tokens=100000,usd=2.50,steps=9,tool-calls=0,seconds=60", "--tenant", "acme",
        "--priority", "-2", "--deadline", "2h", "--after", first, "--replans", "0", "--approve", "patch", "--approve",
        "plan", "--votes", "2", "--approval-seconds", "30m",
    )  # fmt: skip
    assert (said.code, said.err) == (0, "")
    spec = state(room, said.out.strip()).spec
    assert spec.budget == Budget(tokens=100_000, micros=2_500_000, steps=9, tool_calls=0, seconds=60)
    assert (spec.tenant, spec.priority, spec.deadline_seconds, spec.after) == ("acme", -2, 7_200, (first,))
    assert (spec.replans, spec.approve, spec.votes, spec.approval_seconds) == (0, ("patch", "plan"), 2, 1_800)
    unknown = ask("submit", "Third", "--after", "t-nobody")
    assert (unknown.code, unknown.out) == (2, "")
    assert "after: there is no task 't-nobody'" in unknown.err


def test_a_full_board_says_so(ask: Here, room: Room) -> None:
    at = room.open()
    room.do(at.intake(Intake(False, 900, 1_000)))
    said = ask("submit", "One more")
    assert (said.code, said.out) == (3, "")
    assert "900 of 1,000 bytes" in said.err
    assert "nothing was written" in said.err
    assert "intake  closed: no new tasks are taken" in ask("watch", "--no-follow").out
