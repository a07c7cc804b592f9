"""Trees as values: digests, packs, changes and merges, most of them as properties of any tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban.blackboard.workspace import (
    Conflicts,
    File,
    Merged,
    Mismatch,
    Tree,
    WorkspaceError,
    apply,
    changes,
    checkout,
    lines_of,
    merge,
    pack,
    tree_digest,
    unified,
    unpack,
)

names = st.sampled_from(["a", "b.py", "ü", "c d", ".x", "new\nline"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
line = st.sampled_from([b"one\n", b"two\r\n", b"\xe2\x80\xa8\n", b"\n", b"three\x0c\n", b"last", b"\xff\n", b"\0\n"])
files = st.builds(File, st.lists(line, max_size=6).map(b"".join), st.booleans())


def _no_clash(tree: dict[str, File]) -> dict[str, File]:
    return {path: file for path, file in tree.items() if not any(other.startswith(path + "/") for other in tree)}


trees = st.dictionaries(paths, files, max_size=6).map(_no_clash)
FEW = settings(max_examples=60, deadline=None)


def tree(**texts: str | bytes) -> dict[str, File]:
    return {name: File(text.encode() if isinstance(text, str) else text) for name, text in texts.items()}


@FEW
@given(trees)
def test_a_digest_does_not_depend_on_order(value: dict[str, File]) -> None:
    assert tree_digest(value) == tree_digest(dict(reversed(value.items())))


@FEW
@given(trees, trees)
def test_a_digest_names_one_tree(one: Tree, other: Tree) -> None:
    assert (tree_digest(one) == tree_digest(other)) == (dict(one) == dict(other))


def test_a_digest_is_the_documented_one_and_holds_the_mode() -> None:
    assert tree_digest({}) == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert tree_digest({"a": File(b"x")}) != tree_digest({"a": File(b"x", executable=True)})


@FEW
@given(trees)
def test_pack_and_unpack_are_a_round_trip(value: Tree) -> None:
    packed = pack(value)
    again = unpack(packed)
    assert again == value
    assert list(again) == sorted(value)
    assert pack(dict(reversed(list(value.items())))) == packed


def _packed(plain: bytes) -> bytes:
    return b"KBW1" + zlib.compress(plain)


def _listed(*entries: tuple[object, object, object], content: bytes = b"") -> bytes:
    return _packed(json.dumps(entries).encode() + b"\n" + content)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a packed workspace"),
        (b"PK\x03\x04", "not a packed workspace"),
        (b"KBW1not zlib", "decompressed"),
        (_packed(b"[]\n")[:-3], "cut short"),
        (_packed(b"[]\n") + b"more", "something follows"),
        (_packed(b"[]"), "listing"),
        (_packed(b"[[\n"), "listing"),
        (_packed(b"[" * 100_000 + b"\n"), "listing"),
        (_listed(("a", "1", False), content=b"x"), "listing"),
        (_listed(("a", -1, False)), "missing"),
        (_listed(("a", 2, False), content=b"x"), "missing"),
        (_listed(("a", 1, False), content=b"xy"), "more content"),
        (_listed(("a", 1, False), ("a", 1, False), content=b"xy"), "twice"),
        (_listed(("/etc/passwd", 0, False)), "inside a workspace"),
        (_listed(("../a", 0, False)), "inside a workspace"),
        (_listed(("a/../../b", 0, False)), "inside a workspace"),
        (_listed(("a//b", 0, False)), "inside a workspace"),
        (_listed(("./a", 0, False)), "inside a workspace"),
        (_listed(("", 0, False)), "inside a workspace"),
        (_listed(("a\0b", 0, False)), "inside a workspace"),
        (_listed(("a", 0, False), ("a/b", 0, False)), "both a file and"),
    ],
)
def test_a_pack_that_pack_never_made_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(WorkspaceError, match=why):
        unpack(data)


def test_a_bomb_is_refused_without_being_decoded() -> None:
    bomb = b"KBW1" + zlib.compress(b"\0" * 80_000_000, 9)
    assert len(bomb) < 100_000
    with pytest.raises(WorkspaceError, match="larger than 1,000,000 bytes"):
        unpack(bomb, max_bytes=1_000_000)


def test_too_many_files_are_refused() -> None:
    with pytest.raises(WorkspaceError, match="3 files; at most 2"):
        unpack(pack(tree(a="", b="", c="")), max_files=2)


@FEW
@given(trees, trees)
def test_changes_lead_exactly_from_one_tree_to_the_other(before: Tree, after: Tree) -> None:
    found = changes(before, after)
    assert apply(before, found) == after
    assert (found == ()) == (before == after)


def test_changes_made_from_something_else_are_a_mismatch_that_names_all_paths() -> None:
    base = tree(a="1", b="1", c="1")
    made = changes(base, tree(a="2", b="2", d="2"))
    assert apply(tree(a="0", b="1", d="0"), made) == Mismatch(("a", "c", "d"))
    assert apply(base, made + made[:1]) == Mismatch(("a",))


def test_changes_do_not_make_a_path_both_file_and_folder() -> None:
    made = changes({}, {"a/b": File(b"")})
    assert apply({"a": File(b"")}, made) == Mismatch(("a/b",))


def test_changes_do_not_leave_the_workspace() -> None:
    with pytest.raises(WorkspaceError, match="inside a workspace"):
        apply({}, changes({}, {"../x": File(b"")}))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git to judge the diff")
@settings(max_examples=25, deadline=None)
@given(before=trees, after=trees)
def test_git_can_apply_the_diff(tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree) -> None:
    def text_only(value: Tree) -> dict[str, File]:
        return {path: file for path, file in value.items() if not {0, 255} & set(file.content)}

    before, after = text_only(before), text_only(after)
    diff = unified(before, after)
    folder = tmp_path_factory.mktemp("git") / "w"
    checkout(before, folder)
    # Outside any repository, so that only the diff and the files count.
    env = {"GIT_CEILING_DIRECTORIES": str(folder.parent), "PATH": "/usr/bin:/bin:/usr/local/bin"}
    if diff:
        subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=folder, env=env, check=True, capture_output=True)
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    assert {path: File(p.read_bytes(), bool(p.stat().st_mode & 0o100)) for path, p in found.items()} == after
    shutil.rmtree(folder)


def test_a_diff_names_binary_files_only() -> None:
    diff = unified(tree(a=b"\0\1"), tree(a=b"\0\2"))
    assert "Binary files a/a and b/a differ" in diff
    assert "\0" not in diff


def test_a_file_name_cannot_pass_for_a_line_of_the_diff() -> None:
    diff = unified({}, {"x\n+++ b/safe": File(b"1\n")})
    assert "\n+++ b/safe" not in diff


@FEW
@given(st.lists(line.filter(lambda part: b"\xff" not in part), max_size=8).map(b"".join))
def test_lines_lose_nothing_and_end_at_line_feeds_only(content: bytes) -> None:
    lines = lines_of(content)
    assert "".join(lines).encode() == content
    assert all("\n" not in text[:-1] for text in lines)


@FEW
@given(trees, trees)
def test_merging_with_an_unchanged_side_gives_the_other(base: Tree, side: Tree) -> None:
    for sides in ([("one", side), ("same", base)], [("same", base), ("one", side)], [("one", side), ("two", side)]):
        merged = merge(base, sides)
        assert isinstance(merged, Merged)
        assert merged.tree == side
        assert set(merged.origin) == {change.path for change in changes(base, side)}


@FEW
@given(trees, trees, trees)
def test_a_merge_is_the_same_in_either_order(base: Tree, one: Tree, other: Tree) -> None:
    forward = merge(base, [("one", one), ("other", other)])
    backward = merge(base, [("other", other), ("one", one)])
    assert type(forward) is type(backward)
    if isinstance(forward, Merged) and isinstance(backward, Merged):
        assert forward.tree == backward.tree
    if isinstance(forward, Conflicts) and isinstance(backward, Conflicts):
        assert [c.path for c in forward.conflicts] == [c.path for c in backward.conflicts]


@FEW
@given(st.permutations([2, 7, 12]), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_edits_far_apart_in_one_file_merge_in_any_order(order: list[int], ending: str, last: bool) -> None:
    def text(changed: set[int]) -> str:
        lines = [f"line {n}{' changed' if n in changed else ''}" for n in range(15)]
        return ending.join(lines) + (ending if last else "")

    base = tree(f=text(set()))
    sides = [(str(n), tree(f=text({n}))) for n in order]
    merged = merge(base, sides)
    assert isinstance(merged, Merged)
    assert merged.tree == tree(f=text({2, 7, 12}))
    assert merged.origin == {"f": tuple(str(n) for n in order)}


def test_two_additions_and_a_deletion_of_different_files_merge() -> None:
    base = tree(a="1", b="1")
    merged = merge(
        base, [("x", tree(a="1", b="1", c="2")), ("y", tree(b="1")), ("z", tree(a="1", b="1", c="2", d="3"))]
    )
    assert merged == Merged(tree(b="1", c="2", d="3"), {"a": ("y",), "c": ("x", "z"), "d": ("z",)})


def test_the_executable_bit_is_merged_on_its_own() -> None:
    base = {"f": File(b"1")}
    merged = merge(base, [("x", {"f": File(b"1", executable=True)}), ("y", {"f": File(b"2")})])
    assert isinstance(merged, Merged)
    assert merged.tree == {"f": File(b"2", executable=True)}


@pytest.mark.parametrize(
    ("base", "one", "other", "path", "reason"),
    [
        (tree(a="1\n"), tree(a="2\n"), tree(a="3\n"), "a", "same lines"),
        (tree(a="1\n2\n"), tree(a="x\n2\n"), tree(a="1\ny\n"), "a", "same lines"),
        (tree(a="1\n"), tree(a="2\n"), {}, "a", "deleted"),
        (tree(a="1\n"), {}, tree(a="2\n"), "a", "deleted"),
        ({}, tree(a="1\n"), tree(a="2\n"), "a", "added on several sides"),
        (tree(a=b"\0"), tree(a=b"\0\1"), tree(a=b"\0\2"), "a", "binary"),
        (tree(a="t"), tree(a=b"\xff"), tree(a="u"), "a", "binary"),
        ({}, tree(a="1"), {"a/b": File(b"")}, "a", "folder of a/b"),
    ],
)
def test_conflicts_are_named_and_never_guessed(base: Tree, one: Tree, other: Tree, path: str, reason: str) -> None:
    for sides in ([("one", one), ("other", other)], [("other", other), ("one", one)]):
        merged = merge(base, sides)
        assert isinstance(merged, Conflicts)
        assert [(c.path, set(c.sides)) for c in merged.conflicts] == [(path, {"one", "other"})]
        assert reason in merged.conflicts[0].reason


def test_every_conflict_is_listed_with_the_sides_that_made_it() -> None:
    base = tree(a="1\n", b="1\n")
    merged = merge(base, [("x", tree(a="2\n", b="1\n")), ("y", tree(a="3\n", b="4\n")), ("z", tree(a="1\n", b="5\n"))])
    assert isinstance(merged, Conflicts)
    assert [(c.path, c.sides) for c in merged.conflicts] == [("a", ("x", "y")), ("b", ("y", "z"))]


def test_import_of_this_part_does_not_load_the_merge_library() -> None:
    code = "import sys, kokuban.blackboard.workspace; print('merge3' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
