"""Every stored record of every released schema version still folds to the same state (invariant 11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from core.golden import FOLDER, MAKERS, from_lines, summary
from kokuban.schemas import BadRecord, open_record
from kokuban.schemas.envelope import Type

HISTORIES = sorted(FOLDER.parent.glob("v*/*.jsonl"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_kept_history_folds_to_what_it_did(path: Path) -> None:
    expected = json.loads(path.with_suffix(".expected.json").read_text("utf-8"))
    assert summary(from_lines(path.read_text("utf-8")), int(path.parent.name[1:])) == expected


def test_every_type_of_record_is_kept() -> None:
    kept = set()
    for path in FOLDER.glob("*.jsonl"):
        for message in from_lines(path.read_text("utf-8")):
            try:
                kept.add(open_record(message.data).type)
            except BadRecord:
                continue
    # On another stream, and (tests/memory) in no board's state.
    elsewhere = {kind for kind in get_args(Type) if kind.startswith(("quota.", "memory."))}
    assert kept == set(get_args(Type)) - elsewhere


def test_every_history_is_there() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(MAKERS)
    assert HISTORIES
