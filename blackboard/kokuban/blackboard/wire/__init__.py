"""The wire: NATS under the board. Streams, fenced writes, claims, watches, payloads, the embedded server."""

from kokuban.blackboard.wire._bus import (
    Bus,
    BusError,
    CannotConnect,
    NoAnswer,
    Refused,
    TooLarge,
    Unavailable,
)
from kokuban.blackboard.wire._crash import crash_point
from kokuban.blackboard.wire._payloads import PayloadMissing, Payloads
from kokuban.blackboard.wire._pull import Delivery, Pull
from kokuban.blackboard.wire._reader import Reader
from kokuban.blackboard.wire._setup import ACK_WAIT_SECONDS, ack_floor, ensure_board, ensure_roles
from kokuban.blackboard.wire._write import Conflict, Fence, Written, write

__all__ = [
    "ACK_WAIT_SECONDS", "Bus", "BusError", "CannotConnect", "Conflict", "Delivery", "Fence", "NoAnswer",
    "PayloadMissing", "Payloads", "Pull", "Reader", "Refused", "TooLarge", "Unavailable", "Written", "ack_floor",
    "crash_point", "ensure_board", "ensure_roles", "write",
]  # fmt: skip
