"""What a board says, as one digest: two folds of one history must give the same."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

from kokuban.blackboard.core import Board

_APART = ("last_seq", "ignored")
"""Leases expire and fillers are taken away: a fold from zero meets fewer of them."""


def board_digest(board: Board) -> str:
    """sha256 over all that the board holds; dictionaries count by content, whatever their order."""
    parts = {f.name: getattr(board, f.name) for f in fields(board) if f.name not in _APART}
    return hashlib.sha256(repr(_plain(parts)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(((repr(k), _plain(v)) for k, v in value.items() if v != 0), key=lambda pair: pair[0])
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    slots = getattr(value, "__dataclass_fields__", None)
    if slots is not None:
        return [(name, _plain(getattr(value, name))) for name in slots]
    return repr(value)
