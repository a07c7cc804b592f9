"""Which artifact came from which: `derived_from` followed both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kokuban.blackboard.core.state import Artifact


def ancestors(digest: str, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Digests that this one derives from, directly or not, nearest first. Cycles and unknown digests are harmless."""
    return _walk(digest, lambda d: artifacts[d].derived_from if d in artifacts else ())


def descendants(digest: str, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Digests that derive from this one, directly or not, nearest first."""
    children: dict[str, list[str]] = {}
    for child, artifact in artifacts.items():
        for parent in artifact.derived_from:
            children.setdefault(parent, []).append(child)
    return _walk(digest, lambda d: children.get(d, ()))


def _walk(start: str, following: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    frontier: list[str] = [start]
    while frontier:
        after: list[str] = []
        for digest in frontier:
            for link in following(digest):
                if link not in found and link != start:
                    found[link] = None
                    after.append(link)
        frontier = after
    return tuple(found)
