"""JSON with the exact text of its parts: a digest is of bytes as they stand, so what is parsed must be found again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_SPACE = " \t\r\n"


class BadJson(ValueError):
    """Text that is not the JSON that was expected."""


def _refuse(name: str) -> Any:
    raise BadJson(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse, strict=True)


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, each with the exact text of its value. Raises `BadJson`, also for a name that comes
    twice."""
    found: dict[str, str] = {}
    at = _expect(text, 0, "{")
    closed = text[at : at + 1] == "}"
    while not closed:
        name, at = _value(text, at)
        if not isinstance(name, str):
            raise BadJson("a member's name is no string")
        if name in found:
            raise BadJson(f"the member {name[:40]!r} comes twice")
        at = _expect(text, at, ":")
        _, end = _value(text, at)
        found[name] = text[at:end]
        at = _skip(text, end)
        closed = text[at : at + 1] == "}"
        if not closed:
            at = _expect(text, at, ",")
    _check_end(text, at + 1)
    return found


def elements(text: str) -> list[str]:
    """The elements of a JSON array, each as its exact text. Raises `BadJson`."""
    found: list[str] = []
    at = _expect(text, 0, "[")
    closed = text[at : at + 1] == "]"
    while not closed:
        _, end = _value(text, at)
        found.append(text[at:end])
        at = _skip(text, end)
        closed = text[at : at + 1] == "]"
        if not closed:
            at = _expect(text, at, ",")
    _check_end(text, at + 1)
    return found


def parse(text: str) -> Any:
    """The value of a whole text. Raises `BadJson`."""
    value, end = _value(text, _skip(text, 0))
    _check_end(text, end)
    return value


def digest(text: str | bytes) -> str:
    """`sha256:<hex>` of the bytes of a text."""
    return "sha256:" + hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise BadJson(str(error)[:200]) from error


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise BadJson(f"expected {sign!r} at {at}, found {text[at : at + 1]!r}")
    return _skip(text, at + 1)


def _check_end(text: str, at: int) -> None:
    at = _skip(text, at)
    if at != len(text):
        raise BadJson(f"something follows at {at}")
