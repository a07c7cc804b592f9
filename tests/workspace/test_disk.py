"""Folders to trees and back, on a real file system."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kokuban.blackboard.workspace import (
    File,
    WorkspaceError,
    check_out_path,
    checkout,
    scan,
    tree_digest,
    write_out,
)

TREE = {"README": File(b"hi\n"), "bin/run": File(b"#!/bin/sh\n", executable=True), "src/a/b.bin": File(b"\0\xff")}


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_checkout_scans_to_the_same_tree_whatever_the_umask(tmp_path: Path, umask: None) -> None:
    checkout(TREE, tmp_path / "deep" / "w")
    found = scan(tmp_path / "deep" / "w")
    assert found == TREE
    assert list(found) == sorted(found)
    assert tree_digest(found) == tree_digest(TREE)
    assert (tmp_path / "deep/w/README").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "deep/w/bin/run").stat().st_mode & 0o777 == 0o755


def test_a_folder_without_files_is_an_empty_tree(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert scan(tmp_path) == {}


def test_version_control_environments_and_caches_are_left_out(tmp_path: Path) -> None:
    for name in (
        ".git/config",
        "a/__pycache__/x.pyc",
        "node_modules/m/i.js",
        ".venv/bin/python",
        "a/.pytest_cache/v",
        "m.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a" / ".git").symlink_to("/nowhere")  # as in a submodule, and never looked at
    (tmp_path / ".gitignore").write_text("keep me")
    assert list(scan(tmp_path)) == [".gitignore"]


def test_the_folder_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    checkout(TREE, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert scan(tmp_path / "link") == TREE


def test_a_missing_folder_a_file_and_a_bad_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    for name, why in [
        ("nothing", "does not exist"),
        ("file", "not a folder"),
        ("loop", "does not exist"),
        ("a\0b", "exist"),
    ]:
        with pytest.raises(WorkspaceError, match=why):
            scan(tmp_path / name)


def test_links_inside_are_stored_as_copies(tmp_path: Path) -> None:
    (tmp_path / "docs/v1").mkdir(parents=True)
    (tmp_path / "docs/v1/a.md").write_text("a")
    (tmp_path / "docs/current").symlink_to("v1")
    (tmp_path / "b.md").symlink_to(tmp_path / "docs/v1/a.md")
    assert list(scan(tmp_path)) == ["b.md", "docs/current/a.md", "docs/v1/a.md"]


def test_a_folder_full_of_links_out_of_it_is_one_clear_error(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "workshop").mkdir()  # its path starts with the workspace's path, yet it is outside
    for number in range(30):
        (work / f"l{number:02}").symlink_to(["/etc/passwd", "/etc", "../workshop", "/no/such/place"][number % 4])
    with pytest.raises(WorkspaceError) as caught:
        scan(work)
    text = str(caught.value)
    assert "'l00': a link that leads outside, to '/etc/passwd'" in text
    assert text.count("leads outside") == 10
    assert "and 20 more" in text


def test_broken_links_circles_and_special_files_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to("nothing")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "a/b").symlink_to("../b")
    (tmp_path / "b/a").symlink_to("../a")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(tmp_path)  # a socket's path must be short
        try:
            server.bind("sock")
        finally:
            os.chdir(before)
        with pytest.raises(WorkspaceError) as caught:
            scan(tmp_path)
    text = str(caught.value)
    for name in ("'broken': a link that leads nowhere", "'self': a link that", "'a/up': a link that leads in a circle"):
        assert name in text
    assert "'pipe': a special file" in text
    assert "'sock': a special file" in text


def test_folders_multiplied_by_links_end(tmp_path: Path) -> None:
    for level in range(24):
        (tmp_path / f"l{level}").mkdir()
        for name in ("x", "y"):
            (tmp_path / f"l{level}" / name).symlink_to(f"../l{level + 1}")
    (tmp_path / "l24").mkdir()
    with pytest.raises(WorkspaceError, match="more than 500 folders"):
        scan(tmp_path, max_files=500)


def test_names_that_are_not_utf8_are_shown_and_refused(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff", "wb"):
        pass
    with pytest.raises(WorkspaceError, match=r"bad\\\\xff.*not UTF-8"):
        scan(tmp_path)


def test_unreadable_files_and_folders_are_named() -> None:
    # Not pytest's folder: only its owner may enter that one.
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text("x")
        (folder / "closed").mkdir()
        (folder / "secret").chmod(0)
        (folder / "closed").chmod(0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(WorkspaceError) as caught:
                scan(folder)
        finally:
            if root:
                os.seteuid(0)
        assert "'secret': cannot be read (Permission denied)" in str(caught.value)
        assert "'closed': cannot be read (Permission denied)" in str(caught.value)
        (folder / "closed").chmod(0o755)
    finally:
        shutil.rmtree(folder)


def test_limits_are_exact_and_say_the_way_out(tmp_path: Path) -> None:
    checkout({"a": File(b"12345"), "b": File(b"12345")}, tmp_path / "w")
    assert len(scan(tmp_path / "w", max_files=2, max_bytes=10)) == 2
    with pytest.raises(WorkspaceError, match="more than 1 files; name a smaller folder"):
        scan(tmp_path / "w", max_files=1)
    with pytest.raises(WorkspaceError, match="larger than 9 bytes together"):
        scan(tmp_path / "w", max_bytes=9)


def test_a_checkout_goes_into_new_and_empty_folders_only(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WorkspaceError, match="not empty"):
        checkout(TREE, tmp_path / "full")
    with pytest.raises(WorkspaceError, match="cannot be used as a folder"):
        checkout(TREE, tmp_path / "file")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["x"]


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a\0"])
def test_nothing_is_written_outside(tmp_path: Path, path: str) -> None:
    for write in (checkout, write_out):
        with pytest.raises(WorkspaceError, match="inside a workspace"):
            write({path: File(b"")}, tmp_path / "w")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_nothing(tmp_path: Path) -> None:
    too_long = {"a": File(b"1"), "n" * 300: File(b"2")}
    with pytest.raises(WorkspaceError, match="File name too long"):
        checkout(too_long, tmp_path / "w")
    with pytest.raises(WorkspaceError, match="File name too long"):
        write_out(too_long, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_write_out_makes_the_whole_folder_or_none(tmp_path: Path) -> None:
    write_out(TREE, tmp_path / "out")
    assert scan(tmp_path / "out") == TREE
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_write_out_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(p.name for p in tmp_path.iterdir())
    for name in before:
        for refuse in (check_out_path, lambda out: write_out(TREE, out)):
            with pytest.raises(WorkspaceError, match="exists already"):
                refuse(tmp_path / name)
    for refuse in (check_out_path, lambda out: write_out(TREE, out)):
        with pytest.raises(WorkspaceError, match="not a folder to write in"):
            refuse(tmp_path / "no" / "out")
        with pytest.raises(WorkspaceError, match="not a folder to write in"):
            refuse(tmp_path / "file" / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "mine"
