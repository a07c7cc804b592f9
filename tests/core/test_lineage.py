"""Where an artifact comes from, and what came of it."""

from __future__ import annotations

from kokuban.blackboard.core import Artifact, ancestors, descendants
from kokuban.schemas import Ref, digest


def artifacts(**parents: str) -> dict[str, Artifact]:
    """Name to the names it derives from, each one letter."""
    return {name: Artifact(Ref("s", "patch", name, name, 1), "coder", "w", 1, 1, tuple(of), b"") for name, of in
            parents.items()}  # fmt: skip


def test_both_ways_nearest_first() -> None:
    found = artifacts(a="", b="a", c="ab", d="c", e="")
    assert ancestors("d", found) == ("c", "a", "b")
    assert descendants("a", found) == ("b", "c", "d")
    assert ancestors("a", found) == descendants("d", found) == descendants("e", found) == ()


def test_circles_and_strangers_are_harmless() -> None:
    found = artifacts(a="b", b="az", c="c")
    assert ancestors("a", found) == ("b", "z")
    assert descendants("z", found) == ("b", "a")
    assert ancestors("c", found) == descendants("c", found) == ()
    assert ancestors(digest(b"unknown"), found) == ()


def test_a_long_line_needs_no_recursion() -> None:
    found = {str(n): Artifact(Ref("s", "patch", "x", str(n), 1), "coder", "w", 1, 1, (str(n - 1),), b"") for n in
             range(5_000)}  # fmt: skip
    assert len(ancestors("4999", found)) == 5_000
    assert len(descendants("0", found)) == 4_999
