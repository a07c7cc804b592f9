"""Values on the command line that need reading: budgets and durations."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import click

_DIMENSIONS = {"tokens": "tokens", "usd": "micros", "steps": "steps", "tool-calls": "tool_calls", "seconds": "seconds"}
_MICROS = 1_000_000
_MOST = 2**53 - 1
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class BudgetValue(click.ParamType):
    """`tokens=100000,usd=2.50,steps=200,tool-calls=300,seconds=3600`, or some of them. Gives a `Budget`'s fields."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The fields; a usage error that names what is wrong."""
        if isinstance(value, dict):
            return value
        found: dict[str, int] = {}
        for part in value.split(","):
            name, _, text = (word.strip() for word in part.partition("="))
            if name not in _DIMENSIONS:
                self.fail(f"{part.strip()!r} is not NAME=NUMBER with NAME of {', '.join(_DIMENSIONS)}", param, ctx)
            if _DIMENSIONS[name] in found:
                self.fail(f"{name} is given twice", param, ctx)
            number = _micros(text) if name == "usd" else int(text) if text.isascii() and text.isdecimal() else None
            if number is None or number > _MOST:
                kind = "an amount such as 2.50, to the millionth" if name == "usd" else "a whole number"
                self.fail(f"{name}={text!r} is not {kind}, 0 or more", param, ctx)
            found[_DIMENSIONS[name]] = number
        return found


def _micros(text: str) -> int | None:
    try:
        amount = Decimal(text) * _MICROS
    except InvalidOperation:
        return None
    return int(amount) if amount.is_finite() and amount >= 0 and amount == amount.to_integral_value() else None


class DurationValue(click.ParamType):
    """`90`, `90s`, `30m`, `2h`, `7d`: 1 second to 365 days. Gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The seconds; a usage error for anything else."""
        if isinstance(value, int):
            return value
        number, unit = (value[:-1], _UNITS[value[-1]]) if value[-1:] in _UNITS else (value, 1)
        if not (number.isascii() and number.isdecimal()) or not 1 <= int(number) * unit <= 31_536_000:
            self.fail(f"{value!r} is not a time such as 90s, 30m, 2h or 7d (1 second to 365 days)", param, ctx)
        return int(number) * unit
