"""Parameter schemas: refused when they could hang, fetch or surprise; compiled once; and errors worded for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._expansion import Expansion, Refused

_MAX_BYTES = 64 * 2**10
_MAX_DEPTH = 32
_COUNTED_DEPTH = 4
_MAX_LOOKS = 10_000
_MAX_ALL_LOOKS = 10_000_000  # about a second
_EXPLAINED_LOOKS = 10_000  # each may become an error, which takes much longer to word
_SHOWN_PROBLEMS = 5
_SHOWN_CHARACTERS = 300
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Shape(NamedTuple):
    """A schema, ready to judge arguments."""

    validator: Any
    expansion: Expansion


def compiled(name: str, schema: Mapping[str, Any]) -> Shape:
    """The schema, judged by code that never reads the network or a disk and whose patterns run in linear time. Raises
    `ToolError` naming the tool and what is wrong with its schema."""
    import jsonschema_rs  # late: 10 ms that the command line's help does not need

    refused = f"the tool {name[:100]!r} cannot be used: its parameter schema "
    for depth, key, value in _walk(schema):
        if depth > _MAX_DEPTH:
            raise ToolError(refused + f"is nested deeper than {_MAX_DEPTH} levels")
        if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise ToolError(refused + f"refers outside itself, to {value[:100]!r}; move that under $defs")
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ToolError(refused + "is not JSON") from error
    if len(text) > _MAX_BYTES:
        raise ToolError(refused + f"is larger than {_MAX_BYTES:,} bytes")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ToolError(refused + 'must describe an object ("type": "object")')
    try:
        # The draft is the one `$schema` names, else 2020-12; the schema is checked against it here.
        plain = json.loads(text)
        expansion = Expansion(plain)
        if expansion.looks(_COUNTED_DEPTH) > _MAX_LOOKS:
            raise ToolError(refused + f"looks at one value more than {_MAX_LOOKS:,} times; use fewer references")
        validator = jsonschema_rs.validator_for(
            plain, offline=True, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions()
        )
        return Shape(validator, expansion)
    except Refused as error:
        raise ToolError(refused + str(error)) from error
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(getattr(error, "message", error))[:_SHOWN_CHARACTERS]
        raise ToolError(refused + f"is not valid: {reason}") from error


def _size(values: object) -> tuple[int, int]:
    """How many values there are in all, and how many levels of them."""
    places, depth, level = 0, -1, [values]
    while level:
        places, depth = places + len(level), depth + 1
        inner = [value for value in level if isinstance(value, (dict, list))]
        level = [item for value in inner for item in (value.values() if isinstance(value, dict) else value)]
    return places, depth


def _walk(schema: object) -> Iterator[tuple[int, str, object]]:
    """Every (depth, key, value) inside, without recursion."""
    waiting: list[tuple[int, str, object]] = [(0, "", schema)]
    while waiting:
        depth, key, value = waiting.pop()
        yield depth, key, value
        if depth > _MAX_DEPTH:
            continue
        if isinstance(value, Mapping):
            waiting += [(depth + 1, str(name), item) for name, item in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(depth + 1, "", item) for item in value]


def problems(shape: Shape, values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values, one line each, at most six."""
    places, depth = _size(values)
    looks = places * shape.expansion.looks(depth)
    if looks > _MAX_ALL_LOOKS:
        return ["- they are too many, or nested too deeply, to be compared with what is valid; give less at once"]
    if shape.validator.is_valid(values):
        return []
    if looks > _EXPLAINED_LOOKS:
        return ["- something in them is not valid; they are too many to say where: give less at once"]
    found: list[str] = []
    for error in shape.validator.iter_errors(values):
        if len(found) == _SHOWN_PROBLEMS:
            found.append("- and more")
            break
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        field = f"field `{where.lstrip('.')[:100]}`: " if where else ""
        message = error.message
        if len(message) > _SHOWN_CHARACTERS:  # the end says what was wanted; the start may be a long value
            message = message[: _SHOWN_CHARACTERS // 3] + " … " + message[-2 * _SHOWN_CHARACTERS // 3 :]
        found.append(f"- {field}{message}")
    return found


def describe(name: str, schema: Mapping[str, Any]) -> str:
    """One line that tells which fields a tool takes: `read_file takes path (string, required), …`."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return f"{name} takes {{}}."
    required = schema.get("required", ())
    fields = []
    for field, shape in properties.items():
        kind = shape.get("type", "any") if isinstance(shape, Mapping) else "any"
        allowed = shape.get("enum") if isinstance(shape, Mapping) else None
        shown = " or ".join(json.dumps(value) for value in allowed[:20]) if isinstance(allowed, list) else str(kind)
        fields.append(f"{field} ({shown}, {'required' if field in required else 'optional'})")
    return f"{name} takes {', '.join(fields)}."
