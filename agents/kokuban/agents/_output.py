"""What a role hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kokuban.schemas import KINDS, Wire
from kokuban.schemas.subjects import token

_KIND_OF = {shape: kind for kind, shape in KINDS.items()}


def kind_of(shape: type[Wire]) -> str:
    """The kind's name on the wire. Raises `KeyError` for what is no artifact."""
    return _KIND_OF[shape]


@dataclass(frozen=True, slots=True)
class Output:
    """An artifact to commit, under a name that is unique among its kind in this step, and what it derives from.

    Of a built-in kind it is that kind's shape; of a registered one, named in `of`, what its JSON says. Raises
    `InvalidName` for a name that no record takes.
    """

    name: str
    artifact: Wire | Mapping[str, Any]
    derived_from: tuple[str, ...] = ()
    of: str = ""

    def __post_init__(self) -> None:
        token(self.name, "the name of an output")

    @property
    def kind(self) -> str:
        """The kind's name on the wire. Raises `TypeError` for JSON without the name of its kind."""
        if self.of:
            return self.of
        if not isinstance(self.artifact, Wire):
            raise TypeError(f"output {self.name!r}: say of which registered kind it is (of=...)")
        return kind_of(type(self.artifact))
