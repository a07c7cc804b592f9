"""Where an artifact comes from, and what came of it."""

from __future__ import annotations

from core import contents
from core.history import begun
from kokuban.blackboard.core import Artifact, ancestors, descendants
from kokuban.blackboard.core.lineage import current, stale
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


def judged(artifacts: dict[str, Artifact], *names: str, kind: str = "verdict") -> dict[str, Artifact]:
    """The same, where these are judgements."""
    return artifacts | {
        name: Artifact(Ref("v", kind, name, name, 1), "verifier", "w", 1, 1, artifacts[name].derived_from, b"")
        for name in names
    }


def test_what_derives_from_something_replaced_is_stale() -> None:
    found = artifacts(a="", b="a", c="b", d="c", e="", f="ez")
    assert stale(found, found.keys()) == set()
    assert stale(found, set(found) - {"a"}) == {"b", "c", "d"}
    assert stale(found, set(found) - {"c"}) == {"d"}
    assert stale(found, set(found) - {"d"}) == set()
    assert stale(found, set(found) - {"a", "e"}) == {"b", "c", "d", "f"}
    assert stale(artifacts(a="b", b="a", c=""), {"c"}) == {"a", "b"}


def test_a_judgement_is_stale_with_what_it_judged_and_makes_nothing_stale() -> None:
    for kind in ("verdict", "critique"):
        # patch a, judged by v; patch b was made again because of v, and is judged by w
        found = judged(artifacts(a="", v="a", b="v", w="b"), "v", "w", kind=kind)
        assert stale(found, {"b", "w"}) == {"v"}
        assert stale(found, {"w"}) == {"v", "w"}


def test_staleness_of_a_long_line_needs_no_recursion() -> None:
    found = {str(n): Artifact(Ref("s", "patch", "x", str(n), 1), "coder", "w", 1, 1, (str(n - 1),), b"") for n in
             range(5_000)}  # fmt: skip
    assert len(stale(found, found.keys() - {"0"})) == 4_999


def test_current_is_what_each_step_last_made() -> None:
    history = begun()
    task = history.board.tasks[history.task]
    (plan,) = history.perform("plan", "planner", ("plan", contents.plan(("a", "coder", ()), ("b", "coder", ()))))
    (first,) = history.perform("a", "coder", ("change", contents.patch("one")))
    (other,) = history.perform("b", "coder", ("change", contents.patch("two")))
    assert current(task) == {plan.digest, first.digest, other.digest}
    (again,) = history.perform("a", "coder", ("change", contents.patch("three")))
    assert current(task) == {plan.digest, again.digest, other.digest}
    assert task.plan is not None
    task.plan = contents.plan(("a", "coder", ()))  # revised: step b is not in it any more
    assert current(task) == {plan.digest, again.digest}
