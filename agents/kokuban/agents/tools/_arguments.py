"""Arguments as plain, bounded JSON with one meaning, and their canonical text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from kokuban.agents.tools._errors import BadArguments

_MAX_DEPTH = 32
_MAX_VALUES = 50_000
_MAX_BYTES = 2 * 2**20
_EXACT = 2**53  # from here on a float no longer names one whole number


def normalised(arguments: object) -> dict[str, Any]:
    """A copy in which every whole float is an integer. Raises `BadArguments` for what is not an object of plain JSON,
    or larger than 2 MiB, 50,000 values or 32 levels."""
    if not isinstance(arguments, Mapping):
        raise BadArguments("the arguments must be one JSON object")
    budget = _Budget()
    return {_text(key, budget): _value(value, f"`{key}`", 1, budget) for key, value in arguments.items()}


def canonical(arguments: Mapping[str, Any]) -> str:
    """The one text of these arguments: sorted keys, no spaces, UTF-8 characters as they are. Equal arguments have equal
    text whatever the order of their keys. Raises `ValueError` for NaN and infinities."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class _Budget:
    def __init__(self) -> None:
        self.values = _MAX_VALUES
        self.bytes = _MAX_BYTES

    def spend(self, size: int) -> None:
        self.values -= 1
        self.bytes -= size
        if self.values < 0 or self.bytes < 0:
            raise BadArguments(f"the arguments are too large (at most {_MAX_BYTES:,} bytes and {_MAX_VALUES:,} values)")


def _value(value: object, field: str, depth: int, budget: _Budget) -> Any:
    if depth > _MAX_DEPTH:
        raise BadArguments(f"field {field[:60]}… is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        return _text(value, budget)
    if isinstance(value, float):
        return _number(value, field, budget)
    if isinstance(value, Mapping):
        budget.spend(2)
        return {_text(key, budget): _value(item, f"{field}.{key}", depth + 1, budget) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        budget.spend(2)
        return [_value(item, f"{field}[{at}]", depth + 1, budget) for at, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int)):
        budget.spend(8 if value is None or isinstance(value, bool) else value.bit_length() // 3 + 1)
        return value
    raise BadArguments(f"field {field[:100]} is not JSON")


def _number(value: float, field: str, budget: _Budget) -> int | float:
    budget.spend(8)
    if not math.isfinite(value):
        raise BadArguments(f"field {field[:100]} must be a finite number")
    if not value.is_integer():
        return value
    if abs(value) >= _EXACT:
        raise BadArguments(
            f"field {field[:100]} is a whole number too large to be exact as a float; write its digits without "
            "'.' or exponent, or as a string"
        )
    return int(value)


def _text(value: object, budget: _Budget) -> str:
    if not isinstance(value, str):
        raise BadArguments("the keys of an object must be strings")
    try:
        budget.spend(len(value.encode()))
    except UnicodeEncodeError as error:
        raise BadArguments("a string holds half of a surrogate pair, which is not Unicode text") from error
    return value
