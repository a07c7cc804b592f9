"""`deliverable`: what the task's owner gets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from kokuban.schemas._base import Digest, Path, Text, Wire
from kokuban.schemas.artifacts.patch import FileChange
from kokuban.schemas.records import Ref


class Part(Wire, frozen=True):
    """One line of the manifest: this changed file comes from these artifacts."""

    path: Path
    sources: tuple[Ref, ...]


class Deliverable(Wire, frozen=True):
    """The merged result: `changes` turn the task's workspace `base` into `tree`. `cites` names every artifact used,
    `manifest` says which one each file came from."""

    base: Digest
    tree: Digest
    changes: Annotated[tuple[FileChange, ...], Meta(max_length=5_000)]
    diff: str
    report: Text
    manifest: tuple[Part, ...]
    cites: tuple[Ref, ...]
    checked: bool
