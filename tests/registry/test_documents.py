"""What docs/roles.md and the examples say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from kokuban.schemas import subjects
from kokuban.schemas._user_schema import MAX_EXPANDED, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH
from kokuban.schemas.contracts import Contract

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "roles.md").read_text("utf-8")
DECISION = (ROOT / "docs" / "adr" / "0011-registered-roles-and-kinds.md").read_text("utf-8")
EXAMPLES = ROOT / "examples" / "custom-role"


def test_the_page_names_every_field_of_a_contract() -> None:
    assert [field for field in Contract.model_fields if f"`{field}" not in PAGE and f"[{field}]" not in PAGE] == []


def test_the_page_spells_subjects_as_the_grammar_does() -> None:
    for subject in (
        subjects.work("<task>", "<role>", "<step>"), subjects.register("<task>", "<role>", "<step>"),
        subjects.journal("<task>", "<role>", "<step>"), subjects.heartbeat("<role>", "<worker>"),
        subjects.stopped("<task>", "<role>", "<step>"), subjects.MEMBERS_API,
    ):  # fmt: skip
        assert f"`{subject}`" in PAGE


def test_the_limits_are_the_codes() -> None:
    assert f"at most {MAX_SCHEMA_BYTES // 1024} KiB" in PAGE
    assert f"{MAX_SCHEMA_BYTES // 1024} KiB, {MAX_SCHEMA_DEPTH} levels and {MAX_EXPANDED:,} subschemas" in DECISION


def test_the_program_in_another_language_has_no_kokuban_code_and_stays_small() -> None:
    for program in ("indexer.mjs", "credential.mjs"):
        text = (EXAMPLES / program).read_text("utf-8")
        assert text.count("\n") <= 250
        for name in re.findall(r'^import .* from "(.*)";$', text, re.MULTILINE):
            assert name.startswith("node:") or name == "./credential.mjs", name
