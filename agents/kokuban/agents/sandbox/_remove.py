"""Removing what commands left behind, however deep they made it and whatever its modes are."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: Path) -> None:
    """Remove a folder with all that is below it. Follows no link, never raises, and needs no more room for a tree a
    thousand levels deep (where `shutil.rmtree` ends) than for a flat one: folders are moved up before they are emptied.
    What cannot be removed stays."""
    with contextlib.suppress(OSError):
        top = os.open(folder, _FLAGS)
        try:
            os.fchmod(top, 0o700)
            waiting = _emptied(top, top)
            while waiting:
                name = waiting.pop()
                with contextlib.suppress(OSError):
                    inner = os.open(name, _FLAGS, dir_fd=top)
                    try:
                        waiting += _emptied(inner, top)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _emptied(inner: int, top: int) -> list[str]:
    """Remove a folder's files and move its folders to the top; the names that they have there."""
    moved: list[str] = []
    for name in os.listdir(inner):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=inner, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=inner)
                continue
            os.chmod(name, 0o700, dir_fd=inner)  # else it may neither be moved nor read
            there = secrets.token_hex(12)
            os.rename(name, there, src_dir_fd=inner, dst_dir_fd=top)
            moved.append(there)
    return moved
