"""Which tests a check says fail: what a round of writing is measured by."""

from __future__ import annotations

import pytest

from kokuban.agents.roles._coding import _FAILING


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("ERROR: test_a (t.T.test_a)\nRan 2 tests in N s\n\nFAILED (errors=5)\n", ["test_a (t.T.test_a)"]),
        ("FAIL: test_a (t.T.test_a)\nFAILED (failures=1)\n", ["test_a (t.T.test_a)"]),
        ("FAILED tests/test_a.py::test_b - assert 1 == 2\n1 failed in N s\n", ["tests/test_a.py::test_b"]),
        ("all is well\n", []),
    ],
)
def test_names_of_failing_tests_do_not_carry_counts_or_messages(output: str, names: list[str]) -> None:
    assert _FAILING.findall(output) == names
