"""Folders of workers: gone with their process, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kokuban.console._homes import own_home

HOLD = (
    "import sys; from pathlib import Path; from kokuban.console._homes import own_home\n"
    "with own_home('coder', Path(sys.argv[1])) as own: print(own, flush=True); sys.stdin.read()"
)


def holder(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder of its own, and work in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    own = Path(process.stdout.readline().strip())
    (own / "fix-1" / "checkout").mkdir(parents=True)
    (own / "fix-1" / "checkout" / "a.py").write_text("x")
    return process, own


def ended(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=20)


def test_at_the_end_nothing_is_left(tmp_path: Path) -> None:
    process, own = holder(tmp_path / "new" / "base")
    assert own.parent == tmp_path / "new" / "base"
    ended(process)
    assert list(own.parent.iterdir()) == []


def test_what_a_killed_worker_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    (killed, dead), (living, alive) = holder(tmp_path), holder(tmp_path)
    strangers = tmp_path / "kokuban-coder-mine"
    strangers.mkdir()
    (strangers / "notes").write_text("mine")
    other = tmp_path / "kokuban-verifier-1"
    other.mkdir()
    (other / ".alive").write_text("")
    linked = tmp_path / "kokuban-coder-linked"
    linked.symlink_to(alive)
    killed.send_signal(signal.SIGKILL)
    ended(killed)
    try:
        assert dead.exists()
        with own_home("coder", tmp_path) as own:
            left = {path for path in tmp_path.iterdir() if path.name.startswith("kokuban-coder-")}
            assert left == {alive, strangers, linked, own}
        assert (strangers / "notes").read_text() == "mine"
        assert other.exists()
        assert (alive / "fix-1" / "checkout" / "a.py").exists()
        assert not own.exists()
    finally:
        ended(living)


def test_a_folder_is_locked_before_it_can_be_found_dead(tmp_path: Path) -> None:
    with own_home("coder", tmp_path) as one, own_home("coder", tmp_path) as two:
        assert one.exists()
        assert two.exists()
        assert oct(os.stat(one).st_mode & 0o777) == "0o700"
