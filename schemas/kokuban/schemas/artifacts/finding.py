"""`finding`: a fact with its evidence."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import Digest, Path, ShortText, Wire

Line = Annotated[int, Meta(ge=1, le=10_000_000)]


class Citation(Wire, frozen=True):
    """Where the evidence stands: `quote` is verbatim in lines `first` to `last` of `source`, whose bytes hash to
    `sha256`."""

    source: Path
    first: Line
    last: Line
    quote: ShortText
    sha256: Digest


class Finding(Wire, frozen=True):
    """A statement that its citations support."""

    statement: ShortText
    citations: Annotated[tuple[Citation, ...], Meta(min_length=1, max_length=20)]
