"""How many examples a fuzz target tries: 100 in the suite, always the same ones; `make fuzz` tries 10,000 new ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("KOKUBAN_FUZZ_EXAMPLES", "100"))
SECONDS = 10.0
"""No single example may take longer; most take a millisecond."""
fuzz = settings(
    max_examples=EXAMPLES, deadline=SECONDS * 1_000, derandomize=EXAMPLES <= 100, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
in_time = pytest.mark.timeout(max(120, EXAMPLES))
