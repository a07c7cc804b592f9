"""File tools under attack: whatever stands in the checkout and whoever changes it meanwhile, nothing outside is read,
listed, written, made or deleted, and nothing hangs."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kokuban.agents.sandbox import remove
from kokuban.agents.tools import BUILT_IN_TOOLS, Arguments, Observation, Registry, ToolContext, execute
from kokuban.agents.tools._contained import MAX_DEPTH
from kokuban.blackboard.workspace import File, scan
from support.file_uses import SECRET, USES

pytestmark = pytest.mark.anyio
MINE = "mine"
REGISTRY = Registry(BUILT_IN_TOOLS)


async def use(here: ToolContext, name: str, path: str) -> Observation:
    judged = REGISTRY.validate(name, USES[name](path))
    if not isinstance(judged, Arguments):
        return Observation(judged.text, False)
    async with asyncio.timeout(20):
        return await execute(judged, here)


def outside(folder: Path) -> Callable[[], None]:
    """A folder that is nobody's business; what is returned asserts that it is as it was."""
    out = folder / "out"
    (out / "b/c").mkdir(parents=True)
    for place in ("f.py", "b/f.py", "b/c/f.py"):
        (out / place).write_text(SECRET)

    def state() -> list[tuple[str, int, int, bytes]]:
        found = [(str(p), p.lstat().st_mode, p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
                 for p in out.rglob("*")]  # fmt: skip
        return sorted(found)

    before = state()

    def same() -> None:
        assert state() == before
        assert {p.name for p in folder.iterdir()} <= {"out", "checkout", "home", "away"}

    return same


@pytest.fixture
def here(tmp_path: Path) -> ToolContext:
    (tmp_path / "checkout/a/b/c").mkdir(parents=True)
    for place in ("f.py", "a/f.py", "a/b/f.py", "a/b/c/f.py"):
        (tmp_path / "checkout" / place).write_text(MINE)
    return ToolContext(tmp_path / "checkout", tmp_path / "home")


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("component", ["a", "a/b", "a/b/c", "a/b/c/f.py"])
@pytest.mark.parametrize("target", ["absolute", "relative", "dangling", "root"])
async def test_a_link_at_any_part_of_a_path_leads_nowhere(
    here: ToolContext, tmp_path: Path, name: str, component: str, target: str
) -> None:
    same = outside(tmp_path)
    to = tmp_path / "out" / component.removeprefix("a").lstrip("/")
    away = here.checkout / component
    away.rename(tmp_path / "away")
    leads = {"absolute": str(to), "relative": os.path.relpath(to, away.parent), "dangling": str(tmp_path / "out/new"),
             "root": "/"}  # fmt: skip
    away.symlink_to(leads[target])
    for path in ("a/b/c/f.py", "a/b/c", "a/b/c/new.py", component):
        seen = await use(here, name, path)
        assert SECRET not in seen.text
        # a folder above the link may be listed and searched, and a new file be put beside it
        inside = path != component and not f"{path}/".startswith(f"{component}/")
        assert seen.ok <= inside, (path, seen.text)
    same()
    assert away.is_symlink()


@contextmanager
def swapping(place: Path, to: Path, away: Path) -> Iterator[list[int]]:
    """Something of ours and a link to somebody else's take turns at one place, as fast as they can, whatever the tools
    put there meanwhile. Yields how often the link was there."""
    stop, turns, numbers = threading.Event(), [0], itertools.count()
    is_folder = place.is_dir()

    def ours() -> None:
        fresh = away / str(next(numbers))
        if is_folder:
            (fresh / "c").mkdir(parents=True)
        (fresh / "c/f.py" if is_folder else fresh).write_text(MINE)
        fresh.rename(place)

    def put(make: Callable[[], None]) -> None:
        while not stop.is_set():
            with suppress(OSError):
                place.rename(away / str(next(numbers)))
            with suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)  # deleting a file may take its empty folder along
                make()
                return

    def run() -> None:
        while not stop.is_set():
            put(lambda: place.symlink_to(to))
            turns[0] += 1
            put(ours)

    away.mkdir()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("part", ["a/b", "a/b/c/f.py"])
async def test_a_race_leads_nowhere(here: ToolContext, tmp_path: Path, name: str, part: str) -> None:
    same = outside(tmp_path)
    to = tmp_path / "out" / part.removeprefix("a/")
    with swapping(here.checkout / part, to, tmp_path / "away") as turns:
        tries = 0
        while tries < 150 or turns[0] < 50:
            for path in ("a/b/c/f.py", "a/b/c"):
                seen = await use(here, name, path)
                assert SECRET not in seen.text
            tries += 1
    same()


async def test_a_folder_replaced_by_a_link_between_listing_and_reading(here: ToolContext, tmp_path: Path) -> None:
    same = outside(tmp_path)
    assert "a/b/c/f.py (4 bytes)" in (await use(here, "list_files", "")).text
    (here.checkout / "a/b").rename(tmp_path / "away")
    (here.checkout / "a/b").symlink_to(tmp_path / "out/b")
    for name in USES:
        assert not (await use(here, name, "a/b/c/f.py")).ok
    assert (await use(here, "list_files", "")).text == "a/f.py (4 bytes)\nf.py (4 bytes)"
    assert "No line contains" in (await use(here, "search_files", "")).text
    same()


ODD = [
    "..", "../out/f.py", "a/../../out/f.py", "./../out", "/etc/passwd", "//etc/passwd", "~/x", "~root/.profile",
    "a\0b", "\0", "a/\0/b", "\\..\\out", "..\\out\\f.py", "C:/x", "a" * 300, "x" * 5_000, "a/" * 5_000 + "f",
    "a/" * 901 + "f", "....//out", "%2e%2e/out/f.py", ".. /out/f.py", "..\u2215out", "\uff0e\uff0e/out/f.py",
    "a/\u2024\u2024/f.py", "\udcff", "\n", ".git/config", "a/.git/hooks/x", "file:///etc/passwd", "$HOME/x", "-rf",
    "a/b/c/f.py/x", "/proc/self/environ", "/dev/stdin", "a//../..//out",
]  # fmt: skip


@pytest.mark.parametrize("name", USES)
async def test_no_spelling_leads_out(here: ToolContext, tmp_path: Path, name: str) -> None:
    same = outside(tmp_path)
    for path in ODD:
        seen = await use(here, name, path)
        assert SECRET not in seen.text
        assert "root:" not in seen.text
        assert len(seen.text) < 3_000
        assert "failed (" not in seen.text, (path, seen.text)
        same()
    assert not (here.checkout / ".git").exists()


async def test_variants_of_a_name_are_other_names_or_the_same_file_never_another_place(
    here: ToolContext, tmp_path: Path
) -> None:
    same = outside(tmp_path)
    (here.checkout / "caf\u00e9").symlink_to(tmp_path / "out")
    (here.checkout / "Link").symlink_to(tmp_path / "out")
    for folder in ("caf\u00e9", "cafe\u0301", "CAF\u00c9", "link", "LINK", "Link", "\ufb01le", "A", "\u212bngstrom"):
        for name in USES:
            assert SECRET not in (await use(here, name, f"{folder}/f.py")).text
    same()


async def test_a_hard_link_is_never_written_through(here: ToolContext, tmp_path: Path) -> None:
    same = outside(tmp_path)
    for number, name in enumerate(("write_file", "edit_file", "write_code", "delete_file")):
        os.link(tmp_path / "out/f.py", here.checkout / f"hard{number}.py")
        assert (await use(here, name, f"hard{number}.py")).ok == (name != "write_code")  # the secret is no Python
    same()
    assert (tmp_path / "out/f.py").stat().st_nlink == 2  # the one that was not written


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("name", USES)
async def test_special_files_hold_nothing_up(here: ToolContext, tmp_path: Path, kind: str, name: str) -> None:
    place = here.checkout / "special.py"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            at = os.getcwd()
            try:
                os.chdir(here.checkout)  # the whole path may be too long for a socket
                bound.bind("special.py")
            finally:
                os.chdir(at)
    else:
        try:
            os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("devices are root's to make")
    mode = place.lstat().st_mode
    assert not (await use(here, name, "special.py")).ok
    assert place.lstat().st_mode == mode
    assert "special" not in (await use(here, "list_files", "")).text
    assert (await use(here, "search_files", "")).ok


@pytest.fixture
def deep(here: ToolContext) -> Iterator[int]:
    """A thousand levels of folders with a file in each, as a command can make them. (pytest cannot remove them.)"""
    levels = 1_000
    handle = os.open(here.checkout, os.O_RDONLY)
    for _ in range(levels):
        with open("f.txt", "w", opener=lambda path, flags, at=handle: os.open(path, flags, dir_fd=at)) as file:  # type: ignore[misc]
            file.write("text")
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    yield levels
    remove(here.checkout)
    assert not here.checkout.exists()


async def test_a_very_deep_tree_is_seen_as_far_as_paths_go(here: ToolContext, deep: int) -> None:
    listed = (await use(here, "list_files", "")).text
    assert listed.count("f.txt") == MAX_DEPTH
    assert f"{'d/' * (MAX_DEPTH - 1)}f.txt (4 bytes)" in listed
    for name in USES:
        for levels in (MAX_DEPTH, 901, deep):
            seen = await use(here, name, "d/" * levels + "f.txt")
            assert not seen.ok
            assert "at most 100" in seen.text
    assert (await use(here, "search_files", "d/" * 50)).ok
    assert (await use(here, "read_file", "d/" * (MAX_DEPTH - 1) + "f.txt")).ok


async def test_what_a_command_leaves_is_removed_however_deep(here: ToolContext) -> None:
    line = "chmod 0 a; n=0; while [ $n -lt 1200 ]; do mkdir d && cd d && echo x >f; n=$((n+1)); done; echo done $n"
    judged = REGISTRY.validate("run_command", {"command": line})
    assert isinstance(judged, Arguments)
    seen = await execute(judged, here)
    assert seen.ok, seen.text
    assert seen.text.startswith("done 1200")
    assert list(here.home.iterdir()) == []
    assert scan(here.checkout)["a/f.py"] == File(MINE.encode())


def test_removing_follows_no_link_and_takes_closed_folders(tmp_path: Path) -> None:
    same = outside(tmp_path)
    (tmp_path / "home/x/y").mkdir(parents=True)
    (tmp_path / "home/x/y/f").write_text("x")
    (tmp_path / "home/link").symlink_to(tmp_path / "out")
    os.mkfifo(tmp_path / "home/pipe")
    os.chmod(tmp_path / "home/x/y", 0)
    os.chmod(tmp_path / "home/x", 0)
    remove(tmp_path / "home")
    assert not (tmp_path / "home").exists()
    remove(tmp_path / "home")  # gone already
    (tmp_path / "home").symlink_to(tmp_path / "out")
    remove(tmp_path / "home")
    same()
