"""A folder that nothing leads out of: every path is opened part by part from a handle of the folder, following no link,
so that neither a name nor a race can reach a file outside."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from kokuban.agents.tools._errors import ToolError
from kokuban.blackboard.workspace import File, skipped

MAX_FILE_BYTES = 8 * 2**20
"""Largest file that tools read or write (8 MiB)."""

MAX_DEPTH = 100
"""Parts of the longest path. What lies deeper (a command can make it) is not there for tools."""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a model's path, `.` and doubled slashes dropped. Raises `ToolError` for a path that is not below the
    workspace or that the workspace never holds. The workspace itself is `()`."""
    shown = repr(path[:200])
    if path.startswith(("/", "~/")) or path[1:3] == ":/":
        raise ToolError(f"{shown} is not inside the workspace; give a path relative to it, such as 'src/app.py'")
    if "\\" in path:
        raise ToolError(f"{shown} holds a backslash; separate folders with '/'")
    if any(char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in path):
        raise ToolError(f"{shown} holds a control character; give a plain path such as 'src/app.py'")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ToolError(f"{shown} holds '..'; give a path relative to the workspace, without '..'")
    if len(parts) > MAX_DEPTH:
        raise ToolError(f"{shown} has {len(parts):,} parts; a path has at most {MAX_DEPTH}")
    if skipped("/".join(parts)):
        raise ToolError(f"{shown} is not part of the workspace (caches and version control are left out)")
    return parts


class Contained:
    """Files below one folder. A context manager; every method raises `ToolError` for what it refuses."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Self:
        with _explained("its folder"):
            self._handle = os.open(self._root, _FOLDER_FLAGS)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def read(self, path: str) -> File:
        """The file at `path`, at most 8 MiB."""
        with self._parent(path) as (folder, name), _explained(path):

            def opener(name: str, flags: int) -> int:
                # Without O_NONBLOCK a pipe in the place of a file would hold us for ever.
                return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

            with open(name, "rb", opener=opener) as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise ToolError(f"{path!r} is not a regular file")
                content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ToolError(f"{path!r} is larger than {MAX_FILE_BYTES:,} bytes; tools do not read files that large")
        return File(content, bool(mode & stat.S_IXUSR))

    def find(self, path: str) -> File | None:
        """As `read`, but None when there is no such file."""
        try:
            return self.read(path)
        except _Missing:
            return None

    def write(self, path: str, file: File) -> None:
        """Put a file at `path`, whole or not at all; folders on the way are made."""
        if len(file.content) > MAX_FILE_BYTES:
            raise ToolError(f"the content for {path!r} is larger than {MAX_FILE_BYTES:,} bytes; write less")
        with self._parent(path, make=True) as (folder, name), _explained(path):
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    raise IsADirectoryError
                if not stat.S_ISREG(mode):
                    raise ToolError(f"{path!r} is a link or a special file; choose another path")
            # A new file and a rename: a hard link to the old one, wherever it is, keeps the old content.
            temporary = f".{secrets.token_hex(8)}.tmp"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                with open(handle, "wb") as out:
                    out.write(file.content)
                    os.fchmod(handle, 0o755 if file.executable else 0o644)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise

    def delete(self, path: str) -> None:
        """Remove the file at `path`, and the folders that it leaves empty."""
        self.read(path)  # refuses what is no file
        with self._parent(path) as (folder, name), _explained(path):
            os.unlink(name, dir_fd=folder)
        parts = parts_of(path)[:-1]
        while parts:
            with self._parent("/".join(parts)) as (folder, name):
                try:
                    os.rmdir(name, dir_fd=folder)
                except OSError:
                    return
            parts = parts[:-1]

    def walk(self, folder: str = "") -> Iterator[tuple[str, int]]:
        """Each regular file below `folder` as (path, bytes), sorted; links are not followed and skipped names left
        out."""
        start = parts_of(folder)
        with self._folder(start, folder):
            pass  # says what is wrong with it
        found: list[tuple[str, int]] = []
        waiting = [start]
        while waiting:  # one handle at a time, however deep a command has made it
            parts = waiting.pop()
            with contextlib.suppress(ToolError), self._folder(parts, folder) as handle:
                below, files = _entries(handle, "/".join(parts))
                found += files
                waiting += [(*parts, name) for name in below if len(parts) + 1 < MAX_DEPTH]
        yield from sorted(found)

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        parts = parts_of(path)
        if not parts or path.endswith("/"):
            raise ToolError(f"{path[:200]!r} is not a path of a file; give one such as 'src/app.py'")
        with self._folder(parts[:-1], path, make=make) as handle:
            yield handle, parts[-1]

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...], path: str, *, make: bool = False) -> Iterator[int]:
        handle = os.dup(self._handle)
        try:
            for part in parts:
                with _explained(path):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o755, dir_fd=handle)
                    below = os.open(part, _FOLDER_FLAGS, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)


def _entries(handle: int, prefix: str) -> tuple[list[str], list[tuple[str, int]]]:
    """The folders in a folder, and its regular files as (path, bytes); neither links nor skipped names."""
    folders, files = [], []
    with os.scandir(handle) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                if skipped(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.append((f"{prefix}/{entry.name}".lstrip("/"), entry.stat(follow_symlinks=False).st_size))
    return folders, files


class _Missing(ToolError):
    """There is no such file."""


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    shown = repr(path[:200])
    try:
        yield
    except FileNotFoundError as error:
        raise _Missing(f"there is no {shown}; list_files shows what there is") from error
    except IsADirectoryError as error:
        raise ToolError(f"{shown} is a folder; list_files shows what it holds") from error
    except OSError as error:
        # O_NOFOLLOW and O_DIRECTORY report a link as "not a directory" or "too many links".
        raise ToolError(
            f"{shown} cannot be used ({error.strerror}); a link or a file may stand in its way: list_files shows "
            "the files of the workspace"
        ) from error
