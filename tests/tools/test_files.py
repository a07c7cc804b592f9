"""The file tools: useful inside the checkout, and without any way out of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kokuban.agents.tools import BUILT_IN_TOOLS, Arguments, Registry, ToolContext, execute
from kokuban.agents.tools._contained import Contained
from kokuban.agents.tools._errors import ToolError
from kokuban.blackboard.workspace import File, scan

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]
REGISTRY = Registry(BUILT_IN_TOOLS)


async def call(context: ToolContext, name: str, **arguments: Any) -> str:
    judged = REGISTRY.validate(name, arguments)
    assert isinstance(judged, Arguments), judged
    seen = await execute(judged, context)
    assert seen.ok, seen.text
    return seen.text


async def refused(context: ToolContext, name: str, **arguments: Any) -> str:
    judged = REGISTRY.validate(name, arguments)
    assert isinstance(judged, Arguments), judged
    before = scan(context.checkout)
    seen = await execute(judged, context)
    assert not seen.ok, seen.text
    assert scan(context.checkout) == before
    return seen.text


async def test_listing_shows_files_sorted_and_one_folder(context: Make) -> None:
    here = context()
    (here.checkout / ".git").mkdir()
    (here.checkout / ".git/config").write_text("x")
    assert await call(here, "list_files") == (
        "README.md (7 bytes)\nsrc/app.py (66 bytes)\nsrc/dos.txt (10 bytes)\ntests/test_app.py (20 bytes)"
    )
    assert await call(here, "list_files", folder="./src/") == "src/app.py (66 bytes)\nsrc/dos.txt (10 bytes)"
    assert "there is no 'nowhere'" in await refused(here, "list_files", folder="nowhere")


async def test_a_long_listing_says_how_many_more(context: Make) -> None:
    here = context({f"f{n:04}": "" for n in range(600)})
    assert (await call(here, "list_files")).endswith("… and 100 more; list one folder to see fewer")


async def test_reading_in_pages(context: Make) -> None:
    here = context({"a.txt": "".join(f"line {n}\n" for n in range(1, 1_001)), "empty": "", "end": "x"})
    first = await call(here, "read_file", path="a.txt", max_lines=2)
    assert first == "a.txt, lines 1-2 of 1000:\nline 1\nline 2\n\n(more: read_file with start_line 3)"
    assert (
        await call(here, "read_file", path="a.txt", start_line=1_000) == "a.txt, lines 1000-1000 of 1000:\nline 1000\n"
    )
    assert "only 1,000 lines" in await refused(here, "read_file", path="a.txt", start_line=1_001)
    assert await call(here, "read_file", path="empty") == "empty, lines 1-1 of 1:\n"
    assert await call(here, "read_file", path="end") == "end, lines 1-1 of 1:\nx"


async def test_every_line_can_be_reached_page_by_page(context: Make) -> None:
    text = "".join(f"{n} {'é' * (n % 300)}\n" for n in range(500))
    here = context({"a.txt": text})
    seen, start = "", 1
    while start:
        page = await call(here, "read_file", path="a.txt", start_line=start)
        assert len(page.encode()) <= 16_384
        assert "bytes in all" not in page
        body = page.partition(":\n")[2]
        more = body.rpartition("\n(more: read_file with start_line ")
        seen += more[0] or body
        start = int(more[2].rstrip(")")) if more[0] else 0
    assert seen == text


async def test_one_endless_line_is_bounded(context: Make) -> None:
    page = await call(context({"a": "x" * 1_000_000 + "\nb\n"}), "read_file", path="a")
    assert len(page.encode()) < 16_384
    assert page.endswith("(more: read_file with start_line 2)")


async def test_missing_folders_binaries_and_large_files_are_explained(context: Make) -> None:
    here = context({"a/b": "x", "bin": b"\0\1", "big": b"x" * (8 * 2**20 + 1)})
    assert "list_files shows what there is" in await refused(here, "read_file", path="nope.py")
    assert "is a folder" in await refused(here, "read_file", path="a")
    assert "not text (2 bytes)" in await refused(here, "read_file", path="bin")
    assert "larger than" in await refused(here, "read_file", path="big")


async def test_searching_literal_text(context: Make) -> None:
    here = context({"a.py": "x = f(1)\ny = f(2)\n", "b/c.py": "z = F(1)\n", "bin": b"\0f(1)"})
    assert await call(here, "search_files", text="f(") == "a.py:1: x = f(1)\na.py:2: y = f(2)"
    assert await call(here, "search_files", text="(1)", folder="b") == "b/c.py:1: z = F(1)"
    assert "No line contains" in await call(here, "search_files", text=".*")
    (here.checkout / "many").write_text("hit\n" * 70)
    assert (await call(here, "search_files", text="hit")).endswith(
        "… and 20 more; search for a longer text or in one folder"
    )


async def test_writing_new_and_old_files(context: Make) -> None:
    here = context()
    assert (
        await call(here, "write_file", path="./new/deep//x.py", content="a\nb") == "Wrote ./new/deep//x.py (2 lines)."
    )
    assert (here.checkout / "new/deep/x.py").read_text() == "a\nb"
    os.chmod(here.checkout / "README.md", 0o755)
    assert await call(here, "write_file", path="README.md", content="") == "Replaced README.md (0 lines)."
    assert scan(here.checkout)["README.md"] == File(b"", executable=True)
    assert "cannot be used" in await refused(here, "write_file", path="README.md/x", content="")
    assert "is a folder" in await refused(here, "write_file", path="src", content="")
    assert "File name too long" in await refused(here, "write_file", path="n" * 300, content="")
    assert sorted(p.name for p in here.checkout.iterdir()) == ["README.md", "new", "src", "tests"]


async def test_editing_exactly_one_place(context: Make) -> None:
    here = context()
    assert await call(
        here, "edit_file", path="src/app.py", old="add(a, b):\n    return a - b", new="add(a, b):\n    return a + b"
    )
    assert "def add(a, b):\n    return a + b\n" in (here.checkout / "src/app.py").read_text()


async def test_editing_keeps_the_line_ends_of_the_file(context: Make) -> None:
    here = context()
    await call(here, "edit_file", path="src/dos.txt", old="one\ntwo", new="1\n2\n3")
    assert (here.checkout / "src/dos.txt").read_bytes() == b"1\r\n2\r\n3\r\n"


async def test_an_edit_that_cannot_be_made_says_what_there_is(context: Make) -> None:
    here = context()
    several = await refused(here, "edit_file", path="src/app.py", old="return a - b", new="x")
    assert "2 times" in several
    assert "lines 2, 6" in several
    missing = await refused(here, "edit_file", path="src/app.py", old="def add(x, y):\n  return a-b", new="x")
    assert "lines 1-2, is:\ndef add(a, b):\n    return a - b\n" in missing
    assert "same text" in await refused(here, "edit_file", path="src/app.py", old="a", new="a")
    assert "there is no" in await refused(here, "edit_file", path="src/no.py", old="a", new="b")
    (here.checkout / "empty").write_text("")
    assert "not in empty" in await refused(here, "edit_file", path="empty", old="a", new="b")


async def test_deleting_a_file_and_the_folders_it_leaves_empty(context: Make) -> None:
    here = context({"a/b/c.txt": "x", "d.txt": "x", "e/f": "x", "e/g": "x"})
    await call(here, "delete_file", path="a/b/c.txt")
    await call(here, "delete_file", path="e/f")
    assert sorted(p.name for p in here.checkout.iterdir()) == ["d.txt", "e"]
    assert "is a folder" in await refused(here, "delete_file", path="e")
    assert "there is no" in await refused(here, "delete_file", path="zz")
    await call(here, "write_file", path="a", content="now a file")


async def test_checks_cannot_be_touched_and_the_model_is_told_what_to_do(context: Make) -> None:
    here = context(checks=("python -m pytest -q",))
    for name, arguments in [
        ("write_file", {"content": "def test_add(): pass\n"}),
        ("edit_file", {"old": "...", "new": "pass"}),
        ("delete_file", {}),
    ]:
        text = await refused(here, name, path="./tests//test_app.py", **arguments)
        assert "part of the checks" in text
        assert "change the code" in text
    assert "take over" in await refused(here, "write_file", path="conftest.py", content="")
    await call(here, "write_file", path="tests/test_more.py", content="def test_more(): ...\n")
    await call(here, "edit_file", path="tests/test_more.py", old="...", new="pass")


OUTSIDE = (
    "/etc/passwd",
    "../secret",
    "src/../../secret",
    "~/x",
    "C:/x",
    "..",
    "a/..",
    "src\\app.py",
    "a\0b",
    "a\nb",
    "\ud800",
)


@pytest.mark.parametrize("path", [*OUTSIDE, "", ".", "/", "src/", ".git/hooks/pre-commit", "a/__pycache__/x", "x.pyc"])
async def test_no_path_leads_out(context: Make, tmp_path: Path, path: str) -> None:
    here = context()
    (tmp_path / "secret").write_text("secret")
    before = scan(tmp_path)
    with Contained(here.checkout) as files:
        for use in (files.read, files.delete, lambda p: files.write(p, File(b"x"))):
            with pytest.raises(ToolError):
                use(path)
    assert scan(tmp_path) == before


@pytest.mark.parametrize("link", ["file", "folder", "dangling", "inside", "inside_folder", "self", "root"])
async def test_no_link_is_followed(context: Make, tmp_path: Path, link: str) -> None:
    here = context()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret").write_text("secret")
    targets: dict[str, str | Path] = {
        "file": tmp_path / "out/secret", "folder": tmp_path / "out", "dangling": tmp_path / "out/new",
        "inside": "README.md", "inside_folder": "src", "self": "self", "root": "/",
    }  # fmt: skip
    (here.checkout / link).symlink_to(targets[link])
    before = scan(tmp_path / "out"), (here.checkout / "README.md").read_bytes()
    with Contained(here.checkout) as files:
        for path in (link, f"{link}/secret", f"{link}/app.py", f"{link}/new"):
            for use in (files.read, files.delete, lambda p: files.write(p, File(b"x"))):
                with pytest.raises(ToolError):
                    use(path)
        assert not [path for path, _ in files.walk() if link in path]
        with pytest.raises(ToolError):
            list(files.walk(link))
    assert (scan(tmp_path / "out"), (here.checkout / "README.md").read_bytes()) == before


async def test_special_files_block_nothing_and_hard_links_are_not_written_through(
    context: Make, tmp_path: Path
) -> None:
    here = context()
    os.mkfifo(here.checkout / "pipe")
    (tmp_path / "outside").write_text("mine")
    os.link(tmp_path / "outside", here.checkout / "hard")
    with Contained(here.checkout) as files:
        with pytest.raises(ToolError, match="not a regular file"):
            files.read("pipe")
        with pytest.raises(ToolError, match="special file"):
            files.write("pipe", File(b""))
        files.write("hard", File(b"new"))
        assert files.read("hard").content == b"new"
    assert (tmp_path / "outside").read_text() == "mine"


pieces = st.lists(
    st.sampled_from(["..", ".", "", "a", "src", "app.py", "out", "link", "~", "\\", "\0", "…", ".git"]), max_size=6
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=pieces, absolute=st.booleans())
def test_whatever_the_path_nothing_outside_changes(tmp_path: Path, parts: list[str], absolute: bool) -> None:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True, exist_ok=True)
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "app.py").write_text("secret")
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(tmp_path / "out")
    path = ("/" if absolute else "") + "/".join(parts)
    with Contained(root) as files:
        for use in (
            files.read,
            lambda p: files.write(p, File(b"written")),
            files.delete,
            lambda p: list(files.walk(p)),
        ):
            try:
                assert use(path) != File(b"secret")
            except ToolError:
                pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "root"]
    assert [(p.name, p.read_text()) for p in (tmp_path / "out").iterdir()] == [("app.py", "secret")]
    assert (root / "link").is_symlink()
