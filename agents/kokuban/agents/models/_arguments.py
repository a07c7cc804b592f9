"""Tool call arguments: raw text in, an object or the reason why not out."""

import json
import math
import re
from typing import Any, NoReturn

import msgspec

MAX_ARGUMENTS_CHARS = 1 << 20
MAX_DEPTH = 64

# A whole string (closed or not, so that no quote is scanned twice), or one bracket.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class Problem(msgspec.Struct, frozen=True):
    """Why a call's arguments cannot be used: one short sentence that can be shown to the model."""

    reason: str


def parse_arguments(raw: object) -> dict[str, Any] | Problem:
    """Parse a call's arguments once, before anything else looks at them. Never raises.

    Nothing (None, blank text, JSON null) is an empty object. An object that was JSON-encoded twice is unwrapped once.
    Refused: anything else that is not an object, more than 1 MiB characters, nesting deeper than 64, NaN, infinities,
    duplicate keys, numbers too long to read, half a surrogate pair. Nothing is repaired.
    """
    try:
        value = _parse(_text(raw))
        if isinstance(value, str) and value.strip():
            value = _parse(value)
            if not isinstance(value, dict):
                return Problem("the arguments must be a JSON object, not a string")
    except json.JSONDecodeError as error:
        return Problem(f"the arguments are not valid JSON: {error.msg} at line {error.lineno} column {error.colno}")
    except (ValueError, TypeError) as error:
        return Problem(f"the arguments are not valid: {str(error)[:200]}")
    except RecursionError:
        return Problem("the arguments are nested too deeply")
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return Problem(f"the arguments must be a JSON object, not {_KINDS.get(type(value), 'a number')}")


_KINDS = {list: "an array", str: "a string", bool: "a boolean"}


def _text(raw: object) -> str:
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    # Some servers send the object itself; as text it meets the same checks as any other.
    return json.dumps(raw, allow_nan=False)


def _parse(text: str) -> Any:
    if len(text) > MAX_ARGUMENTS_CHARS:
        raise ValueError(f"longer than {MAX_ARGUMENTS_CHARS} characters")
    if not text.strip():
        return None
    depth = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        depth += (first in "[{") - (first in "]}")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    value = json.loads(text, object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
    try:
        if "\\u" in text or not text.isascii():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair, which is not text") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key[:80]!r} is given twice")
        value[key] = item
    return value


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
