"""Checking content against its kind. The exported JSON Schema is the authority; the decoder only reads what passed.

A kind is built in (`KINDS`), or registered by a user: then its schema, as it stands on the board, is handed in.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any

import jsonschema_rs
import msgspec

from kokuban.schemas._base import Wire, check_depth
from kokuban.schemas._compat import incompatible
from kokuban.schemas._user_schema import DIALECT, MAX_SCHEMA_BYTES, problems_of_schema, validator_of
from kokuban.schemas.artifacts import KINDS

__all__ = [
    "DIALECT", "MAX_ARTIFACT_BYTES", "MAX_SCHEMA_BYTES", "UnknownKind", "decode_artifact", "incompatible", "problems",
    "problems_of_schema", "schema_of",
]  # fmt: skip
MAX_ARTIFACT_BYTES = 8 * 1024 * 1024


class UnknownKind(KeyError):
    """No such artifact kind in this release. Nothing was read or written."""


@functools.cache
def schema_of(kind: str) -> dict[str, Any]:
    """The exported JSON Schema (2020-12) of a kind. Raises `UnknownKind`."""
    if kind not in KINDS:
        raise UnknownKind(kind)
    text = importlib.resources.files("kokuban.schemas").joinpath(f"json/{kind}.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@functools.cache
def _validator(kind: str) -> Any:
    return jsonschema_rs.Draft202012Validator(schema_of(kind), retriever=_nothing)


def _nothing(uri: str) -> Any:
    raise ValueError(f"schemas are never fetched: {uri}")


@functools.cache
def _decoder(kind: str) -> msgspec.json.Decoder[Wire]:
    return msgspec.json.Decoder(KINDS[kind])


def problems(kind: str, data: bytes | msgspec.Raw, *, most: int = 5, schema: bytes | None = None) -> tuple[str, ...]:
    """Why `data` is no valid artifact of `kind`: empty when it is one. Each reason names the field. Never raises.

    `schema` is a registered kind's JSON Schema, one that `problems_of_schema` passed; a built-in kind has its own.
    """
    if schema is None and kind not in KINDS:
        return (f"kind: {kind!r} is unknown; this release knows {', '.join(KINDS)}",)
    if len(bytes(data)) > MAX_ARTIFACT_BYTES:
        return (f"{kind}: {len(bytes(data))} bytes is above the limit of {MAX_ARTIFACT_BYTES}",)
    try:
        check_depth(data)
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return (f"{kind}: not JSON: {error}",)
    validator = _validator(kind) if schema is None else validator_of(schema)
    if not validator.is_valid(value):
        return _explain(kind, validator, value, most)
    if schema is not None:
        return ()
    try:
        decode_artifact(kind, data)
    except msgspec.ValidationError as error:  # the one thing the schema allows and we do not: 1.0 for 1
        return (f"{kind}: {error}",)
    return ()


def _explain(kind: str, validator: Any, value: Any, most: int) -> tuple[str, ...]:
    found: list[str] = []
    for error in validator.iter_errors(value):
        where = ".".join(str(part) for part in error.instance_path)
        found.append(f"{kind}.{where}: {error.message[:300]}" if where else f"{kind}: {error.message[:300]}")
        if len(found) == most:
            break
    return tuple(found)


def decode_artifact(kind: str, data: bytes | msgspec.Raw) -> Wire:
    """Read what `problems` passed. Raises `msgspec.ValidationError` otherwise, `UnknownKind` for no such kind."""
    if kind not in KINDS:
        raise UnknownKind(kind)
    return _decoder(kind).decode(data)
