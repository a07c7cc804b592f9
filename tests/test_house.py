"""The house: where files lie, who imports whom, what is public, what an import costs.

`python tests/test_house.py` writes the list of public names again.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ["agents", "blackboard", "console", "schemas", "supervisor"]
EXPORTS = ROOT / "tests" / "data" / "exports.txt"
MOST_LINES = 450


def modules() -> Iterator[str]:
    """Every public module and package of Kokuban, by its dotted name."""
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            names = path.relative_to(ROOT / part).with_suffix("").parts
            if names[-1] == "__init__":
                names = names[:-1]
            if not any(name.startswith("_") for name in names):
                yield ".".join(names)


def public_names() -> str:
    """One line per module that has an `__all__`, sorted."""
    lines = []
    for name in modules():
        names = getattr(importlib.import_module(name), "__all__", None)
        if names is not None:
            lines.append(f"{name}: {' '.join(sorted(names))}\n")
    return "".join(sorted(lines))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_a_piece_of_one_namespace_package(part: str) -> None:
    root = ROOT / part
    assert not (root / "__init__.py").exists()
    assert not (root / "kokuban" / "__init__.py").exists()
    assert [path.name for path in (root / "kokuban").iterdir() if path.name != "__pycache__"] == [part]
    assert list(root.rglob("py.typed")) == [root / "kokuban" / part / "py.typed"]


def test_all_parts_are_imported_from_here() -> None:
    for part in PARTS:
        module = importlib.import_module(f"kokuban.{part}")
        assert Path(str(module.__file__)).parent == ROOT / part / "kokuban" / part


@pytest.mark.parametrize("name", list(modules()))
def test_a_module_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    exported = getattr(module, "__all__", ())
    assert len(set(exported)) == len(exported)
    assert [each for each in exported if not hasattr(module, each)] == []


def test_the_public_names_are_the_listed_ones() -> None:
    assert public_names() == EXPORTS.read_text("utf-8"), "if that is meant: make exports"


def test_imports_run_one_way() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "{'nats', 'httpx', 'pydantic', 'jsonschema', 'jsonschema_rs', 'structlog', 'msgspec'}"
    code = f"import sys, kokuban.console.main; print(*sorted({heavy} & sys.modules.keys()))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_files_stay_small() -> None:
    paths = [path for folder in [*PARTS, "tests", "bench"] for path in (ROOT / folder).rglob("*.py")]
    assert paths
    long = {str(path.relative_to(ROOT)): path.read_text("utf-8").count("\n") for path in paths}
    assert {path: lines for path, lines in long.items() if lines > MOST_LINES} == {}


if __name__ == "__main__":
    EXPORTS.parent.mkdir(exist_ok=True)
    EXPORTS.write_text(public_names(), "utf-8")
    print(f"wrote {EXPORTS.relative_to(ROOT)}")
