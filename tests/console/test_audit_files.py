"""`kokuban audit` on files that are no export, however broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kokuban.blackboard.audit import Message, write_lines

Here = Callable[..., Any]


def saved(path: Path) -> list[bytes]:
    """An export of one record of no kind, and its lines."""
    lines = list(write_lines([Message(1, "elsewhere", 1.0, b"x")], {"scope": "board", "position": 1}))
    path.write_text("".join(f"{line}\n" for line in lines))
    return [line.encode() for line in lines]


def test_bytes_that_are_no_text_break_a_line(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "task.jsonl"
    lines = saved(file)
    assert here("audit", "task.jsonl").code == 0
    file.write_bytes(b"\n".join([lines[0], lines[1].replace(b"elsewhere", b"else\xff\xfe"), lines[2], b""]))
    said = here("audit", "task.jsonl")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("BROKEN: task.jsonl: line 2: not UTF-8")


@pytest.mark.parametrize("field", ["settings", "effects"])
def test_a_file_beside_that_is_no_json_is_named(here: Here, tmp_path: Path, field: str) -> None:
    saved(tmp_path / "task.jsonl")
    for content in (b"\xff", b"[" * 90_000, b"{nope"):
        (tmp_path / "beside").write_bytes(content)
        said = here("audit", "task.jsonl", f"--{field}", "beside")
        assert (said.code, said.out) == (2, "")
        assert f"{field}: beside: " in said.err
