"""The wire: NATS under the board. Streams, fenced writes, claims, watches, payloads, the embedded server."""

from kokuban.blackboard.wire._bus import (
    Bus,
    BusError,
    CannotConnect,
    Forbidden,
    NoAnswer,
    Refused,
    TooLarge,
    Unavailable,
)
from kokuban.blackboard.wire._control import (
    board_limits,
    change_board_limits,
    change_limits,
    endpoint_limits,
    endpoint_use,
    limited_endpoints,
)
from kokuban.blackboard.wire._crash import crash_point
from kokuban.blackboard.wire._payloads import PayloadMissing, Payloads
from kokuban.blackboard.wire._pull import Delivery, Pull
from kokuban.blackboard.wire._quota import Quota
from kokuban.blackboard.wire._reader import Reader
from kokuban.blackboard.wire._setup import ACK_WAIT_SECONDS, ack_floor, ensure_board, ensure_control, ensure_roles
from kokuban.blackboard.wire._write import Conflict, Fence, Written, write

__all__ = [
    "ACK_WAIT_SECONDS", "Bus", "BusError", "CannotConnect", "Conflict", "Delivery", "Fence", "Forbidden", "NoAnswer",
    "PayloadMissing", "Payloads", "Pull", "Quota", "Reader", "Refused", "TooLarge", "Unavailable", "Written",
    "ack_floor", "board_limits", "change_board_limits", "change_limits", "crash_point", "endpoint_limits",
    "endpoint_use", "ensure_board", "ensure_control", "ensure_roles", "limited_endpoints", "write",
]  # fmt: skip
