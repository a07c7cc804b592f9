"""What a board says, as one text: two folds of one history must give the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from kokuban.blackboard.core import Board

_APART = ("last_seq", "ignored")
"""Leases expire and fillers are taken away: a fold from zero meets fewer of them."""
_OF_OTHERS = ("children", "dependents", "tree_usage")
"""What an archived task knows of others depends on whether their records were read before they were archived, too."""


def board_text(board: Board) -> str:
    """All that the board holds, a line each part; dictionaries count by content, whatever their order."""
    parts = {f.name: getattr(board, f.name) for f in fields(board) if f.name not in _APART}
    return "\n".join(_lines("board", _plain(parts)))


def first_difference(one: str, other: str) -> str:
    """Where two texts differ, '' when they do not."""
    left, right = set(one.splitlines()), set(other.splitlines())
    return "; ".join([*(f"- {line[:300]}" for line in sorted(left - right)[:2]),
                      *(f"+ {line[:300]}" for line in sorted(right - left)[:2])])  # fmt: skip


def _lines(where: str, value: Any) -> list[str]:
    if isinstance(value, list) and len(repr(value)) > 200:
        found = []
        for n, one in enumerate(value):
            name = one[0] if isinstance(one, tuple) and len(one) == 2 else n
            found += _lines(f"{where}.{name}", one[1] if isinstance(one, tuple) and len(one) == 2 else one)
        return found
    return [f"{where}: {value!r}"]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(((repr(k), _plain(v)) for k, v in value.items() if v != 0), key=lambda pair: pair[0])
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, msgspec.Struct):
        return msgspec.json.encode(value).decode()
    slots = getattr(value, "__dataclass_fields__", None)
    if slots is not None:
        apart = _OF_OTHERS if getattr(value, "tombstone", None) is not None else ()
        return [(name, _plain(getattr(value, name))) for name in slots if name not in apart]
    return repr(value)
