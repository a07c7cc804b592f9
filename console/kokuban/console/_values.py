"""Values on the command line that need reading: budgets and durations."""

from __future__ import annotations

import re

import click

_DIMENSIONS = {"tokens": "tokens", "usd": "micros", "steps": "steps", "tool-calls": "tool_calls", "seconds": "seconds"}
_AMOUNT = re.compile(r"[0-9]+(\.[0-9]{1,6})?")
_MOST_DIGITS = 20
_MOST = 2**53 - 1
_UNIT = {"usd": 1_000_000}
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def budget(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, int] | None:
    """An option's value as `read_budget` reads it; None without one."""
    if value is None:
        return None
    try:
        return read_budget(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def read_budget(text: str) -> dict[str, int]:
    """`tokens=100000,usd=2.50,steps=200,tool-calls=300,seconds=3600`, or some of them, as the fields of a `Budget`.
    Raises `ValueError` that says what is wrong."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, amount = (word.strip() for word in part.partition("="))
        if name not in _DIMENSIONS:
            raise ValueError(f"{part.strip()[:80]!r} is not NAME=NUMBER with NAME of {', '.join(_DIMENSIONS)}")
        if _DIMENSIONS[name] in found:
            raise ValueError(f"{name} is given twice")
        if amount.isascii() and amount.isdecimal() and int(amount[:_MOST_DIGITS]) * _UNIT.get(name, 1) > _MOST:
            raise ValueError(f"{name}={amount[:80]} is too large; at most {_MOST // _UNIT.get(name, 1)}")
        number = _micros(amount) if name == "usd" else _whole(amount)
        if number is None or number > _MOST:
            kind = "an amount such as 2.50, to the millionth" if name == "usd" else "a whole number"
            raise ValueError(f"{name}={amount[:80]!r} is not {kind}, 0 or more")
        found[_DIMENSIONS[name]] = number
    return found


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _micros(text: str) -> int | None:
    """Millionths, exactly: no float is in between."""
    if not _AMOUNT.fullmatch(text) or len(text) > _MOST_DIGITS:
        return None
    whole, _, part = text.partition(".")
    return int(whole) * 1_000_000 + int(part.ljust(6, "0") or 0)


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """`90`, `90s`, `30m`, `2h`, `7d`: 1 second to 365 days, as seconds."""
    if value is None:
        return None
    number, unit = (value[:-1], _UNITS[value[-1]]) if value[-1:] in _UNITS else (value, 1)
    if (whole := _whole(number)) is None or not 1 <= whole * unit <= 31_536_000:
        why = f"{value[:80]!r} is not a time such as 90s, 30m, 2h or 7d (1 second to 365 days)"
        raise click.BadParameter(why, context, parameter)
    return whole * unit
