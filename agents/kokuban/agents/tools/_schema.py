"""Parameter schemas: refused when they could hang, fetch or surprise; compiled once; and errors worded for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kokuban.agents.tools._errors import ToolError

_MAX_BYTES = 64 * 2**10
_MAX_DEPTH = 32
_SHOWN_PROBLEMS = 5
_SHOWN_CHARACTERS = 300
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def compiled(name: str, schema: Mapping[str, Any]) -> Any:
    """A validator for the schema that never reads the network or a disk and whose patterns run in linear time. Raises
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
    if schema.get("type") != "object":
        raise ToolError(refused + 'must describe an object ("type": "object")')
    try:
        # The draft is the one `$schema` names, else 2020-12; the schema is checked against it here.
        return jsonschema_rs.validator_for(
            json.loads(text), offline=True, validate_formats=False, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(getattr(error, "message", error))[:_SHOWN_CHARACTERS]
        raise ToolError(refused + f"is not valid: {reason}") from error


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


def problems(validator: Any, values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values, one line each, at most six."""
    found: list[str] = []
    for error in validator.iter_errors(values):
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
