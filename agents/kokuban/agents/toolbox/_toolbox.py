"""All tools of a file, ready to use."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from kokuban.agents.toolbox._file import InvalidToolbox, ToolboxFile, parse_toolbox
from kokuban.agents.toolbox._mcp import PATIENCE_SECONDS, McpSource
from kokuban.agents.tools import BUILT_IN_TOOLS, Registry, Tool, ToolError
from kokuban.blackboard.redaction import conceal

SECRET_PREFIX = "KOKUBAN_SECRET_"
log = structlog.get_logger("kokuban.tools")


class Toolbox:
    """`built_in` are the tools that come with Kokuban, as the file declares them; `tools` all others that may be used,
    `disabled` those that may not, each with the reason. Both grow when a server comes that was not there. Use
    `Toolbox.open`."""

    def __init__(self, file: ToolboxFile, tools: Sequence[Tool], sources: Sequence[McpSource] = ()) -> None:
        self.file = file
        self.built_in = tuple(self._declared(tool) for tool in BUILT_IN_TOOLS)
        self._own, self._sources = tools, sources
        self._judge()

    @property
    def tools(self) -> tuple[Tool, ...]:
        self._look()
        return self._tools

    @property
    def disabled(self) -> dict[str, str]:
        self._look()
        absent = {f"{s.name}_*": s.why_not for s in self._sources if not s.connected and s.why_not}
        return self._disabled | absent

    def _look(self) -> None:
        if self._there != [source.connected for source in self._sources]:
            self._judge()

    def _judge(self) -> None:
        self._there = [source.connected for source in self._sources]
        self._disabled: dict[str, str] = {}
        usable = Registry(self.built_in)
        found: list[Tool] = []
        for tool in (*self._own, *(tool for source in self._sources for tool in source.tools)):
            mended = self._declared(tool)
            try:
                usable.add(mended)
            except ToolError as error:  # one that cannot be used takes nothing away from the others
                self._disabled[tool.name] = str(error)
                log.warning("tool is disabled", tool=tool.name, source=tool.source, why=str(error))
            else:
                found.append(mended)
        self._tools = tuple(found)

    def _declared(self, tool: Tool) -> Tool:
        """The tool with what the file says of it."""
        declared = self.file.tool.get(tool.name)
        return dataclasses.replace(tool, **declared.model_dump(exclude_none=True)) if declared else tool

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, more: Sequence[Tool] = (), *, patience_seconds: float = PATIENCE_SECONDS
    ) -> AsyncIterator[Toolbox]:
        """Read the file, import its modules, connect to its servers; let go of them at the end. `more` are tools of the
        caller's own, `patience_seconds` is what all servers together are waited for. Raises `InvalidToolbox`."""
        try:
            file = parse_toolbox(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidToolbox(f"tools: {path} cannot be read ({type(error).__name__}); name a file") from error
        folder = path.absolute().parent
        tools = [*more, *(tool for module in file.python for tool in _of_module(module, folder))]
        seconds = {name: d.timeout_seconds for name, d in file.tool.items() if d.timeout_seconds is not None}
        sources = [McpSource(name, server, folder, seconds) for name, server in file.mcp.items()]
        try:
            await asyncio.gather(*(source.start(patience_seconds) for source in sources))
            box = cls(file, tools, sources)
            known = {*(tool.name for tool in (*box.built_in, *box.tools)), *box.disabled}
            absent = tuple(f"{source.name}_" for source in sources if not source.connected)
            unknown = sorted(name for name in file.tool if name not in known and not name.startswith(absent))
            if unknown:
                log.warning("declared tools are not there", tools=unknown)
            yield box
        finally:
            for source in reversed(sources):
                await source.stop()

    def secrets(
        self, tool: Tool, tenant: str, principal: str, environment: Mapping[str, str] = os.environ
    ) -> dict[str, str]:
        """The credentials that this tool declared, for a task of this tenant and person. Raises `ToolError` (terminal)
        for one that is not for them, or not there; it names no value."""
        found: dict[str, str] = {}
        for name in tool.secrets:
            scope = self.file.secret.get(name)
            allowed = (
                scope is not None
                and (not scope.tenants or tenant in scope.tenants)
                and (not scope.principals or principal in scope.principals)
            )
            value = environment.get(f"{SECRET_PREFIX}{name}", "")
            if not allowed or not value:
                why = "is not for this task's tenant and person" if not allowed else "is not set on this worker"
                raise ToolError(f"the credential {name} {why}", terminal=True)
            conceal(name, value)
            found[name] = value
        return found


def _of_module(name: str, folder: Path) -> list[Tool]:
    place = str(folder)
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # the user's own code
        raise InvalidToolbox(f"python: module {name!r} cannot be imported from {place}: {error!r}") from error
    found = [item for item in vars(module).values() if isinstance(item, Tool)]
    if not found:
        raise InvalidToolbox(f"python: module {name!r} has no tool; make one with @tool")
    return found
