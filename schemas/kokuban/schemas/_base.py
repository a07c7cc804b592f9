"""What every wire shape shares: the constrained types and the one way to encode, decode and digest."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from kokuban.schemas.subjects import TOKEN_PYTHON

Token = Annotated[str, Meta(pattern=TOKEN_PYTHON, max_length=64, description="A name that may stand in a subject.")]
Digest = Annotated[
    str, Meta(pattern="^sha256:[0-9a-f]{64}$", max_length=71, description="'sha256:' and 64 hex digits, lower case.")
]
Text = Annotated[str, Meta(min_length=1, max_length=65_536)]
ShortText = Annotated[str, Meta(min_length=1, max_length=2_000)]
Path = Annotated[str, Meta(min_length=1, max_length=1_024, description="A POSIX path relative to the workspace.")]
MAX_COUNT = 2**53 - 1
"""The largest integer that every JSON reader takes exactly."""
Seq = Annotated[int, Meta(ge=0, le=MAX_COUNT, description="A sequence number of the board's stream.")]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]

MAX_DEPTH = 128
"""How deep JSON may nest. A limit of our own, because that of the parsers depends on the caller's stack."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")


class Wire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of every shape on the board: immutable, no unknown fields; defaults are left out."""


def encode(value: object) -> bytes:
    """Compact UTF-8 JSON. `msgspec.Raw` inside is kept byte for byte, which is what digests rely on."""
    return msgspec.json.encode(value)


def digest(data: bytes | msgspec.Raw) -> str:
    """`sha256:<hex>` of bytes exactly as they stand in the record."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def check_depth(data: bytes | msgspec.Raw) -> None:
    """Raise `ValueError` for JSON that nests deeper than `MAX_DEPTH`; other faults are the parser's to find."""
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    left = _STRING.sub(b"", text).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"")  # takes the innermost level away
        if not left:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels, or brackets that do not match")
