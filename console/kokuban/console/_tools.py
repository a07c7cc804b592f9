"""tools: what models may call, and what its description lacks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kokuban.console import _errors
from kokuban.console._options import PATH, json_option
from kokuban.console._terminal import json_line, one_line, put

if TYPE_CHECKING:
    from kokuban.agents.tools import Tool


class _There(NamedTuple):
    """The tools that can be used, and why others cannot, by name."""

    tools: tuple[Tool, ...]
    troubles: dict[str, str]


PATIENCE_SECONDS = 20.0
"""How long a server is waited for: who looks once wants to see what it has."""

tools_option = click.option(
    "--tools", "tools_file", type=PATH, metavar="FILE", envvar="KOKUBAN_TOOLS",
    help="Python modules and MCP servers, beside the built-in tools (TOML; see docs/tools.md).",
)  # fmt: skip


@click.group(cls=_errors.Group, name="tools")
def tools() -> None:
    """Tools: what models may call, and what is wrong with them."""


@tools.command("list", epilog="Example: kokuban tools list --tools tools.toml")
@tools_option
@json_option
def list_tools(tools_file: Path | None, as_json: bool) -> None:
    """Show all tools, a line each: name, tier, effect, source, version, timeout.

    Those that cannot be used are there with the reason. MCP servers in FILE are connected to.
    """
    there = _open(tools_file)
    for tool in there.tools:
        value = {
            "name": tool.name, "tier": tool.tier, "effect": tool.effect, "source": tool.source,
            "version": tool.version, "timeout_seconds": tool.timeout_seconds, "secrets": list(tool.secrets),
            "description": tool.description, "disabled": None,
        }  # fmt: skip
        text = f"{tool.name}  {tool.tier}  {tool.effect}  {tool.source}  {tool.version}  {tool.timeout_seconds:g} s"
        _line(as_json, value, text)
    for name, why in there.troubles.items():
        _line(as_json, {"name": name, "disabled": why}, f"{name}  disabled: {why}")


@tools.command("check", epilog="Example: kokuban tools check --tools tools.toml")
@tools_option
@json_option
def check_tools(tools_file: Path | None, as_json: bool) -> None:
    """Say what the tools' descriptions lack, and which cannot be used.

    A description says what the tool returns and when not to use it, and describes each parameter. Exit code 1 when
    something is wrong with a tool that is not built in.
    """
    from kokuban.agents.toolbox import lacking

    there = _open(tools_file)
    findings = [(tool.name, tool.source, said) for tool in there.tools for said in lacking(tool)]
    findings += [(name, "file", f"it cannot be used: {why}") for name, why in there.troubles.items()]
    for name, source, said in findings:
        _line(as_json, {"tool": name, "source": source, "finding": said}, f"{name}  {said}")
    if not as_json:
        put(f"{len(there.tools)} tools, {len(findings)} findings")
    if any(source != "built-in" for _, source, _ in findings):
        raise click.exceptions.Exit(1)


def _open(file: Path | None) -> _There:
    from kokuban.agents.tools import BUILT_IN_TOOLS
    from kokuban.console._logging import configure_logging

    configure_logging()
    return _There(BUILT_IN_TOOLS, {}) if file is None else asyncio.run(_of(file))


async def _of(file: Path) -> _There:
    from kokuban.agents.toolbox import Toolbox

    async with Toolbox.open(file, patience_seconds=PATIENCE_SECONDS) as box:
        troubles = dict(box.disabled)
        known = {tool.name for tool in (*box.built_in, *box.tools)} | troubles.keys()
        troubles |= dict.fromkeys(box.file.tool.keys() - known, "the file declares it, and it is not there")
        for tool in box.tools:
            unnamed = [name for name in tool.secrets if name not in box.file.secret]
            if unnamed:
                troubles[tool.name] = f"its credentials have no [secret.NAME] in the file: {', '.join(unnamed)}"
        return _There((*box.built_in, *box.tools), dict(sorted(troubles.items())))


def _line(as_json: bool, value: dict[str, Any], text: str) -> None:
    put(json_line(json.dumps(value).encode()) if as_json else one_line(text, 400))
