"""What a role hands back."""

from __future__ import annotations

from dataclasses import dataclass

from kokuban.schemas import KINDS, Wire

_KIND_OF = {shape: kind for kind, shape in KINDS.items()}


def kind_of(shape: type[Wire]) -> str:
    """The kind's name on the wire. Raises `KeyError` for what is no artifact."""
    return _KIND_OF[shape]


@dataclass(frozen=True, slots=True)
class Output:
    """An artifact to commit, under a name that is unique among its kind in this step, and what it derives from."""

    name: str
    artifact: Wire
    derived_from: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return kind_of(type(self.artifact))
