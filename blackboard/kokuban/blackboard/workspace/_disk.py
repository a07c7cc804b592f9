"""Trees from folders and folders from trees: the one module here that touches a file system."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kokuban.blackboard.workspace._tree import (
    MAX_BYTES,
    MAX_FILES,
    File,
    Tree,
    WorkspaceError,
    check_tree,
    skipped,
)

_NAMED_PROBLEMS = 10  # a folder full of bad links gets one readable error


def scan(
    root: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES, may_be_link: bool = True
) -> Tree:  # fmt: skip
    """The files below `root` as a tree, without what `skipped` names. Empty folders leave no trace.

    A link that stays inside is stored as a copy of what it leads to; `root` itself may be a link where no program of
    others could put it there. Raises `WorkspaceError`, naming the paths (the first ten), when `root` is missing or not
    a folder, and for links that lead outside, nowhere or in a circle, special files, unreadable files, names that are
    not UTF-8, and more than `max_files` or `max_bytes` in all.
    """
    shown = _shown(str(root))
    try:
        real_root = root.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise WorkspaceError(f"the folder {shown} does not exist or cannot be reached; name an existing one") from error
    if (root.is_symlink() and not may_be_link) or not real_root.is_dir():
        raise WorkspaceError(f"{shown} is not a folder; name the folder that holds the files")
    scanner = _Scanner(str(real_root), max_files, max_bytes)
    for path, real, executable in scanner.walk():
        scanner.take(path, real, executable)
    if scanner.problems:
        lines = [f"  {_shown(path)}: {problem}" for path, problem in scanner.problems[:_NAMED_PROBLEMS]]
        more = len(scanner.problems) - len(lines)
        lines += [f"  … and {more:,} more"] if more else []
        raise WorkspaceError(f"the folder {shown} cannot be used as it is; remove or replace:\n" + "\n".join(lines))
    return dict(sorted(scanner.tree.items()))


class _Scanner:
    def __init__(self, root: str, max_files: int, max_bytes: int) -> None:
        self.root, self.max_files, self.max_bytes = root, max_files, max_bytes
        self.tree: dict[str, File] = {}
        self.problems: list[tuple[str, str]] = []
        self.bytes = 0

    def walk(self) -> Iterator[tuple[str, str, bool]]:
        """Each regular file as (path in the tree, real path, executable). Links are followed only inside the root."""
        folders: list[tuple[str, str, tuple[str, ...]]] = [("", self.root, ())]
        followed = 0
        while folders:
            prefix, real_folder, above = folders.pop()
            followed += 1
            if followed > self.max_files:  # links can make a few folders look like endlessly many
                raise WorkspaceError(f"the folder holds more than {self.max_files:,} folders; name a smaller one")
            try:
                names = sorted(os.listdir(real_folder))
            except OSError as error:
                self.problems.append((prefix.rstrip("/") or ".", f"cannot be read ({error.strerror})"))
                continue
            for name in names:
                path = prefix + name
                if skipped(name):
                    continue
                try:
                    path.encode()
                    real = os.path.join(real_folder, name)
                    if stat.S_ISLNK(os.lstat(real).st_mode):  # else all of it is real already, however deep it is
                        real = os.path.realpath(real, strict=True)
                    mode = os.stat(real).st_mode
                except UnicodeEncodeError:
                    self.problems.append((path, "its name is not UTF-8"))
                    continue
                except OSError as error:
                    self.problems.append((path, self._why_unreachable(os.path.join(real_folder, name), error)))
                    continue
                if os.path.commonpath([self.root, real]) != self.root:
                    self.problems.append((path, f"a link that leads outside, to {_shown(real)}"))
                elif stat.S_ISDIR(mode):
                    if real == self.root or real in above or real == real_folder:
                        self.problems.append((path, "a link that leads in a circle"))
                    else:
                        folders.append((path + "/", real, (*above, real_folder)))
                elif stat.S_ISREG(mode):
                    yield path, real, bool(mode & stat.S_IXUSR)
                else:
                    self.problems.append((path, "a special file (socket, pipe or device)"))

    def _why_unreachable(self, full: str, error: OSError) -> str:
        if not os.path.islink(full):
            return f"cannot be read ({error.strerror})"
        target = os.path.realpath(full)
        if os.path.commonpath([self.root, target]) != self.root:
            return f"a link that leads outside, to {_shown(target)}"
        return "a link that leads nowhere or in a circle"

    def take(self, path: str, real: str, executable: bool) -> None:
        """Read one file into the tree, within the limits. Raises `WorkspaceError` as soon as a limit is passed."""
        if len(self.tree) >= self.max_files:
            raise WorkspaceError(
                f"the folder holds more than {self.max_files:,} files; name a smaller folder "
                "(version control, installed packages and caches are not counted)"
            )
        try:
            with open(real, "rb", opener=_open_plainly) as file:
                content = file.read(self.max_bytes - self.bytes + 1)
        except OSError as error:
            self.problems.append((path, f"cannot be read ({error.strerror})"))
            return
        self.bytes += len(content)
        if self.bytes > self.max_bytes:
            raise WorkspaceError(
                f"the files of the folder are larger than {self.max_bytes:,} bytes together (reached at "
                f"{_shown(path)}); name a smaller folder or move large files out"
            )
        self.tree[path] = File(content, executable)


def checkout(tree: Tree, into: Path) -> None:
    """Write the tree into a new or empty folder, with modes 644 and 755 whatever the umask is. Raises `WorkspaceError`
    when `into` holds something or is no folder (nothing is written then), and when writing fails (what was written is
    removed again)."""
    check_tree(tree)
    shown = _shown(str(into))
    try:
        into.mkdir(parents=True, exist_ok=True)
        if os.listdir(into):
            raise WorkspaceError(f"the folder {shown} is not empty; name a new one")
    except OSError as error:
        raise WorkspaceError(f"{shown} cannot be used as a folder ({error.strerror}); name a new one") from error
    try:
        _write(tree, into)
    except OSError as error:
        shutil.rmtree(into, ignore_errors=True)
        raise WorkspaceError(f"the files cannot be written to {shown} ({error.strerror}); nothing was kept") from error


def check_out_path(out: Path) -> None:
    """Raise now the `WorkspaceError` that `write_out` would raise for this path later: something exists there (a broken
    link counts), or the folder to put it in is missing or not writable."""
    if os.path.lexists(out):
        raise WorkspaceError(f"{_shown(str(out))} exists already; name a path that does not, or move it away")
    parent = out.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise WorkspaceError(f"{_shown(str(out))} cannot be made: {_shown(str(parent))} is not a folder to write in")


def write_out(tree: Tree, out: Path) -> None:
    """Write the tree to `out`, which must not exist: whole, or not at all (a temporary folder beside it is renamed at
    the end). Raises `WorkspaceError`; nothing is left behind then."""
    check_tree(tree)
    check_out_path(out)
    failed = f"{_shown(str(out))} cannot be written"
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name[:100]}.", suffix=".tmp", dir=out.absolute().parent))
    except OSError as error:
        raise WorkspaceError(f"{failed} ({error.strerror})") from error
    try:
        _write(tree, beside)
        os.chmod(beside, 0o755)
        check_out_path(out)  # once more: a rename would quietly replace an empty folder made meanwhile
        os.rename(beside, out)
    except OSError as error:
        raise WorkspaceError(f"{failed} ({error.strerror}); nothing was kept") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # gone already after the rename


def _write(tree: Tree, folder: Path) -> None:
    for path, file in tree.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as handle:
            handle.write(file.content)
            os.fchmod(handle.fileno(), 0o755 if file.executable else 0o644)


def _open_plainly(path: str, flags: int) -> int:
    # No link is followed and no pipe blocks, even if somebody changes the folder meanwhile.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _shown(path: str) -> str:
    """A path fit for one line of an error: quoted, other bytes than UTF-8 escaped, at most 200 characters."""
    clean = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return repr(clean if len(clean) <= 200 else clean[:200] + "…")
