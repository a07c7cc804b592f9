"""Recorded sessions of real models: one file a call, found by what was asked and never by order."""

import hashlib
import json
import os
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from ._canonical import canonical_json, canonical_request
from ._curtain import without_secrets
from ._errors import ModelConfigError, ModelError, RecordingMiss
from ._model import Around, Model, Progress
from ._surrogates import joined
from ._types import CallContext, Reply, Request

_VERSION = 1
_MASK = "<masked>"


class _Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. `asked` is what its name is the sha256 of."""

    recorder: int
    model: str
    asked: dict[str, Any]
    occurrence: int
    reply: Reply


class Recorder(Around):
    """Passes calls on to a real model and keeps each complete reply in a folder, made when first needed.

    Asked the same again (same step, same occurrence), the newer reply replaces the older: it is the one that the rest
    of the session builds on.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__(model)
        self._folder = folder

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """The real model's reply, which is on disk when this returns.

        Raises what the model raises, and `ModelError` when the reply was bought but could not be stored.
        """
        reply = without_secrets(await self._model.call(request, context, progress))
        asked = _asked(request, context)
        recorded = _Recorded(_VERSION, self._model.name, asked, context.occurrence, reply)
        try:
            _write(self._folder / _file_name(asked, context.occurrence), recorded)
        except OSError as error:
            raise ModelError(
                f"the reply could not be recorded in {self._folder}: {error.strerror}", code="not_recorded", spent=True
            ) from error
        return reply


class RecordedModel:
    """Answers from a folder that a `Recorder` filled. Needs no network and no key."""

    context_tokens: int | None = None

    def __init__(self, folder: Path) -> None:
        """Raises `ModelConfigError` when the folder holds no recording."""
        self.name = f"recorded:{folder}"
        self._folder = folder
        if not folder.is_dir() or next(folder.glob("*.json"), None) is None:
            raise ModelConfigError(f"{folder} holds no recorded session; make one with --record {folder}")

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """The reply recorded for exactly this request, scope, step and occurrence. Raises `RecordingMiss`."""
        asked = _asked(request, context)
        path = self._folder / _file_name(asked, context.occurrence)
        if not path.is_file():
            raise RecordingMiss(self._miss(asked, context), code="recording_miss")
        stored = _read(path)
        if _file_name(stored.asked, stored.occurrence) != path.name:
            raise RecordingMiss(
                f"the recording {path} was changed by hand: its request is not the one it is named after; "
                "record anew with `make record`",
                code="recording_damaged",
            )
        progress.text(stored.reply.content)
        for call in stored.reply.calls:
            progress.count(call.name + call.arguments)
        return stored.reply

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def _miss(self, asked: dict[str, Any], context: CallContext) -> str:
        where = f"role {context.role}, step {context.step}, turn {context.turn}"
        return (
            f"the recording in {self._folder} has no reply for this call ({where}): the goal, the workspace, a prompt "
            f"or the request changed since it was made. {self._difference(asked, context.occurrence)} "
            "Record anew with `make record`, or name a model with --model."
        )

    def _difference(self, asked: dict[str, Any], occurrence: int) -> str:
        stored = [_read(path) for path in sorted(self._folder.glob("*.json"))]
        if any(entry.asked == asked for entry in stored):
            return f"The same request is recorded, but not for occurrence {occurrence}."
        flat = _flat(asked)
        differences = [_differing(flat, _flat(entry.asked)) for entry in stored]
        # A call of the same role and step is nearer than any other, however much of it changed.
        nearest = min(differences, key=lambda keys: ("role" in keys, "step" in keys, len(keys)))
        shown = ", ".join(nearest[:6]) + (f" and {len(nearest) - 6} more" if len(nearest) > 6 else "")
        return f"Compared with the nearest recorded call, these differ: {shown}."


def _asked(request: Request, context: CallContext) -> dict[str, Any]:
    asked = {
        "request": canonical_request(request),
        "scope": context.scope,
        "role": context.role,
        "step": context.step,
    }
    # Through JSON, so that what is compared and stored is what is hashed.
    plain: dict[str, Any] = json.loads(canonical_json(asked))
    for path in _masks():
        _mask(plain, path.split("."))
    return plain


def _file_name(asked: dict[str, Any], occurrence: int) -> str:
    return f"{hashlib.sha256(canonical_json(asked)).hexdigest()}-{occurrence}.json"


@cache
def _masks() -> tuple[str, ...]:
    text = resources.files(__package__).joinpath("masks.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["masked"])


def _mask(value: Any, path: list[str]) -> None:
    head, *rest = path
    if head == "*" and isinstance(value, list):
        keys: list[Any] = list(range(len(value)))
    else:
        keys = [head] if isinstance(value, dict) and head in value else []
    for key in keys:
        if rest:
            _mask(value[key], rest)
        else:
            value[key] = _MASK


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf by its path, such as `request.messages[1].content`; a schema counts as one leaf."""
    if path not in ("request.schema", "request.tools"):
        if isinstance(value, dict) and value:
            pairs = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
            return {leaf: item for inner, child in pairs for leaf, item in _flat(child, inner).items()}
        if isinstance(value, list) and value:
            return {
                leaf: item
                for number, child in enumerate(value)
                for leaf, item in _flat(child, f"{path}[{number}]").items()
            }
    return {path: value}


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    only_one_has = one.keys() ^ other.keys()
    return sorted(only_one_has | {key for key in one.keys() & other.keys() if one[key] != other[key]})


def _read(path: Path) -> _Recorded:
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Recorded)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordingMiss(
            f"the recording {path} cannot be read ({error}); record anew with `make record`", code="recording_damaged"
        ) from error
    if stored.recorder != _VERSION:
        raise RecordingMiss(
            f"the recording {path} is of version {stored.recorder}, this Kokuban reads {_VERSION}; "
            "record anew with `make record`",
            code="recording_version",
        )
    return stored


def _write(path: Path, recorded: _Recorded) -> None:
    text = json.dumps(msgspec.to_builtins(recorded), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(joined(text).encode() + b"\n")
    os.replace(unfinished, path)
