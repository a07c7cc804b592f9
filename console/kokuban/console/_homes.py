"""A folder for one life of a worker, which nobody has to tidy up: what a killed one left is removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".alive"


@contextmanager
def own_home(role: str, base: Path | None = None) -> Iterator[Path]:
    """A new folder in `base` (default: the system's folder for temporary files), locked as long as this process lives
    and removed at the end. Folders of the same role whose process has died are removed first."""
    base = Path(tempfile.gettempdir()) if base is None else base
    base.mkdir(parents=True, exist_ok=True)
    prefix = f"kokuban-{role}-"
    for left in base.glob(f"{prefix}*"):
        _remove_if_dead(left)
    own = Path(tempfile.mkdtemp(prefix=prefix, dir=base)).absolute()
    # Locked before it has its name: a folder with an unlocked `.alive` belongs to nobody.
    lock = os.open(own / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(own / f"{_LOCK}.new", own / _LOCK)
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def _remove_if_dead(folder: Path) -> None:
    with suppress(OSError):  # somebody else's, just removed, or alive
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if folder.lstat().st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
