"""Tenants cannot read each other and share what is meant to be shared; an answer cannot be led to where its asker may
not write; who is unknown does not come in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kokuban.blackboard.wire import Bus, CannotConnect, Conflict, Fence, Forbidden, Written, ensure_board, write
from kokuban.blackboard.wire._credentials import make_credential
from kokuban.schemas import subjects
from support.auth_users import Enter
from support.nats_server import NatsServer
from support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_tenant_neither_reads_nor_writes_anothers_board(owner: Bus, enter: Enter) -> None:
    blue = await enter("supervisor", "blue")
    await ensure_board(blue)
    for tenant in ("red", "blue"):
        client = await enter("client", tenant)
        assert (await client.publish("kb.task.same.spec", tenant.encode())).seq == 1
    for tenant in ("red", "blue"):
        for user in ("watcher", "client", "role-coder", "supervisor"):
            bus = await enter(user, tenant)
            stored = await bus.read(1)
            assert stored is not None
            assert stored.data == tenant.encode()
            assert await bus.last_seq() == 1
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: object) -> None:
        heard.put_nowait(message.subject)  # type: ignore[attr-defined]

    await (await enter("watcher", "blue")).subscribe("kl.>", hear)
    await owner.publish("kb.task.red-only.final", b"{}")
    await owner.send("kl.artifact.red-only.patch.p", b"{}")
    await (await enter("role-coder", "red")).send("kl.delta.red-only.coder.s", b"{}")
    await owner.last_seq()
    await blue.publish("kb.task.blue-only.final", b"{}")
    assert await asyncio.wait_for(heard.get(), 5) == "kl.hint.kb.task.blue-only.final"


async def test_tenants_share_an_endpoints_record(owner: Bus, enter: Enter) -> None:
    subject = subjects.endpoint("big-model")
    red, blue = await enter("role-coder", "red"), await enter("role-coder", "blue")
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: object) -> None:
        heard.put_nowait(message.subject)  # type: ignore[attr-defined]

    await blue.subscribe(f"{subjects.HINTS}.{subject}", hear)
    first = await write(red, subject, b'{"id":"r"}', op="r", fence=Fence(subject, 0), stream=subjects.CONTROL)
    assert isinstance(first, Written)
    assert await asyncio.wait_for(heard.get(), 5) == f"{subjects.HINTS}.{subject}"
    late = await write(blue, subject, b'{"id":"b"}', op="b", fence=Fence(subject, 0), stream=subjects.CONTROL)
    assert late == Conflict(first.seq)
    seen = await blue.last(subject, stream=subjects.CONTROL)
    assert seen is not None
    assert (seen.seq, seen.data) == (first.seq, b'{"id":"r"}')
    fence = Fence(subject, first.seq)
    assert isinstance(await write(blue, subject, b'{"id":"c"}', op="c", fence=fence, stream=subjects.CONTROL), Written)
    with pytest.raises(Forbidden):
        await blue.publish(subjects.endpoint_limits("big-model"), b"{}")
    admin = await enter("admin", "blue")
    limits = subjects.endpoint_limits("big-model")
    assert isinstance(
        await write(admin, limits, b'{"id":"l"}', op="l", fence=Fence(limits, 0), stream=subjects.CONTROL), Written
    )


TARGETS = [
    "kb.task.t.final", "kb.task.t.step.planner.plan", "kb.ctl.lease", "kc.limits.big",
    "$JS.board.API.STREAM.INFO.BOARD", "$JS.API.STREAM.PURGE.BOARD", "$JS.API.STREAM.DELETE.BOARD",
    "$O.KOKUBAN_PAYLOADS.M.x", "kl.heartbeat.planner.w",
]  # fmt: skip


@pytest.mark.parametrize("user", ["role-coder", "watcher", "client"])
async def test_an_answer_cannot_be_led_to_where_its_asker_may_not_write(owner: Bus, enter: Enter, user: str) -> None:
    """A request names where its answer goes, and no permission covers that: within one account the stream would store
    it, so a watcher could write a task's end with the help of the server."""
    coder = await enter("role-coder")
    own = subjects.journal("t", "coder", "s")
    await coder.publish(own, json.dumps({"forged": "a task's end"}).encode())
    await owner.publish("kb.task.t.work.coder.s", b"{}")
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(message.subject)  # type: ignore[attr-defined]

    await owner.subscribe("kl.heartbeat.>", hear)
    bus = await enter(user)
    before = [await owner.api(f"STREAM.INFO.{stream}") for stream in (subjects.BOARD, f"OBJ_{subjects.PAYLOADS}")]
    for target in TARGETS:
        for call, body in [
            (f"DIRECT.GET.{subjects.BOARD}", b'{"seq":1}'),
            (f"STREAM.INFO.{subjects.BOARD}", b"{}"),
            ("CONSUMER.MSG.NEXT.BOARD.coder", b'{"batch":1,"no_wait":true}'),
            ("CONSUMER.CREATE.BOARD.x1", b'{"stream_name":"BOARD","config":{"name":"x1","ack_policy":"none"}}'),
        ]:
            await bus.send(bus.api_subject(call), body, target)
        await bus.send(subjects.journal("t", "coder", "s2"), b"{}", target)
    assert await bus.read(1) is not None  # all of it has been handled
    after = [await owner.api(f"STREAM.INFO.{stream}") for stream in (subjects.BOARD, f"OBJ_{subjects.PAYLOADS}")]
    added = len(TARGETS) if user == "role-coder" else 0  # its own journal
    assert after[0]["state"]["messages"] == before[0]["state"]["messages"] + added
    assert after[1]["state"]["messages"] == before[1]["state"]["messages"]
    for target in TARGETS[:3]:
        assert await owner.last(target) is None
    assert await owner.last("kc.limits.big", stream=subjects.CONTROL) is None
    assert heard == []
    # The same in the board's own account, where only the supervisor is, shows what the two accounts are for.
    await owner.send(owner.api_subject(f"DIRECT.GET.{subjects.BOARD}"), b'{"seq":1}', TARGETS[0])
    assert await eventually(lambda: owner.last(TARGETS[0]))


async def test_a_consumer_that_pushes_cannot_write_either(owner: Bus, enter: Enter) -> None:
    watcher = await enter("watcher")
    await owner.publish("kb.task.t.spec", b"{}")
    for n, target in enumerate(TARGETS):
        config = {"name": f"push{n}", "ack_policy": "none", "deliver_subject": target}
        body = {"stream_name": "BOARD", "config": config}
        await watcher.request(watcher.api_subject(f"CONSUMER.CREATE.BOARD.push{n}"), json.dumps(body).encode())
    await owner.publish("kb.task.u.spec", b"{}")
    assert await owner.last_seq() == 2
    info = await owner.api(f"STREAM.INFO.OBJ_{subjects.PAYLOADS}")
    assert info["state"]["messages"] == 0


@pytest.mark.parametrize("known", [False, True])
async def test_who_is_unknown_does_not_come_in(guarded: NatsServer, tmp_path: Path, known: bool) -> None:
    secret = make_credential(tmp_path, "client", "red").path if known else None
    with pytest.raises(CannotConnect) as caught:
        await asyncio.wait_for(Bus.connect(guarded.url, credentials=secret, timeout=60), 10)
    text = str(caught.value)
    assert "--credentials" in text
    assert (str(secret) in text) is known
    assert "asks for a credential" in text or known


async def test_a_credential_goes_on_through_a_restart(guarded: NatsServer, owner: Bus, enter: Enter) -> None:
    client = await enter("client")
    await client.publish("kb.task.t.spec", b"{}")
    await asyncio.to_thread(guarded.kill)
    await asyncio.to_thread(guarded.restart)
    assert await client.patiently(client.last_seq) == 1
    with pytest.raises(Forbidden):
        await client.publish("kb.task.t.final", b"{}")


async def test_a_server_without_accounts_needs_none_and_takes_any(nats_server: NatsServer, tmp_path: Path) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        assert (await bus.publish("kb.task.t.final", b"{}")).seq == 1
        assert (bus.user, bus.person) == ("", None)
