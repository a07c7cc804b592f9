"""A context with a small workspace for every test of tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.tools import ToolContext
from kokuban.blackboard.workspace import File, checkout

FILES = {
    "README.md": "# Demo\n",
    "src/app.py": "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n",
    "src/dos.txt": "one\r\ntwo\r\n",
    "tests/test_app.py": "def test_add(): ...\n",
}


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., ToolContext]:
    """Makes a context; keyword arguments replace its fields, `files` the texts of its workspace."""

    def make(files: dict[str, str | bytes] | None = None, **fields: Any) -> ToolContext:
        texts = FILES if files is None else files
        tree = {path: File(text.encode() if isinstance(text, str) else text) for path, text in texts.items()}
        checkout(tree, tmp_path / "checkout")
        return ToolContext(**{"checkout": tmp_path / "checkout", "home": tmp_path / "home", "base": tree, **fields})

    return make
