"""The table of cases names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_that_the_table_names_is_there() -> None:
    rows = (TESTS / "cases" / "README.md").read_text("utf-8").splitlines()
    missing: list[str] = []
    for row in (row for row in rows if row.startswith("| ")):
        file = TESTS
        for name in re.findall(r"`([^`]+)`", row):
            path, _, test = name.partition("::")
            file = TESTS / path if path else file
            if not file.is_file() or (test and f"def {test}(" not in file.read_text("utf-8")):
                missing.append(name)
    assert missing == []
    assert sum(row.startswith(("| D", "| E")) for row in rows) == 14
