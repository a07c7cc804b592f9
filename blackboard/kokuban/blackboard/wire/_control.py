"""The stream `CONTROL`: what all workers of all tenants share, one record a subject. And setting limits."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from kokuban.blackboard.clock import SYSTEM
from kokuban.blackboard.wire._bus import Bus
from kokuban.blackboard.wire._write import Fence, Written, write
from kokuban.schemas import BoardLimits, Wire, open_record, seal, subjects
from kokuban.schemas.quota import Endpoint, EndpointLimits

Shape = TypeVar("Shape", bound=Wire)


async def endpoint_limits(bus: Bus, name: str) -> EndpointLimits | None:
    """The limits of an endpoint; None when nobody has set any."""
    stored = await bus.patiently(lambda: bus.last(subjects.endpoint_limits(name), stream=subjects.CONTROL))
    return msgspec.json.decode(open_record(stored.data).body, type=EndpointLimits) if stored else None


async def endpoint_use(bus: Bus, name: str) -> Endpoint:
    """Who uses an endpoint, as it was last written."""
    stored = await bus.patiently(lambda: bus.last(subjects.endpoint(name), stream=subjects.CONTROL))
    return msgspec.json.decode(open_record(stored.data).body, type=Endpoint) if stored else Endpoint()


async def limited_endpoints(bus: Bus) -> list[str]:
    """The names of endpoints that have a record of limits, sorted."""
    prefix = subjects.endpoint_limits("")
    info = await bus.patiently(
        lambda: bus.api(f"STREAM.INFO.{subjects.CONTROL}", {"subjects_filter": subjects.endpoint_limits(">")})
    )
    return sorted(subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {})


async def change_limits(
    bus: Bus, name: str, change: Callable[[EndpointLimits], EndpointLimits], *, principal: str | None = None
) -> EndpointLimits:
    """Change an endpoint's limits; returns what stands. Workers follow at once. Raises `BusError` (see `write`)."""
    subject = subjects.endpoint_limits(subjects.token(name, "endpoint"))
    return await _change(bus, subjects.CONTROL, subject, "quota.limits", EndpointLimits(), change, principal)


async def change_board_limits(
    bus: Bus, change: Callable[[BoardLimits], BoardLimits], *, principal: str | None = None
) -> BoardLimits:
    """Change what the leader may have under way and how it rates; returns what stands. Raises `BusError`."""
    return await _change(bus, subjects.BOARD, subjects.LIMITS, "ctl.limits", BoardLimits(), change, principal)


async def board_limits(bus: Bus) -> BoardLimits:
    """The board's limits as they were last set."""
    stored = await bus.patiently(lambda: bus.last(subjects.LIMITS))
    return msgspec.json.decode(open_record(stored.data).body, type=BoardLimits) if stored else BoardLimits()


async def _change(
    bus: Bus, stream: str, subject: str, kind: str, start: Shape, change: Callable[[Shape], Shape],
    principal: str | None,
) -> Shape:  # fmt: skip
    """Read, change and write by compare-and-set until it lands. What changes nothing is not written."""
    while True:
        stored = await bus.patiently(lambda: bus.last(subject, stream=stream))
        old = msgspec.json.decode(open_record(stored.data).body, type=type(start)) if stored else start
        new, op = change(old), secrets.token_hex(12)
        if new == old:
            return new
        data = seal(new, id=op, type=kind, principal=principal, trust="principal", time=SYSTEM.stamp())
        fence = Fence(subject, stored.seq if stored else 0)
        if isinstance(await write(bus, subject, data, op=op, fence=fence, stream=stream), Written):
            return new
