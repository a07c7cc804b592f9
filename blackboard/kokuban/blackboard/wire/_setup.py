"""Making the board: the stream, a durable consumer per role, the payload bucket. Safe to call again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import structlog

from kokuban.blackboard.wire._bus import Bus, CannotConnect, Forbidden, NoAnswer, Refused, Unavailable
from kokuban.blackboard.wire._names import PAYLOAD_SUBJECTS, PAYLOADS_STREAM
from kokuban.schemas import subjects

ACK_WAIT_SECONDS = 10
NAME_IN_USE = 10058
CONSUMER_MISSING = 10014
STREAM_MISSING = 10059
CONSUMER_EXISTS = 10148
NO_PEERS = 10005
"""No suitable peers: also what a cluster says that is just coming up."""
_NS = 1_000_000_000
_PATIENCE_SECONDS = 10.0
log = structlog.get_logger("kokuban.setup")


async def ensure_board(bus: Bus, *, replicas: int = 1, max_bytes: int = 8 * 1024**3) -> None:
    """Create the stream when it is not there, and wait until it answers. Raises `CannotConnect` when it cannot be.

    `replicas` (1, 3 or 5) says on how many servers of a cluster it is kept, at least: one that has fewer is given more,
    with its consumers; one that has more stays so. With accounts only the supervisor's credential may, and then makes
    at once what its team will need; for the others this looks whether the board is there.
    """
    config: dict[str, Any] = {
        "name": subjects.BOARD, "subjects": [subjects.BOARD_SUBJECTS], "storage": "file", "retention": "limits",
        "discard": "new", "max_bytes": max_bytes, "allow_direct": True, "allow_msg_ttl": True, "num_replicas": replicas,
        "duplicate_window": 120 * _NS,
        "republish": {
            "src": subjects.BOARD_SUBJECTS, "dest": f"{subjects.HINTS}.{subjects.BOARD_SUBJECTS}", "headers_only": True,
        },
    }  # fmt: skip
    await ensure_stream(bus, config)
    if bus.may_set_up and (bus.user or replicas > 1):
        await ensure_payloads(bus, PAYLOADS_STREAM, list(PAYLOAD_SUBJECTS), replicas=replicas)
        await ensure_control(bus, replicas=replicas)


async def ensure_roles(bus: Bus, roles: Iterable[str], *, ack_wait_seconds: int = ACK_WAIT_SECONDS) -> None:
    """Create each role's durable consumer of work orders. An existing one is left as it is; one made anew delivers
    every order again, of which the void ones cannot be claimed. An order whose worker died before it claimed the step
    is delivered again after `ack_wait_seconds`."""
    for role in roles:
        name = subjects.consumer(role)
        body = {
            "stream_name": subjects.BOARD, "action": "create",
            "config": {
                "durable_name": name, "ack_policy": "explicit", "ack_wait": ack_wait_seconds * _NS, "max_deliver": -1,
                "deliver_policy": "all", "replay_policy": "instant", "filter_subject": subjects.orders_for(role),
                "max_ack_pending": 10_000,
            },
        }  # fmt: skip
        call = f"CONSUMER.CREATE.{subjects.BOARD}.{name}.{subjects.orders_for(role)}"
        await _until_served(bus, call, body, fine=(CONSUMER_EXISTS,))


async def ensure_payloads(bus: Bus, stream: str, names: list[str], *, replicas: int = 1) -> None:
    """Create the object store's stream when it is not there."""
    config = {
        "name": stream, "subjects": names, "storage": "file", "retention": "limits", "discard": "new",
        "allow_direct": True, "allow_rollup_hdrs": True, "num_replicas": replicas,
    }  # fmt: skip
    await ensure_stream(bus, config)


async def ensure_control(bus: Bus, *, replicas: int = 1) -> None:
    """Create the stream when it is not there. Raises `CannotConnect` when it cannot be. What is stored is republished
    whole, so that who waits for a slot need not read it."""
    config = {
        "name": subjects.CONTROL, "subjects": [subjects.CONTROL_SUBJECTS], "storage": "file", "retention": "limits",
        "discard": "old", "max_msgs_per_subject": 1, "allow_direct": True, "allow_msg_ttl": True,
        "num_replicas": replicas, "duplicate_window": 120 * _NS,
        "republish": {"src": subjects.CONTROL_SUBJECTS, "dest": f"{subjects.HINTS}.{subjects.CONTROL_SUBJECTS}"},
    }  # fmt: skip
    await ensure_stream(bus, config)


async def ensure_stream(bus: Bus, config: dict[str, Any]) -> None:
    """Create a stream when it is not there; one with fewer replicas is given as many. Raises `CannotConnect`."""
    name, replicas = config["name"], config["num_replicas"]
    await _until_served(bus, f"STREAM.CREATE.{name}", config, fine=(NAME_IN_USE,))
    if replicas == 1 or not bus.may_set_up:
        return
    there = (await bus.patiently(lambda: bus.api(f"STREAM.INFO.{name}"), seconds=_PATIENCE_SECONDS))["config"]
    if there["num_replicas"] >= replicas:
        return
    try:
        await _until_served(bus, f"STREAM.UPDATE.{name}", there | {"num_replicas": replicas}, fine=())
    except Forbidden:  # it is shared by all tenants, so no tenant's to change
        log.warning("a stream has fewer replicas than asked for", stream=name, replicas=there["num_replicas"])
    else:
        await _until_copied(bus, name, replicas)


async def _until_copied(bus: Bus, name: str, replicas: int) -> None:
    """Wait until the new servers have all that the old one has: if that died before, nobody could go on. A board that
    is so large that it takes longer is told, and used."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _PATIENCE_SECONDS
    while loop.time() < give_up:
        info = await bus.patiently(lambda: bus.api(f"STREAM.INFO.{name}"), seconds=_PATIENCE_SECONDS)
        others = info.get("cluster", {}).get("replicas") or []
        if len(others) == replicas - 1 and all(one.get("current") and not one.get("lag") for one in others):
            return
        await asyncio.sleep(0.1)
    log.warning("the copies of a stream are still being made: do not stop its first server", stream=name)


async def ack_floor(bus: Bus, role: str) -> int | None:
    """Every order of the role at or below this sequence has been settled with the consumer. None: no consumer."""
    try:
        info = await bus.api(f"CONSUMER.INFO.{subjects.BOARD}.{subjects.consumer(role)}")
    except Refused as error:
        if error.code == CONSUMER_MISSING:
            return None
        raise
    return int(info["ack_floor"]["stream_seq"])


async def _until_served(bus: Bus, call: str, body: dict[str, Any], *, fine: tuple[int, ...]) -> None:
    if not bus.may_set_up and call.startswith("STREAM.CREATE."):
        call, body = call.replace("CREATE", "INFO"), {}
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            await bus.api(call, body)
            return
        except Refused as error:
            if error.code in fine:
                return
            if error.code == STREAM_MISSING:
                raise CannotConnect(
                    f"NATS: there is no {call.split('.')[-1]} there yet, and the user {bus.user} may not make it; "
                    "start a supervisor (`kokuban supervisor`, `kokuban up`) first"
                ) from error
            if error.code != NO_PEERS or loop.time() > give_up:
                what = call.split(".")[0].lower()
                raise CannotConnect(f"NATS: the server refuses {what} set-up: {error}") from error
        except (NoAnswer, Unavailable) as error:
            if loop.time() > give_up:
                raise CannotConnect(f"NATS: JetStream does not answer: {error}") from error
        await asyncio.sleep(0.1)
