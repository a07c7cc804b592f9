"""`patch`: a change to a workspace, made by the runtime from a checkout. No model types one."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from kokuban.schemas._base import Digest, Path, Wire


class FileChange(Wire, frozen=True):
    """One file: `text` for UTF-8 content, `base64` for any other, neither for a deletion. `before` and `after` are
    digests of the file's bytes."""

    path: Path
    op: Literal["add", "modify", "delete"]
    before: Digest | None = None
    after: Digest | None = None
    executable: bool = False
    text: str | None = None
    base64: str | None = None


class Patch(Wire, frozen=True):
    """The changes that turn tree `base` into tree `result`. `base` is the task's workspace with the patches `onto`
    merged in. `diff` shows the changes to people; `changes` are what counts."""

    base: Digest
    result: Digest
    changes: Annotated[tuple[FileChange, ...], Meta(min_length=1, max_length=5_000)]
    diff: str
    onto: tuple[Digest, ...] = ()
    summary: Annotated[str, Meta(max_length=4_000)] = ""
