"""Every test that the page of guarantees names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/guarantees.md").read_text("utf-8"))))


def test_the_page_names_many() -> None:
    assert len(NAMED) > 25


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_proof_is_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert not name or re.search(rf"def {name}\b", text)
