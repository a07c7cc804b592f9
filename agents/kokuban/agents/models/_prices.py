"""What a model call costs: a versioned table, and what people declare over it. An unknown price is not zero."""

import functools
import hashlib
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from ._errors import ModelConfigError
from ._types import Usage

_FREE = ("scripted:", "recorded:")
_DATED = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})\Z")
_MOST = Decimal(1_000_000)
_FIELDS = {"input", "output", "cached", "written"}


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, which is also millionths of a dollar per token. `cached` is for input that the
    provider had kept."""

    input: Decimal
    output: Decimal
    cached: Decimal
    written: Decimal | None = None
    """For input that the provider keeps; None: as other input."""


@dataclass(frozen=True)
class Prices:
    """Prices by model, as `--model` names it (`openai:gpt-4.1-mini`); a name that ends in `*` stands for all that begin
    so. A dated name (`…-2025-04-14`) has the price of the plain one. Scripted and recorded models buy nothing: they
    cost 0 unless declared. `version` names the table, and changes with what was declared."""

    version: str
    table: Mapping[str, Price] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None = None) -> "Prices":
        """The built-in table, with the prices of a file of the same form over it (its own `version` is added). Raises
        `ModelConfigError` naming the file and the field."""
        prices = _builtin()
        if path is None:
            return prices
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ModelConfigError(f"prices: {path} cannot be read: {error}") from error
        other = _parsed(text, str(path))
        return cls(f"{prices.version}+{other.version}"[:96], {**prices.table, **other.table})

    def declare(self, text: str) -> "Prices":
        """These prices with one more, written `MODEL=IN,OUT` in dollars per million tokens; cached input costs as much
        as other input. Raises `ModelConfigError`."""
        model, _, numbers = text.rpartition("=")
        parts = numbers.split(",")
        if not model.strip() or len(parts) != 2:
            raise ModelConfigError(
                f"price: {text!r} is not MODEL=IN,OUT in dollars per million tokens, such as "
                "openai-compatible:qwen2.5-coder=0.10,0.40"
            )
        numbers_read = [_number(part.strip(), f"price: {text!r}") for part in parts]
        table = {**self.table, model.strip(): Price(numbers_read[0], numbers_read[1], numbers_read[0])}
        return Prices(_marked(self.version, text), table)

    def of(self, model: str) -> Price | None:
        """The model's price, None when nobody knows it."""
        for name in (model, _DATED.sub("", model)):
            if name in self.table:
                return self.table[name]
        stars = [name for name in self.table if name.endswith("*") and model.startswith(name[:-1])]
        if stars:
            return self.table[max(stars, key=len)]
        return Price(Decimal(0), Decimal(0), Decimal(0)) if model.startswith(_FREE) else None

    def cost(self, model: str, usage: Usage) -> int | None:
        """What this usage costs, in millionths of a US dollar, rounded up; None when the price is not known."""
        price = self.of(model)
        if price is None:
            return None
        cached = min(usage.cached_tokens or 0, usage.input_tokens)
        written = min(usage.written_tokens, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        kept = price.written if price.written is not None else price.input
        return _up(price.input * fresh + price.cached * cached + kept * written + price.output * usage.output_tokens)

    def worst(self, model: str, input_tokens: int, output_tokens: int) -> int | None:
        """The most that a call of at most so many tokens can cost, in millionths of a US dollar; None when the price is
        not known."""
        price = self.of(model)
        if price is None:
            return None
        return _up(
            max(price.input, price.cached, price.written or price.input) * input_tokens + price.output * output_tokens
        )


def _up(micros: Decimal) -> int:
    return int(micros.to_integral_value(ROUND_CEILING))


@functools.cache
def _builtin() -> Prices:
    return _parsed(importlib.resources.files(__package__).joinpath("prices.toml").read_text("utf-8"), "prices.toml")


def _parsed(text: str, origin: str) -> Prices:
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError, InvalidOperation) as error:
        raise ModelConfigError(f"prices: {origin} is not TOML: {error}") from error
    version = data.pop("version", None)
    if version is not None and not (isinstance(version, str) and 1 <= len(version) <= 64 and version.isprintable()):
        raise ModelConfigError(f"prices: {origin}: version: expected a short text")
    table = {model: _price(entry, f"prices: {origin}: {model!r}") for model, entry in data.items()}
    return Prices(version or _marked("file", text), table)


def _price(entry: Any, where: str) -> Price:
    if not isinstance(entry, dict) or not {"input", "output"} <= entry.keys() <= _FIELDS:
        raise ModelConfigError(f"{where}: expected the fields input, output and perhaps cached and written")
    numbers = {name: _number(value, f"{where}.{name}") for name, value in entry.items()}
    return Price(numbers["input"], numbers["output"], numbers.get("cached", numbers["input"]), numbers.get("written"))


def _number(value: Any, where: str) -> Decimal:
    try:
        number = Decimal(value) if isinstance(value, str | int | Decimal) and not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or not 0 <= number <= _MOST:
        raise ModelConfigError(f"{where}: expected dollars per million tokens, from 0 to {_MOST}")
    return number


def _marked(version: str, what: str) -> str:
    """A version that changes with what was added to it."""
    return f"{version[:80]}+{hashlib.sha256(what.encode()).hexdigest()[:8]}"
