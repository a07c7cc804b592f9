"""What a role with a valid credential, a late call or bad luck could once bring about, and must not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from core.contents import plan
from core.history import History
from core.world import ONE, World, ends
from kokuban.blackboard.core import Board, fold
from kokuban.schemas import Budget, Failed, Opens, Released, Revoked, Settles, Usage
from kokuban.supervisor import Begin, End, Release, Revoke, _sweep


def begun(**spec: object) -> tuple[World, History]:
    """A task whose step `write` is claimed."""
    world = World()
    history = world.planned("t-1", **spec)
    world.claim("t-1", "write")
    return world, history


def test_a_role_cannot_end_a_task_by_sealing_its_own_step() -> None:
    """It may write on its register, and knows the epoch: the server stores it."""
    world, history = begun()
    seal = Revoked("it is fine like this")
    assert history._register("write", seal, "step.revoked", fence=world.board.epoch_of("t-1")).ignored
    found = world.settle()
    assert [c.body.why for _, c in found if isinstance(c, Release)] == ["moved"]
    assert ends(world)["t-1"] == ""
    assert world.step("t-1", "write").status == "ordered"


def test_a_seal_of_the_first_release_ends_the_task_with_what_it_says() -> None:
    """That leader sealed without a word before, and died: what it sealed is never ordered again, the rest is sealed."""
    world = World()
    history = world.submit("t-1")
    for step in "ab":
        history.order(step, "coder", version=1)
    sealed = history._register("a", Revoked("the first reason"), "step.revoked", fence=history.fence, version=1)
    assert (sealed.ignored, world.task("t-1").ending) == ("", None)
    found = world.settle()
    assert [type(command) for _, command in found] == [Begin, Revoke, End]
    assert (world.final("t-1").state, world.final("t-1").reason) == ("failed", "the first reason")
    assert world.step("t-1", "b").status == "revoked"


def test_a_call_that_nobody_settles_counts_as_a_tool_call() -> None:
    world, history = begun(budget=Budget(tool_calls=1))
    history.journal("write", opens=Opens(1, "model", reserved_tokens=50))
    history.journal("write", settles=Settles(1, Usage(30, 5, 1)), opens=Opens(2, "tool", "look", effect="read"))
    history.failed("write", Failed("deadline", "time is up"))
    assert world.task("t-1").usage.tool_calls == 1
    world.settle()
    order = world.step("t-1", "write").order
    assert order is not None
    assert order.allotment.tool_calls == 0


def open_effect(**spec: object) -> tuple[World, History]:
    world, history = begun(**spec)
    history.journal("write", opens=Opens(1, "tool", "mail", key="k", effect="other"))
    return world, history


@pytest.mark.parametrize("how", ["failed", "in doubt", "overdue", "replaced"])
def test_an_effect_that_may_have_happened_is_never_made_again_by_new_work(how: str) -> None:
    world, history = open_effect(replans=1)
    if how == "failed":
        history.failed("write", Failed("deadline", "time is up"))
    elif how == "in doubt":
        history.failed("write", Failed("in_doubt", "call 1 (mail) was begun and nobody knows", retryable=False))
    elif how == "overdue":
        world.pass_time(100_000)
    else:
        at = history.registers["write"]
        history._register("write", Released("replaced", "no more"), "step.released", fence=history.fence)
        assert at.reg
    world.settle()
    assert ends(world)["t-1"] == "failed"
    assert "doubt" in world.final("t-1").reason
    assert world.step("t-1", "write").attempt == 1, "nothing was ordered again, and no plan was made for it"


def test_who_says_that_it_is_in_doubt_is_believed_whatever_else_it_says() -> None:
    """Its journal is without a call that is open, and it calls the failure one that may be tried again."""
    world, history = begun(replans=1)
    history.failed("write", Failed("in_doubt", "the mail may be out", retryable=True))
    world.settle()
    assert (ends(world)["t-1"], world.final("t-1").reason) == ("failed", "step write: the mail may be out")
    assert (world.step("t-1", "write").attempt, world.step("t-1", "plan").attempt) == (1, 1)


def test_work_that_is_taken_up_finds_the_effect_in_its_journal() -> None:
    world, history = open_effect()
    history.release("write", "silent")
    world.settle()
    order = world.step("t-1", "write").order
    assert order is not None
    assert order.resumes == 1


def test_a_settled_effect_is_in_no_doubt() -> None:
    world, history = open_effect()
    history.failed("write", Failed("model", "no answer", settles=Settles(1, Usage(tool_calls=1))))
    world.settle()
    assert world.step("t-1", "write").status == "ordered"


def test_what_nothing_calls_for_is_taken_back_before_a_task_is_done() -> None:
    world = World()
    history = world.planned("t-1")
    world.honest("t-1", world.step("t-1", "write"))
    world.settle()
    world.verify("t-1", "verify-write")
    world.settle()
    world.honest("t-1", world.step("t-1", "integrate"))
    world.settle()
    history.say("inject", "fact 1")
    world.settle()
    world.work("t-1", "plan", ("plan", plan(("write", "coder", ()), ("more", "coder", ()))))
    world.settle()
    world.claim("t-1", "more")
    if world.step("t-1", "verify-integrate").running:
        world.verify("t-1", "verify-integrate")
        world.settle()
    history.say("inject", "fact 2")
    world.settle()
    world.work("t-1", "plan", ("plan", ONE))
    found = world.settle()
    assert ends(world)["t-1"] == "done"
    assert [c.step for _, c in found if isinstance(c, Release)] == ["more"]


@dataclass
class Hand:
    """A clock that is moved by hand."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Connected:
    connected = True


def sweeper(world: World) -> tuple[_sweep.Sweeper, Board, Hand]:
    board, clock = Board(slim=True), Hand()
    for message in world.stream.messages:
        fold(board, message)
    watch = _sweep.Sweeper(Connected(), board, clock=clock)  # type: ignore[arg-type]
    watch.restored()
    return watch, board, clock


def test_a_task_that_ends_while_the_sweeper_asks_does_not_end_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    history = world.planned("t-1", plan(("a", "coder", ()), ("b", "coder", ())))
    watch, board, clock = sweeper(world)
    seen = len(world.stream.messages)

    async def floor(bus: object, role: str) -> int:
        nonlocal seen
        if not ends(world)["t-1"]:
            history.say("cancel", "enough")
            world.settle()
        for message in world.stream.messages[seen:]:
            watch.saw(fold(board, message), message)
        seen = len(world.stream.messages)
        return 0

    monkeypatch.setattr(_sweep, "ack_floor", floor)
    for _ in range(4):
        asyncio.run(watch.sweep())
        clock.seconds += 1.5
    assert ends(world)["t-1"] == "cancelled"


def test_who_was_granted_more_is_still_listened_for() -> None:
    world, history = begun(budget=Budget(tokens=1_000))
    watch, board, clock = sweeper(world)
    step = world.step("t-1", "write")
    seen = len(world.stream.messages)
    assert step.order is not None
    assert step.order.more is not None
    history.journal("write", asks=step.order.more)
    world.settle()
    assert world.stream.messages[-1].subject.startswith("kb.task.t-1.grant.")
    for message in world.stream.messages[seen:]:
        watch.saw(fold(board, message), message)
    silent: list[tuple[str, Release]] = []
    for _ in range(6):  # its own pauses are short: a long one would mean that we had been stopped
        clock.seconds += 1.5
        silent += asyncio.run(watch.sweep())
    assert ("write", "silent") in {(release.step, release.body.why) for _, release in silent}
