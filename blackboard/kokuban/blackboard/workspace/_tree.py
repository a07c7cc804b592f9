"""What a workspace is: files by path, and the digests that name them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_FILES = 5_000
"""Most files of a workspace, unless the caller says otherwise."""
MAX_BYTES = 50 * 2**20
"""Most bytes of all files of a workspace together (50 MiB), unless the caller says otherwise."""

_SKIPPED_NAMES = frozenset({
    ".kokuban",
    ".git", ".hg", ".svn", ".DS_Store",
    ".venv", "venv", "node_modules",
    "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".coverage",
})  # fmt: skip
_SKIPPED_ENDINGS = (".pyc", ".pyo")


class WorkspaceError(Exception):
    """A folder, pack or change that cannot be used as asked. The text says what is wrong and the way out. Nothing was
    stored or left half-done."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a tree: its bytes, and whether its owner may execute it. No other mode bit, owner or time counts."""

    content: bytes
    executable: bool = False


Tree = Mapping[str, File]
"""Files by POSIX path relative to the workspace (`src/app.py`), in sorted order. Folders exist through their files."""


def content_digest(content: bytes) -> str:
    """`sha256:<64 hex digits>` of a file's bytes."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def tree_digest(tree: Tree) -> str:
    """`sha256:<64 hex digits>` over a canonical listing: for each path in sorted order the mode (`x` or `-`), the
    content's digest and the path, ended by a NUL. Independent of the mapping's order, the disk and the umask."""
    listing = hashlib.sha256()
    for path in sorted(tree):
        file = tree[path]
        mode = "x" if file.executable else "-"
        listing.update(f"{mode} {content_digest(file.content)} {path}\0".encode())
    return "sha256:" + listing.hexdigest()


def is_text(content: bytes) -> bool:
    """Whether bytes are text to show and to merge by lines: UTF-8 without a NUL."""
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def lines_of(content: bytes) -> list[str]:
    """Text as lines with their endings. Only LF ends a line: other separators are content (`str.splitlines` would
    cut at form feeds and U+2028, too). Raises `UnicodeDecodeError` for other bytes."""
    lines = content.decode().split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def skipped(path: str) -> bool:
    """Whether a path is not part of a workspace: version control, virtual environments, installed packages, caches and
    compiled files, wherever they stand in the tree."""
    return path.endswith(_SKIPPED_ENDINGS) or not _SKIPPED_NAMES.isdisjoint(path.split("/"))


def clashes(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs (file, path below it) where one path would have to be a file and a folder at once."""
    known = set(paths)
    found = []
    for path in sorted(known):
        parent = path.rpartition("/")[0]
        while parent:
            if parent in known:
                found.append((parent, path))
            parent = parent.rpartition("/")[0]
    return found


def check_tree(tree: Tree) -> None:
    """Raise `WorkspaceError` unless every path can be written below a folder and nowhere else: relative, without empty,
    `.` or `..` parts and NULs, encodable as UTF-8, and none both a file and a folder."""
    for path in tree:
        if not path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise WorkspaceError(f"{path!r} is not a path inside a workspace: it must be relative, without '.' or '..'")
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise WorkspaceError(f"{path!r} is not a path inside a workspace: it is not UTF-8") from error
    for file, below in clashes(tree):
        raise WorkspaceError(f"{file!r} is both a file and the folder of {below!r}")
