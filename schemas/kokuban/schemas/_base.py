"""What every wire shape shares: the constrained types and the one way to encode, decode and digest."""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from kokuban.schemas.subjects import TOKEN

Token = Annotated[str, Meta(pattern=TOKEN, max_length=64, description="A name that may stand in a subject.")]
Digest = Annotated[
    str, Meta(pattern="^sha256:[0-9a-f]{64}$", max_length=71, description="'sha256:' and 64 hex digits, lower case.")
]
Text = Annotated[str, Meta(min_length=1, max_length=65_536)]
ShortText = Annotated[str, Meta(min_length=1, max_length=2_000)]
Path = Annotated[str, Meta(min_length=1, max_length=1_024, description="A POSIX path relative to the workspace.")]
Seq = Annotated[int, Meta(ge=0, le=2**53 - 1, description="A sequence number of the board's stream.")]
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]

T = TypeVar("T")


class Wire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of every shape on the board: immutable, no unknown fields; defaults are left out."""


def encode(value: object) -> bytes:
    """Compact UTF-8 JSON. `msgspec.Raw` inside is kept byte for byte, which is what digests rely on."""
    return msgspec.json.encode(value)


def digest(data: bytes | msgspec.Raw) -> str:
    """`sha256:<hex>` of bytes exactly as they stand in the record."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
