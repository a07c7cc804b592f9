"""Three-way merge of whole trees: what several steps made of one base, as one result or as named conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kokuban.blackboard.workspace._tree import File, Tree, clashes, is_text, lines_of


@dataclass(frozen=True, slots=True)
class Conflict:
    """One path that the sides changed in ways that do not go together."""

    path: str
    sides: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The sides cannot be merged. Sorted by path; every conflict found is listed."""

    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged tree. `origin` names, for every path that differs from the base (deleted ones too), the sides that
    changed it, in the order given."""

    tree: Tree
    origin: dict[str, tuple[str, ...]]


def merge(base: Tree, sides: Sequence[tuple[str, Tree]]) -> Merged | Conflicts:
    """Merge what each named side made of `base`. Equal changes are one change; text changed by several sides is merged
    by lines (endings and a missing last newline kept); a deletion against a change, different additions, different
    binary contents and a file against a folder are conflicts. Sides that changed different lines give the same result
    in any order."""
    tree = dict(base)
    origin: dict[str, tuple[str, ...]] = {}
    conflicts: list[Conflict] = []
    changed = {path for _, side in sides for path in base.keys() | side.keys() if side.get(path) != base.get(path)}
    for path in sorted(changed):
        old = base.get(path)
        edits = [(name, side.get(path)) for name, side in sides if side.get(path) != old]
        origin[path] = tuple(name for name, _ in edits)
        result = edits[0][1]
        for at, (name, edit) in enumerate(edits[1:], start=1):
            merged = _merge_file(old, result, edit)
            if isinstance(merged, str):
                conflicts.append(Conflict(path, (*origin[path][:at], name), merged))
                result = None  # in doubt: it must not clash with other paths, too
                break
            result = merged
        if result is None:
            tree.pop(path, None)
        else:
            tree[path] = result
    for file, below in clashes(tree):
        names = dict.fromkeys(origin.get(file, ()) + origin.get(below, ()))
        conflicts.append(Conflict(file, tuple(names), f"it is a file on one side and the folder of {below} on another"))
    if conflicts:
        return Conflicts(tuple(sorted(conflicts, key=lambda conflict: conflict.path)))
    return Merged(dict(sorted(tree.items())), origin)


def _merge_file(base: File | None, one: File | None, other: File | None) -> File | str | None:
    """Merge two versions that both differ from the base; a string is the reason why it cannot be done."""
    if one == other:
        return one
    if one is None or other is None:
        return "it is deleted on one side and changed on another"
    # A bit has two values: of two sides that differ here, the one unlike the base is the one that changed it.
    was_executable = base is not None and base.executable
    executable = one.executable if one.executable != was_executable else other.executable
    content = _merge_content(base.content if base else None, one.content, other.content)
    return content if isinstance(content, str) else File(content, executable)


def _merge_content(base: bytes | None, one: bytes, other: bytes) -> bytes | str:
    if one == other or other == base:
        return one
    if one == base:
        return other
    if base is None:
        return "it is added on several sides with different contents"
    if not (is_text(base) and is_text(one) and is_text(other)):
        return "it is binary and changed in different ways"
    from merge3 import Merge3  # late: most processes never merge

    lines = {"unchanged": lines_of(base), "a": lines_of(one), "b": lines_of(other)}
    lines["same"] = lines["a"]
    merged: list[str] = []
    for what, start, end, *_ in Merge3(lines["unchanged"], lines["a"], lines["b"]).merge_regions():
        if what == "conflict":
            return f"the sides changed the same lines in different ways (at line {start + 1} of the base)"
        merged += lines[what][start:end]
    return "".join(merged).encode()
