"""The bench of the loop, made small: it runs with real processes and reports what it says it measures."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from support.processes import linux_only

BENCH = Path(__file__).parents[2] / "bench" / "loop"
pytestmark = [pytest.mark.anyio, linux_only]


async def test_a_short_run_reports_turns_publishes_and_memory(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    sizes = ["--rounds", "1", "--turns", "3", "--idle", "2", "--busy", "2", "--json", str(report)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(BENCH), *sizes, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()
    found = json.loads(report.read_text())
    for sync in ("default", "always"):
        row = found[sync]
        assert row["turns"] == 3
        assert 0 < row["turn_ms"]["p50"] <= row["turn_ms"]["p99"]
        assert row["bare_publish_ms"]["p50"] > 0
        assert row["line_bytes"] > 200
    assert list(found["memory_mb"]) == ["nothing", "2 idle", "2 idle, 2 busy (most)"]
    assert all(0 < mb["pss"] <= mb["rss"] for mb in found["memory_mb"].values())
