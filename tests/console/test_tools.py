"""`kokuban tools`: what there is, and what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.tools import BUILT_IN_TOOLS

Here = Callable[..., Any]
SERVER = str(Path(__file__).parents[1] / "toolbox" / "mcp_server.py")
GOOD = """
from typing import Annotated
from pydantic import Field
from kokuban.agents.tools import tool

@tool(tier="read", effect="read")
def rate(currency: Annotated[str, Field(description="Three letters.")]) -> str:
    "Look up a rate. Returns it as text. Not for dates in the past."
    return "1"
"""
BAD = """
from kokuban.agents.tools import tool

@tool()
def pay(amount: int) -> str:
    "Pay."
    return ""

@tool(name="pay out", secrets=("X",))
def other() -> str:
    return ""

@tool(secrets=("BANK",))
def quiet() -> str:
    return ""
"""


def file_with(folder: Path, module: str, text: str, more: str = "") -> str:
    (folder / f"{module}.py").write_text(text, "utf-8")
    (folder / "tools.toml").write_text(f'python = ["{module}"]\n{more}', "utf-8")
    return str(folder / "tools.toml")


def test_the_built_in_tools_are_listed_and_lack_nothing(here: Here) -> None:
    shown = here("tools", "list", "--json")
    assert shown.code == 0
    assert [line["name"] for line in shown.objects] == [tool.name for tool in BUILT_IN_TOOLS]
    checked = here("tools", "check")
    assert (checked.code, checked.out) == (0, f"{len(BUILT_IN_TOOLS)} tools, 0 findings\n")


def test_tools_of_a_file_as_they_are_declared(here: Here, tmp_path: Path) -> None:
    more = '[tool.rate]\ntimeout_seconds = 5\n[tool.write_file]\ntier = "consequential"\n'
    file = file_with(tmp_path, "good_tools_listed", GOOD, more)
    lines = here("tools", "list", "--tools", file).out.splitlines()
    assert lines[-1].split() == ["rate", "read", "read", "python:good_tools_listed", "1", "5", "s"]
    assert any(line.split()[:4] == ["write_file", "consequential", "keyed", "built-in"] for line in lines)
    assert here("tools", "check", "--tools", file).code == 0


def test_findings_are_named_and_fail(here: Here, tmp_path: Path) -> None:
    more = '[tool.not_there]\ntier = "read"\n'
    checked = here("tools", "check", "--tools", file_with(tmp_path, "bad_tools_checked", BAD, more), "--json")
    assert checked.code == 1
    said: dict[str, str] = {}
    for one in checked.objects:
        said[one["tool"]] = said.get(one["tool"], "") + one["finding"]
    assert "what it returns" in said["pay"]
    assert "when not to use it" in said["pay"]
    assert "'amount'" in said["pay"]
    assert "cannot be named" in said["pay out"]
    assert "no description" in said["quiet"]
    assert "BANK" in said["quiet"]
    assert "not there" in said["not_there"]


def test_tools_of_a_server_are_listed_and_judged_as_strangers(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(f'[mcp.s]\ncommand = ["{sys.executable}", "{SERVER}", "stdio"]\n', "utf-8")
    shown = here("tools", "list", "--tools", file).out.splitlines()
    assert sum("mcp:s" in line and "consequential" in line and "other" in line for line in shown) == 12
    checked = here("tools", "check", "--tools", file)
    assert checked.code == 1
    assert "s_add" in checked.out
    assert "does not say when not to use it" in checked.out


@pytest.mark.parametrize("text", ["a = ", '[tool.x]\ntier = "harmless"'])
def test_a_file_that_cannot_be_used_is_a_usage_error(here: Here, tmp_path: Path, text: str) -> None:
    (tmp_path / "tools.toml").write_text(text, "utf-8")
    for command in ("list", "check"):
        shown = here("tools", command, "--tools", tmp_path / "tools.toml")
        assert shown.code == 2
        assert "tools.toml" in shown.err
