"""The difference between two trees: as data that can be applied exactly, and as text for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from kokuban.blackboard.workspace._tree import (
    File,
    Tree,
    check_tree,
    clashes,
    content_digest,
    is_text,
    lines_of,
)

Op = Literal["add", "modify", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one file. `before` and `after` are digests of its bytes (None where there is no file);
    `executable` and `content` are the new ones (False and None for a deletion)."""

    path: str
    op: Op
    before: str | None
    after: str | None
    executable: bool
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The changes do not fit the tree: these paths are not what the changes were made from. Nothing was applied."""

    paths: tuple[str, ...]


def changes(before: Tree, after: Tree) -> tuple[Change, ...]:
    """What turns `before` into `after`, sorted by path. Equal trees give `()`."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        old_digest = content_digest(old.content) if old else None
        if new is None:
            found.append(Change(path, "delete", old_digest, None, False, None))
        else:
            op: Op = "modify" if old else "add"
            found.append(Change(path, op, old_digest, content_digest(new.content), new.executable, new.content))
    return tuple(found)


def apply(tree: Tree, changes: Iterable[Change]) -> Tree | Mismatch:
    """The tree with all changes made, or `Mismatch` when one of them was made from something else: a different or
    missing file, a path changed twice, or a file where a folder is. Never a part of them. Raises `WorkspaceError` for
    a path that leaves the workspace."""
    result = dict(tree)
    wrong, seen = set(), set()
    for change in changes:
        old = tree.get(change.path)
        if change.path in seen or (content_digest(old.content) if old else None) != change.before:
            wrong.add(change.path)
        seen.add(change.path)
        if change.content is None:
            result.pop(change.path, None)
        else:
            result[change.path] = File(change.content, change.executable)
    wrong |= {path for pair in clashes(result) for path in pair if path in seen}
    if wrong:
        return Mismatch(tuple(sorted(wrong)))
    check_tree({path: result[path] for path in seen & result.keys()})
    return dict(sorted(result.items()))


def unified(before: Tree, after: Tree) -> str:
    """The difference as a unified diff in git's form, for people (git can apply it). Binary files are only named."""
    return "".join(line for change in changes(before, after) for line in _file_diff(change, before.get(change.path)))


def _file_diff(change: Change, old: File | None) -> Iterator[str]:
    name_a, name_b = _quoted("a/" + change.path), _quoted("b/" + change.path)
    yield f"diff --git {name_a} {name_b}\n"
    old_mode = "100755" if old and old.executable else "100644"
    new_mode = "100755" if change.executable else "100644"
    if change.op == "add":
        yield f"new file mode {new_mode}\n"
    elif change.op == "delete":
        yield f"deleted file mode {old_mode}\n"
    elif old_mode != new_mode:
        yield f"old mode {old_mode}\nnew mode {new_mode}\n"
    old_content, new_content = old.content if old else b"", change.content or b""
    label_a = name_a if old else "/dev/null"
    label_b = name_b if change.content is not None else "/dev/null"
    if not (is_text(old_content) and is_text(new_content)):
        yield f"Binary files {label_a} and {label_b} differ\n"
        return
    for line in difflib.unified_diff(lines_of(old_content), lines_of(new_content), label_a, label_b):
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _quoted(name: str) -> str:
    """A name as git shows it: a control character, quote or backslash puts it in quotes, so that no file name can
    pass for a line of the diff."""
    if all(char >= " " and char not in '"\\\x7f' for char in name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\{ord(c):03o}" for c in escaped) + '"'
