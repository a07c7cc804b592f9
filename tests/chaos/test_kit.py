"""The chaos kit's short form: real processes under faults keep every rule, and a rule broken on purpose is found out.

The long form is `python bench/chaos --tasks 200 --faults 50`; its seed is printed, and runs again with `--seed`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import linux_only

KIT = Path(__file__).parents[2] / "bench" / "chaos"
KINDS = (
    "kill worker", "kill supervisor", "kill server", "stop worker", "stop supervisor", "stop server", "cut", "hold",
    "fill", "redeliver", "skew",
)  # fmt: skip
pytestmark = linux_only


def chaos(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(KIT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    print(done.stdout, done.stderr)
    return done


def test_a_few_tasks_under_a_few_faults() -> None:
    done = chaos("--tasks", 12, "--faults", len(KINDS), "--seconds", 11, "--settle-seconds", 60, "--seed", 4)
    assert done.returncode == 0
    assert "violations: 0" in done.stdout
    for kind in KINDS:
        found_or_not = rf"[:,] {kind}( \(nothing there\))? [1-9]"
        assert re.search(found_or_not, done.stdout), kind


@pytest.mark.parametrize(
    ("name", "rule"), [("end-twice", "end-once"), ("end-otherwise", "ending"), ("unjournalled", "effect-journalled")]
)
def test_a_rule_broken_on_purpose_is_found_out(name: str, rule: str) -> None:
    done = chaos("--break", name, "--tasks", 6, "--faults", 0, "--seconds", 4, "--settle-seconds", 6, "--seed", 1)
    assert done.returncode == 1
    assert f"BROKEN {rule} at" in done.stdout
