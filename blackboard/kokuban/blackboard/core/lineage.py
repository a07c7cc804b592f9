"""Which artifact came from which: `derived_from` followed both ways, and what is stale because of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kokuban.blackboard.core.dag import RESERVED, VERIFY
from kokuban.blackboard.core.state import Artifact, Task

_JUDGEMENTS = ("verdict", "critique")


def ancestors(digest: str, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Digests that this one derives from, directly or not, nearest first. Cycles and unknown digests are harmless."""
    return _walk(digest, lambda d: artifacts[d].derived_from if d in artifacts else ())


def descendants(digest: str, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
    """Digests that derive from this one, directly or not, nearest first."""
    children = _children(artifacts)
    return _walk(digest, lambda d: children.get(d, ()))


def current(task: Task) -> frozenset[str]:
    """Digests that count now: the last results of every step that the plan in force still has, and of what judges it.
    An artifact that is not among them was replaced."""
    planned = {step.id for step in task.plan.steps} if task.plan is not None else None

    def counts(name: str) -> bool:
        return planned is None or name.removeprefix(VERIFY) in planned.union(RESERVED)

    return frozenset(a.ref.digest for step in task.steps.values() if counts(step.id) for a in step.results)


def stale(artifacts: Mapping[str, Artifact], current: Collection[str]) -> frozenset[str]:
    """Artifacts that derive, directly or not, from one that was replaced (that is not in `current`).

    What was made again because of a judgement is not stale for its sake: a verdict or a critique is replaced by the
    very work that it asked for. A judgement itself is stale when what it judged was replaced.
    """

    def passes_on(parent: str, child: Artifact) -> bool:
        known = artifacts.get(parent)
        return known is not None and (known.ref.kind not in _JUDGEMENTS or child.ref.kind in _JUDGEMENTS)

    children = _children(artifacts, passes_on)
    replaced = [name for name in artifacts if name not in current]
    found: set[str] = set()
    while replaced:
        for child in children.get(replaced.pop(), ()):
            if child not in found:
                found.add(child)
                replaced.append(child)
    return frozenset(found)


def _children(
    artifacts: Mapping[str, Artifact], passes_on: Callable[[str, Artifact], bool] = lambda parent, child: True
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, artifact in artifacts.items():
        for parent in artifact.derived_from:
            if passes_on(parent, artifact):
                found.setdefault(parent, []).append(name)
    return found


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
