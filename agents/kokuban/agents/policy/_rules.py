"""The rules as they stand in a file, checked when they are read."""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from kokuban.schemas import Trust

Outcome = Literal["allow", "approve", "deny"]
Scalar = bool | int | float | str
Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True, allow_inf_nan=False)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Words = tuple[Word, ...]
_CHECKS = ("above", "at_least", "below", "at_most", "one_of", "none_of", "matches", "missing")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "above": operator.gt, "at_least": operator.ge, "below": operator.lt, "at_most": operator.le,
}  # fmt: skip
_UNKNOWN = object()


class InvalidPolicy(ValueError):
    """A policy that cannot be used; the message names the file, the field and what is expected."""


class Condition(BaseModel):
    """One check of one value of a call. `path` is a JSON Pointer into its arguments: `/amount`, `/lines/0/price`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^(/[^/]{1,200}){1,16}$")
    above: Number | None = None
    at_least: Number | None = None
    below: Number | None = None
    at_most: Number | None = None
    one_of: tuple[Scalar, ...] | None = Field(default=None, min_length=1)
    none_of: tuple[Scalar, ...] | None = Field(default=None, min_length=1)
    matches: str | None = Field(default=None, max_length=1_000, description="A pattern found anywhere in the text.")
    missing: bool | None = None

    @field_validator("matches")
    @classmethod
    def _bounded(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            _pattern(pattern)
        return pattern

    @model_validator(mode="after")
    def _one(self) -> Condition:
        given = [name for name in _CHECKS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_CHECKS)}; here are {', '.join(given) or 'none'}")
        return self

    def holds(self, values: Mapping[str, Any]) -> bool | None:
        """Whether it does; None when the value is not there, or of a kind that cannot be compared."""
        value = _at(values, self.path)
        if self.missing is not None:
            return (value is _UNKNOWN) == self.missing
        for name, compare in _COMPARISONS.items():
            limit = getattr(self, name)
            if limit is not None:
                numeric = isinstance(value, int | float) and not isinstance(value, bool)
                return compare(value, limit) if numeric else None
        if self.matches is not None:
            return bool(_pattern(self.matches).is_valid(value)) if isinstance(value, str) else None
        listed = self.one_of if self.one_of is not None else self.none_of or ()
        if not isinstance(value, bool | int | float | str):
            return None
        return _among(value, listed) == (self.one_of is not None)


class Rule(BaseModel):
    """Applies to a call when everything it names fits: an empty list fits all, `*` at the end of a name any rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Word
    outcome: Outcome
    tools: Words = ()
    tiers: tuple[Literal["read", "write", "consequential"], ...] = ()
    sources: Words = ()
    roles: Words = ()
    tenants: Words = ()
    principals: Words = ()
    other_tenants: Words = Field(default=(), description="Applies to every tenant but these.")
    trust: tuple[Trust, ...] = Field(default=(), description="Of the least trusted text that the step has seen.")
    when: tuple[Condition, ...] = ()

    @field_validator("trust", mode="before")
    @classmethod
    def _one_or_many(cls, said: Any) -> Any:
        return (said,) if isinstance(said, str) else said


class Defaults(BaseModel):
    """What holds for a call that no rule is about, by the tier of its tool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read: Outcome = "allow"
    write: Outcome = "allow"
    consequential: Outcome = "approve"


class Rules(BaseModel):
    """A policy file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
    defaults: Defaults = Defaults()
    rules: tuple[Rule, ...] = ()
    egress: Words = Field(default=(), description="Hosts that a fetch may reach; `*.example.org` any below it.")
    local: Words = Field(default=(), description="Addresses (IP:port) outside the internet that it may reach as well.")

    @field_validator("local")
    @classmethod
    def _places(cls, said: tuple[str, ...]) -> tuple[str, ...]:
        for one in said:
            address, _, port = one.rpartition(":")
            try:
                ip_address(address.strip("[]"))
                sound = 0 < int(port) < 65_536
            except ValueError:
                sound = False
            if not sound:
                raise ValueError(
                    f"{one[:80]!r} is no address and port; give one such as 10.1.2.3:8080 or [fd00::1]:8080"
                )
        return said

    @model_validator(mode="after")
    def _distinct(self) -> Rules:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rules: two are named {twice[0]!r}")
        return self


def parse_rules(text: str, origin: str) -> Rules:
    """Read a policy file. Raises `InvalidPolicy` naming `origin`, the field and what is expected."""
    try:
        return Rules.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidPolicy(f"{origin}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'policy'}: {e['msg']}" for e in error.errors()[:10]]
        raise InvalidPolicy(f"{origin}: " + "; ".join(lines)) from error


def _pattern(pattern: str) -> Any:
    """A matcher whose time grows with the text alone. Raises `ValueError` for what needs backtracking."""
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            {"type": "string", "pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise ValueError("no pattern, or one that looks around or refers back") from error


def _at(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for part in path[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return _UNKNOWN
    return found


def _among(value: Scalar, listed: tuple[Scalar, ...]) -> bool:
    """True is not 1 here."""
    return any(isinstance(one, bool) == isinstance(value, bool) and one == value for one in listed)
