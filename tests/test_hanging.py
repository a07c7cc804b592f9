"""A test that hangs fails by its name within its limit, its fixtures clean up if they can, and the run ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
import asyncio, pathlib, pytest

pytestmark = pytest.mark.anyio

@pytest.fixture
async def thing():
    yield
    pathlib.Path("cleaned").touch()

@pytest.fixture
async def stuck():
    yield
    await asyncio.Event().wait()

async def test_body(thing):
    await asyncio.Event().wait()

async def test_cleanup(stuck):
    pass

async def test_after(thing):
    pass
"""


@pytest.mark.parametrize(
    ("names", "says", "goes_on"),
    [
        ("body or after", "AssertionError: test_body[asyncio] hangs", True),
        ("cleanup or after", "test_file.py::test_cleanup[asyncio] hangs: it and its fixtures were not over", False),
    ],
)
def test_what_hangs_is_named_and_the_run_ends(names: str, says: str, goes_on: bool, tmp_path: Path) -> None:
    (tmp_path / "test_file.py").write_text(FILE)
    words = ["-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--timeout", "10", "-k", names, "test_file.py"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=kept | {"PYTHONPATH": str(Path(__file__).parent), "COLUMNS": "200"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert says in ran.stdout
    assert ("1 failed, 1 passed" in ran.stdout) == goes_on
    assert (tmp_path / "cleaned").exists() == goes_on
