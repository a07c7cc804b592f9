"""The server refuses who may not, at once and by name; and lets everybody do their own work."""

from __future__ import annotations

import asyncio
import json

import pytest

from kokuban.blackboard.core import Stored
from kokuban.blackboard.wire import (
    Bus,
    Conflict,
    Fence,
    Forbidden,
    NoAnswer,
    Payloads,
    Pull,
    Reader,
    Unavailable,
    Written,
    ensure_board,
    ensure_roles,
    write,
)
from kokuban.schemas import subjects
from support.auth_users import Enter

pytestmark = pytest.mark.anyio

SPEC = "kb.task.t.spec"
MAY = {
    "client": [SPEC, "kb.task.t.control.local.1"],
    "admin": [SPEC, "kb.ctl.limits", "kb.ctl.kind.glossary.1", "kb.ctl.role.writer", "kc.limits.big"],
    "supervisor": [
        "kb.task.t.work.coder.fix", "kb.task.t.step.coder.fix", "kb.task.t.grant.coder.fix", "kb.task.t.final",
        "kb.task.t.ending", "kb.task.t.buried", "kb.task.t.gate.coder.g.request",
        "kb.task.t.gate.coder.g.decision", SPEC,
        "kb.ctl.lease", "kb.ctl.epoch.3",
    ],
    "role-researcher": [
        "kb.task.t.step.researcher.find", "kb.task.t.journal.researcher.find",
        "kb.task.t.artifact.researcher.finding.f.7", "kc.endpoint.big",
    ],
    "role-verifier": ["kb.task.t.artifact.verifier.verdict.v.7", "kb.task.t.artifact.verifier.critique.c.7"],
    "approver-ann": ["kb.task.t.gate.coder.g.vote.ann", "kb.task.t.control.ann.1"],
}  # fmt: skip
MAY_NOT = {
    "client": [
        "kb.task.t.final", "kb.task.t.ending", "kb.task.t.buried", "kb.task.t.work.coder.fix",
        "kb.task.t.step.coder.fix",
        "kb.task.t.control.ann.1", "kb.task.t.gate.coder.g.vote.ann", "kb.ctl.limits", "kb.ctl.lease",
        "kc.limits.big", "kc.endpoint.big",
    ],
    "admin": [
        "kb.task.t.final", "kb.task.t.ending", "kb.task.t.buried", "kb.ctl.lease", "kb.ctl.epoch.0",
        "kb.task.t.gate.coder.g.decision",
    ],
    "supervisor": [
        "kb.task.t.gate.coder.g.vote.ann", "kb.task.t.journal.coder.fix", "kb.task.t.artifact.coder.patch.p.7",
        "kb.task.t.control.ann.1", "kc.limits.big",
    ],
    "role-researcher": [
        "kb.task.t.artifact.researcher.patch.p.7", "kb.task.t.artifact.coder.patch.p.7", "kb.task.t.step.coder.fix",
        "kb.task.t.journal.coder.fix", "kb.task.t.work.researcher.find", "kb.task.t.grant.researcher.find",
        "kb.task.t.gate.researcher.g.request", "kb.task.t.gate.researcher.g.decision",
        "kb.task.t.gate.researcher.g.vote.ann", "kb.task.t.final", "kb.task.t.ending", "kb.task.t.buried", SPEC,
        "kb.ctl.limits",
        "kb.ctl.lease", "kb.task.t.control.local.1", "kc.limits.big",
    ],
    "approver-ann": [
        "kb.task.t.gate.coder.g.vote.bob", "kb.task.t.gate.coder.g.decision", "kb.task.t.control.bob.1", SPEC,
        "kb.task.t.final", "kb.task.t.ending", "kb.task.t.buried",
    ],
    "watcher": [
        SPEC, "kb.task.t.control.local.1", "kb.task.t.final", "kb.task.t.ending", "kb.task.t.buried",
        "kb.ctl.limits", "kc.limits.big",
        "kc.endpoint.big", "kb.task.t.gate.coder.g.vote.ann", "$O.KOKUBAN_PAYLOADS.M.x", "$O.KOKUBAN_PAYLOADS.C.x",
    ],
}  # fmt: skip


async def refused(bus: Bus, subject: str) -> None:
    """Publishing it is an error that names subject and user, long before the request's own time is over."""
    with pytest.raises(Forbidden, match=subject.replace("$", r"\$").replace(".", r"\.")) as caught:
        await asyncio.wait_for(bus.publish(subject, b"{}", timeout=60), 10)
    assert (caught.value.subject, caught.value.user) == (subject, bus.user)
    assert caught.value.landed is False
    assert bus.user in str(caught.value)


@pytest.mark.parametrize("user", MAY)
async def test_everybody_may_do_their_own_work(owner: Bus, enter: Enter, user: str) -> None:
    bus = await enter(user)
    for subject in MAY[user]:
        assert (await bus.publish(subject, b"{}")).seq > 0, subject


@pytest.mark.parametrize("user", MAY_NOT)
async def test_what_is_others_is_refused_by_the_server(owner: Bus, enter: Enter, user: str) -> None:
    bus = await enter(user)
    for subject in MAY_NOT[user]:
        await refused(bus, subject)
    assert await owner.last_seq() == 0
    assert bus.connected


@pytest.mark.parametrize("user", ["client", "watcher", "approver-ann", "role-coder"])
async def test_streams_and_shared_consumers_are_the_supervisors(owner: Bus, enter: Enter, user: str) -> None:
    bus = await enter(user)
    config = {"stream_name": "BOARD", "action": "create", "config": {"durable_name": "coder"}}
    for api in ("$JS.API", "$JS.board.API"):
        for call in (
            "STREAM.CREATE.BOARD", "STREAM.UPDATE.BOARD", "STREAM.DELETE.BOARD", "STREAM.PURGE.BOARD",
            "STREAM.MSG.DELETE.BOARD", "CONSUMER.CREATE.BOARD.coder", "CONSUMER.CREATE.BOARD.coder.kb.>",
            "CONSUMER.DELETE.BOARD.coder", "CONSUMER.DURABLE.CREATE.BOARD.coder", "CONSUMER.MSG.NEXT.BOARD.planner",
        ):  # fmt: skip
            with pytest.raises(Forbidden):
                await bus.request(f"{api}.{call}", json.dumps(config).encode())
    assert (await owner.api("CONSUMER.INFO.BOARD.coder"))["config"]["filter_subject"] == subjects.orders_for("coder")


async def test_a_role_pulls_from_its_own_consumer_only(owner: Bus, enter: Enter) -> None:
    coder = await enter("role-coder")
    await owner.publish("kb.task.t.work.coder.fix", b"{}")
    got: asyncio.Queue[str] = asyncio.Queue()

    async def keep(pull: Pull, delivery: object) -> None:
        got.put_nowait(delivery.ack)  # type: ignore[attr-defined]

    async def unfilled(pull: Pull) -> None:
        pass

    own = Pull(coder, "coder", keep, unfilled)
    await own.start()
    await own.request(1)
    ack = await asyncio.wait_for(got.get(), 5)
    await coder.send(ack, b"+ACK")
    await own.stop()
    others = Pull(coder, "planner", keep, unfilled)
    await others.start()
    await others.request(1)
    await asyncio.wait_for(others.dead.wait(), 1)  # a silent consumer takes two seconds
    assert isinstance(others.error, Forbidden)
    assert "role-planner" in str(others.error)
    await others.stop()
    with pytest.raises(Forbidden):
        await coder.request("$JS.ACK.BOARD.planner.1.1.1.1.0", b"+ACK")


@pytest.mark.parametrize("user", ["client", "watcher", "approver-ann"])
async def test_people_and_watchers_read_all_of_it(owner: Bus, enter: Enter, user: str) -> None:
    for n in range(3):
        await owner.publish(f"kb.task.t{n}.spec", b"{}")
    bus = await enter(user)
    await ensure_board(bus)
    seen: list[Stored] = []

    async def keep(stored: Stored) -> None:
        seen.append(stored)

    for subject in (None, "kb.task.t1.>"):
        reader = Reader(bus, keep, subject=subject)
        reading = asyncio.create_task(reader.run())
        await asyncio.wait_for(reader.caught_up.wait(), 5)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert [one.subject for one in seen] == [f"kb.task.t{n}.spec" for n in (0, 1, 2, 1)]
    assert (await bus.last("kb.task.t2.spec")) == seen[2]


async def test_readers_may_be_given_up_at_any_moment(owner: Bus, enter: Enter) -> None:
    """Also while they subscribe: the client must not lose its connection over it."""
    await owner.publish(SPEC, b"{}")
    client = await enter("client")

    async def keep(stored: Stored) -> None:
        pass

    for turns in range(40):
        reading = asyncio.create_task(Reader(client, keep).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await client.last(SPEC, timeout=2) is not None
    for _ in range(5):
        reader = Reader(client, keep)
        reading = asyncio.create_task(reader.run())
        await asyncio.wait_for(reader.caught_up.wait(), 5)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await client.last(SPEC, timeout=2) is not None


async def test_a_reader_that_may_not_is_told_so(owner: Bus, enter: Enter) -> None:
    async def keep(stored: Stored) -> None:
        raise AssertionError("nothing may come")

    with pytest.raises(Forbidden):
        await asyncio.wait_for(Reader(await enter("role-coder"), keep).run(), 5)


async def test_payloads_pass_between_client_and_role(owner: Bus, enter: Enter) -> None:
    content = b"x" * 300_000
    name = await Payloads(await enter("client")).put(content)
    assert await Payloads(await enter("role-coder")).get(name) == content
    assert await Payloads(await enter("watcher")).get(name) == content
    with pytest.raises(Forbidden):
        await Payloads(await enter("watcher")).put(b"y" * 10)


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("watcher", ">"), ("watcher", "_INBOX_client.>"), ("watcher", "_INBOX.>"), ("watcher", "kb.>"),
        ("role-coder", "_INBOX_role-planner.>"), ("role-coder", "kl.delta.>"), ("client", "$JS.EVENT.>"),
        ("supervisor", "_INBOX_client.>"), ("approver-ann", "_INBOX_approver-bob.>"),
    ],
)  # fmt: skip
async def test_nobody_hears_what_is_others(owner: Bus, enter: Enter, user: str, subject: str) -> None:
    async def hear(message: object) -> None:
        raise AssertionError("nothing may come")

    bus = await enter(user)
    with pytest.raises(Forbidden) as caught:
        await bus.subscribe(subject, hear)
    assert caught.value.subject == subject
    assert "subscribe" in str(caught.value)


async def test_hints_and_heartbeats_reach_whom_they_are_for(owner: Bus, enter: Enter) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: object) -> None:
        heard.put_nowait(message.subject)  # type: ignore[attr-defined]

    coder, watcher = await enter("role-coder"), await enter("watcher")
    await owner.subscribe("kl.heartbeat.*.*", hear)
    await owner.subscribe("kl.stopped.>", hear)
    await watcher.subscribe("kl.artifact.>", hear)
    await watcher.subscribe("kl.delta.>", hear)
    await coder.subscribe("kl.hint.kb.task.*.step.coder.*", hear)
    said = ["kl.heartbeat.coder.w", "kl.stopped.t.coder.s", "kl.delta.t.coder.s"]
    for subject in said:
        await coder.send(subject, b"{}")
    await owner.send("kl.artifact.t.patch.p", b"{}")
    await owner.publish("kb.task.t.step.coder.s", b"{}")
    got = {await asyncio.wait_for(heard.get(), 5) for _ in range(5)}
    assert got == {*said, "kl.artifact.t.patch.p", "kl.hint.kb.task.t.step.coder.s"}


async def test_a_write_that_is_forbidden_is_not_tried_again(owner: Bus, enter: Enter) -> None:
    coder = await enter("role-coder")
    final = subjects.final("t")
    with pytest.raises(Forbidden):
        await asyncio.wait_for(write(coder, final, b'{"id":"1"}', op="1", fence=Fence(final, 0)), 5)
    own = subjects.register("t", "coder", "s")
    assert isinstance(await write(coder, own, b'{"id":"2"}', op="2", fence=Fence(own, 0)), Written)
    assert isinstance(await write(coder, own, b'{"id":"3"}', op="3", fence=Fence(own, 0)), Conflict)


async def test_a_board_that_is_not_there_is_said(enter: Enter) -> None:
    from kokuban.blackboard.wire import CannotConnect

    client = await enter("client")
    with pytest.raises(CannotConnect, match="start a supervisor"):
        await ensure_board(client)
    with pytest.raises((Unavailable, NoAnswer)):
        await client.publish(SPEC, b"{}", timeout=1)
    with pytest.raises(Forbidden):
        await ensure_roles(client, ["coder"])
