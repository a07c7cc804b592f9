"""Whether a JSON Schema that a user gives may judge artifacts: JSON Schema 2020-12, and nothing in it that could make
checking slow, endless, or dependent on anything outside of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec

from kokuban.schemas._base import check_depth

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 48
MAX_EXPANDED = 10_000
"""Subschemas once every `$ref` is written out: a schema of 64 KiB could stand for 2^1000 of them."""
MAX_PATTERN = 512

ONE = frozenset({
    "additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else", "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
ANNOTATIONS = frozenset({
    "$schema", "$id", "$comment", "$defs", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "format", "contentEncoding", "contentMediaType", "contentSchema",
})  # fmt: skip
_ASSERTIONS = frozenset({
    "$ref", "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired",
})  # fmt: skip
KNOWN = ONE | MANY | NAMED | ANNOTATIONS | _ASSERTIONS
_REF = "#/$defs/"
_LINEAR = jsonschema_rs.RegexOptions(size_limit=1_000_000, dfa_size_limit=2_000_000)


def problems_of_schema(data: bytes | msgspec.Raw) -> tuple[str, ...]:
    """Why this JSON Schema cannot be registered: empty when it can. Each reason names the place. Never raises."""
    text = bytes(data)
    if len(text) > MAX_SCHEMA_BYTES:
        return (f"schema: {len(text)} bytes; at most {MAX_SCHEMA_BYTES}",)
    try:
        check_depth(text)
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return (f"schema: not JSON: {error}",)
    if not isinstance(schema, dict):
        return ("schema: it is no JSON object",)
    found = _of_root(schema) or _of_places(schema) or _of_references(schema)
    return found or _of_validator(schema)


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside one, each with its place in it; those under `$defs` are not among them."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in ONE:
            yield keyword, value
        elif keyword in MANY and isinstance(value, list):
            yield from ((f"{keyword}.{number}", one) for number, one in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from ((f"{keyword}.{name}", one) for name, one in value.items())


def _of_root(schema: dict[str, Any]) -> tuple[str, ...]:
    dialect = schema.get("$schema", DIALECT)
    if dialect not in (DIALECT, DIALECT + "#"):
        return (f"$schema: {str(dialect)[:100]!r} is another dialect; write {DIALECT!r}",)
    if not isinstance(schema.get("$defs", {}), dict):
        return ("$defs: it is no JSON object",)
    return ()


def _of_places(root: dict[str, Any]) -> tuple[str, ...]:
    """Keywords that are unknown or out of place, patterns that are too long, and how deep it goes."""
    found: list[str] = []
    todo = [("", 0, root), *((f"$defs.{name}", 1, one) for name, one in root.get("$defs", {}).items())]
    while todo and len(found) < 20:
        place, depth, schema = todo.pop()
        label = place or "schema"
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            found.append(f"{label}: it is no schema (a JSON object, true or false)")
            continue
        if depth > MAX_SCHEMA_DEPTH:
            return (f"{label[:200]}: schemas nest deeper than {MAX_SCHEMA_DEPTH} levels",)
        found += [f"{label}: {reason}" for reason in _of_keywords(schema, root=schema is root)]
        dot = f"{place}." if place else ""
        todo += [(f"{dot}{name}", depth + 1, one) for name, one in subschemas(schema)]
    return tuple(found)


def _of_keywords(schema: dict[str, Any], *, root: bool) -> Iterator[str]:
    for keyword in schema:
        if keyword not in KNOWN and not keyword.startswith("x-"):
            yield f"{keyword[:80]!r} is no keyword that a kind may use (a note of your own starts with 'x-')"
        elif keyword in ("$id", "$defs", "$schema") and not root:
            yield f"{keyword!r} may stand at the top only"
    reference = schema.get("$ref", _REF)
    if not isinstance(reference, str) or not reference.startswith(_REF):
        yield f"$ref: {str(reference)[:200]!r} points elsewhere; only '{_REF}NAME' is followed, nothing is fetched"
    patterns = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    named = schema.get("patternProperties")
    for pattern in (*patterns, *(named if isinstance(named, dict) else ())):
        if len(pattern) > MAX_PATTERN:
            yield f"pattern: {len(pattern)} characters; at most {MAX_PATTERN}"


def _of_references(root: dict[str, Any]) -> tuple[str, ...]:
    """References that lead nowhere or in a circle, and what the schema amounts to when each is written out."""
    definitions = root.get("$defs", {})
    known: dict[str, tuple[int, int]] = {}
    open_now: list[str] = []

    def measure(schema: Any, above: int) -> tuple[int, int]:
        """How many subschemas it stands for, and how deep they nest below the `above` levels over it."""
        if above > MAX_SCHEMA_DEPTH:
            raise _Unfit(f"schema: it nests deeper than {MAX_SCHEMA_DEPTH} levels once every $ref is written out")
        parts = [measure(one, above + 1) for _, one in subschemas(schema)]
        if isinstance(schema, dict) and "$ref" in schema:
            parts.append(named(schema["$ref"].removeprefix(_REF), above + 1))
        count = 1 + sum(part[0] for part in parts)
        if count > MAX_EXPANDED:
            raise _Unfit(f"schema: more than {MAX_EXPANDED} subschemas once every $ref is written out")
        return count, 1 + max((part[1] for part in parts), default=0)

    def named(name: str, above: int) -> tuple[int, int]:
        if name not in definitions:
            raise _Unfit(f"$ref: there is no $defs.{name[:200]}")
        if name in open_now:
            circle = " -> ".join([*open_now[open_now.index(name) :], name])
            raise _Unfit(f"$defs.{name[:200]}: it refers to itself ({circle[:500]}); a kind may not be recursive")
        if name not in known or above + known[name][1] > MAX_SCHEMA_DEPTH:
            open_now.append(name)
            known[name] = measure(definitions[name], above)
            open_now.pop()
        return known[name]

    try:
        for name in definitions:
            named(name, 0)
        measure(root, 0)
    except _Unfit as error:
        return (str(error),)
    return ()


class _Unfit(Exception):
    """The reason that a schema is refused for."""


def _of_validator(schema: dict[str, Any]) -> tuple[str, ...]:
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
    except jsonschema_rs.ValidationError as error:
        return (f"{'.'.join(map(str, error.instance_path)) or 'schema'}: {error.message[:300]}",)
    except (ValueError, OverflowError) as error:
        return (f"schema: {str(error)[:300]}",)
    try:
        compiled(schema)
    except (ValueError, OverflowError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        why = str(getattr(error, "message", error))[:500]
        return (f"schema: {why} (a pattern may not look around or refer back)",)
    return ()


def compiled(schema: dict[str, Any]) -> Any:
    """A validator whose patterns take time in proportion to the text, and that fetches nothing. Raises `ValueError` or
    an error of jsonschema-rs for a schema that it cannot use."""
    plain = {keyword: value for keyword, value in schema.items() if keyword not in ("$id", "$schema")}
    return jsonschema_rs.Draft202012Validator(
        plain, retriever=_nothing, pattern_options=_LINEAR, validate_formats=False
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def validator_of(data: bytes) -> Any:
    """The validator of a schema that `problems_of_schema` passed, by the schema's bytes."""
    return compiled(msgspec.json.decode(data))


def _nothing(uri: str) -> Any:
    raise ValueError(f"schemas are never fetched: {uri}")
