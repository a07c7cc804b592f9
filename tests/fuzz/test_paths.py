"""Paths that models and strangers write: whatever they are, nothing outside the folder is touched, and what is written
is what is read."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.tools import BUILT_IN_TOOLS, Arguments, Invalid, Registry, ToolContext, execute
from kokuban.blackboard.workspace import File, WorkspaceError, checkout, scan
from support.file_uses import SECRET, USES
from support.fuzz import fuzz, in_time

pytestmark = in_time

REGISTRY = Registry(BUILT_IN_TOOLS)
PARTS = st.sampled_from(
    ["", ".", "..", "...", "~", "a", "b", "A", "link", "away", "f.py", "out", ".git", ".kokuban", "a b", "-rf",
     "%2e%2e", "\u2025", "\uff0e\uff0e", "a\u0301", "\u00e1", "..\\", "C:", "\0", "\ud83d", "\n", "\u202e", "x" * 255,
     "y" * 256, "$HOME", "*", "proc", "self", "environ", "tmp"]
) | st.text(max_size=5)  # fmt: skip
PATHS = st.builds(
    lambda first, parts, last, times: first + "/".join(parts * times) + last,
    st.sampled_from(["", "/", "//", "./", "../", "file:///", "\\\\"]), st.lists(PARTS, max_size=6),
    st.sampled_from(["", "/", "/.", "\0"]), st.sampled_from([1, 1, 1, 1, 2, 60, 700]),
)  # fmt: skip


def _outside(top: Path) -> dict[str, bytes]:
    inside = top / "checkout"
    files = (path for path in top.rglob("*") if not path.is_relative_to(inside) and path.is_file())
    return {str(path): path.read_bytes() for path in files}


@fuzz
@given(st.lists(st.tuples(st.sampled_from(sorted(USES)), PATHS), min_size=1, max_size=5))
def test_no_path_leads_out_of_a_checkout(uses: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        here = ToolContext(top / "checkout", top / "home")
        for place in (top / "out", here.checkout / "a/b", here.home):
            place.mkdir(parents=True)
        (top / "out/f.py").write_text(SECRET)
        (here.checkout / "a/f.py").write_text("mine")
        (here.checkout / "link").symlink_to("../out")
        (here.checkout / "a/away").symlink_to(top / "out/f.py")
        before = _outside(top)
        asyncio.run(_used(here, uses))
        assert {path: text for path, text in _outside(top).items() if "/home/" not in path} == before
        assert {path.name for path in top.iterdir()} == {"checkout", "home", "out"}


async def _used(here: ToolContext, uses: list[tuple[str, str]]) -> None:
    for name, path in uses:
        judged = REGISTRY.validate(name, USES[name](path))
        if isinstance(judged, Invalid):
            assert len(judged.text.encode()) < 4_000
            continue
        assert isinstance(judged, Arguments)
        seen = await execute(judged, here)
        assert SECRET not in seen.text
        assert "failed (" not in seen.text, seen.text
        assert len(seen.text) < 3_000


@fuzz
@given(st.dictionaries(PATHS, st.builds(File, st.binary(max_size=8), st.booleans()), max_size=6))
def test_a_tree_is_written_as_it_is_or_not_at_all(tree: dict[str, File]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        into = top / "into"
        try:
            checkout(tree, into)
        except WorkspaceError:
            assert not into.exists() or not any(into.iterdir())
        else:
            assert scan(into) == {path: file for path, file in sorted(tree.items()) if not _left_out(path)}
        assert {path.name for path in top.iterdir()} <= {"into"}


def _left_out(path: str) -> bool:
    return any(part in {".git", ".kokuban"} for part in path.split("/"))


@pytest.mark.parametrize("name", USES)
def test_every_use_works_for_an_honest_path(name: str) -> None:
    """So that the target above does not pass because nothing works."""
    with tempfile.TemporaryDirectory() as folder:
        here = ToolContext(Path(folder) / "checkout", Path(folder) / "home")
        (here.checkout / "a").mkdir(parents=True)
        (here.checkout / "a/f.py").write_text(f'x = "{SECRET}"\n')
        judged = REGISTRY.validate(name, USES[name]("a" if "folder" in USES[name]("") else "a/f.py"))
        assert isinstance(judged, Arguments)
        assert asyncio.run(execute(judged, here)).ok
