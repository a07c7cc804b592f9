"""Writing to the board so that it is known what happened: compare-and-set, operation ids, read-back (DESIGN 4.4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kokuban.blackboard.wire._bus import Ack, Bus, BusError, NoAnswer, Refused, Unavailable
from kokuban.blackboard.wire._crash import crash_point
from kokuban.schemas import subjects

WRONG_LAST_SEQUENCE = 10071
ANOTHER_IN_FLIGHT = 10164
NOTHING_THERE = "wrong last sequence: 0"
"""How the server describes a fence whose subject has no message."""
GONE_SECONDS = 2.0
"""For how long the server must say so. Once is not enough: a leader that was cut off may be behind."""
ANSWER_SECONDS = 2.0
"""How long to wait for one answer before reading back: what a dying leader of the stream had taken is not answered."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"


@dataclass(frozen=True, slots=True)
class Written:
    """The record is stored at `seq`."""

    seq: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Somebody else wrote first: this record is not stored and never will be. `last` is the fence's last sequence."""

    last: int


class Fence(NamedTuple):
    """The write counts only while the last sequence on `subject` is `seq` (0: while there is none)."""

    subject: str
    seq: int


class _Operation(msgspec.Struct):
    id: str = ""


_operation = msgspec.json.Decoder(_Operation)


async def write(
    bus: Bus, subject: str, data: bytes, *, op: str, fence: Fence, ttl: str | None = None, patience_seconds: float = 60,
    stream: str = subjects.BOARD,
) -> Written | Conflict:  # fmt: skip
    """Store `data`, a record whose id is `op`, on `subject` of `stream` while `fence` holds.

    After a timeout or a conflict it reads back: own id there means landed; the fence unmoved means try again; else
    `Conflict`, also when what the fence names has been removed (its task is archived). Raises `Refused` (a full store
    …: not landed), `TooLarge` (not landed), and `NoAnswer` after `patience_seconds` without a usable server (unknown).
    """
    headers = {EXPECTED: str(fence.seq), MESSAGE_ID: op}
    if fence.subject != subject:
        headers[EXPECTED_SUBJECT] = fence.subject
    if ttl is not None:
        headers[TTL] = ttl
    loop = asyncio.get_running_loop()
    give_up, wait = loop.time() + patience_seconds, min(ANSWER_SECONDS, patience_seconds)
    pause, gone_since = 0.01, float("inf")
    while True:
        crash_point(f"before-write:{subject}")
        try:
            ack = await bus.publish(subject, data, headers, timeout=wait)
        except (NoAnswer, Unavailable) as error:
            outcome: Ack | BusError = error
        else:
            outcome = ack
            if ack.code == 0:
                crash_point(f"after-write:{subject}")
                return Written(ack.seq)
            if ack.code not in (WRONG_LAST_SEQUENCE, ANOTHER_IN_FLIGHT):
                raise Refused(ack.code, f"{subject}: {ack.description}")
        found = await _read_back(bus, subject, op, fence, wait, stream)
        if found is not None:
            return found
        if not (fence.seq and isinstance(outcome, Ack) and outcome.description.endswith(NOTHING_THERE)):
            gone_since = float("inf")
        elif loop.time() - (gone_since := min(gone_since, loop.time())) > GONE_SECONDS:
            return Conflict(0)
        if loop.time() > give_up:
            raise NoAnswer(f"{subject}: no definite answer: {outcome}")
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 2)


async def _read_back(
    bus: Bus, subject: str, op: str, fence: Fence, wait: float, stream: str
) -> Written | Conflict | None:
    """What the stream says about our write: None when it is not there and may still be tried."""
    try:
        last = await bus.last(subject, stream=stream, timeout=wait)
        if last is not None and _operation.decode(last.data).id == op:
            return Written(last.seq)
        mark = last if fence.subject == subject else await bus.last(fence.subject, stream=stream, timeout=wait)
    except (BusError, msgspec.DecodeError):
        return None
    now = mark.seq if mark is not None else 0
    return Conflict(now) if now > fence.seq else None
