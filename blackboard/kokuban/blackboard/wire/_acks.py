"""The server's answer to a publish."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NOT_NOW = (10008, 10009, 10118)
"""The codes of a cluster that has no leader for what was asked, as after a server's death."""
SAME_IN_PROCESS = 10158
"""A message with this id is on its way to the other servers already, and may yet be stored or not."""


class Ack(NamedTuple):
    """The server's answer to a publish: `code` 0 and the stored sequence, or its error code and description."""

    seq: int
    duplicate: bool = False
    code: int = 0
    description: str = ""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""
    code: int = 0


class _PubAck(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_ack_decoder = msgspec.json.Decoder(_PubAck)


def read_ack(data: bytes) -> Ack:
    """Read an answer. Raises `msgspec.DecodeError` for what is none."""
    ack = _ack_decoder.decode(data)
    if ack.error is not None:
        return Ack(0, False, ack.error.err_code or ack.error.code, ack.error.description)
    return Ack(ack.seq, ack.duplicate)
