"""An MCP server as a source of tools: started or asked, connected anew when it went away.

The official `mcp` package speaks the protocol. What the server says about its tools is a stranger's word: without a
declaration of ours each is consequential and may not be run again, whatever its annotations claim.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TextIO

import structlog

from kokuban.agents.toolbox._file import McpServer
from kokuban.agents.tools import Tool, ToolContext, ToolError

START_SECONDS = 20.0
PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV")
_NAME = re.compile(r"[^A-Za-z0-9_-]")
log = structlog.get_logger("kokuban.mcp")


class McpSource:
    """One server. `start` it, take its `tools`, `stop` it."""

    def __init__(self, name: str, server: McpServer) -> None:
        self.name = name
        self.why_not = ""
        self._server = server
        self._session: Any = None
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._tools: tuple[Any, ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, within bounds. A server that cannot be reached has no tools; it is tried again all the same."""
        self._task = asyncio.create_task(self._keep())
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            self.why_not = self.why_not or f"no answer within {START_SECONDS:g} s"
            log.warning("MCP server has no tools now", server=self.name, why=self.why_not)

    async def stop(self) -> None:
        """Disconnect, and end the server if it was started here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def tools(self) -> list[Tool]:
        """As they were listed at the first connection."""
        return [self._tool(one) for one in self._tools]

    def _tool(self, listed: Any) -> Tool:
        remote = str(listed.name)

        async def run(context: ToolContext, values: Mapping[str, Any]) -> str:
            return await self._call(remote, values)

        return Tool(
            _NAME.sub("_", f"{self.name}_{remote}")[:64], str(listed.description or "")[:4_000],
            dict(listed.inputSchema or {"type": "object"}), run, source=f"mcp:{self.name}",
            timeout_seconds=self._server.timeout_seconds,
        )  # fmt: skip

    async def _call(self, remote: str, values: Mapping[str, Any]) -> str:
        try:
            async with asyncio.timeout(min(5.0, self._server.timeout_seconds)):
                await self._ready.wait()
        except TimeoutError:
            raise ToolError(f"the server {self.name} cannot be reached now; nothing was done", transient=True) from None
        try:
            result = await self._session.call_tool(
                remote, dict(values), read_timeout_seconds=datetime.timedelta(seconds=self._server.timeout_seconds)
            )
        except Exception:
            self._broken.set()  # whether it was done nobody knows: not a ToolError, which says that it was not
            raise
        text = "\n".join(
            part.text if getattr(part, "type", "") == "text" else f"[{getattr(part, 'type', 'something')} left out]"
            for part in result.content
        )
        if result.isError:
            raise ToolError(text or f"{remote} failed without a word")
        return text

    async def _keep(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            self._broken.clear()
            try:
                async with self._connected() as session:
                    self._session = session
                    listed = await session.list_tools()
                    self._tools = self._tools or tuple(listed.tools)
                    self._ready.set()
                    pause = PAUSE_SECONDS
                    await self._until_broken(session)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # the transport's task group gives groups of errors
                self.why_not = f"{type(error).__name__}: {error}"[:300]
                log.debug("MCP server is gone", server=self.name, error=self.why_not)
            finally:
                self._ready.clear()
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    async def _until_broken(self, session: Any) -> None:
        """Until a call found it broken, or it no longer answers a ping."""
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(1.0):
                    await self._broken.wait()
            except TimeoutError:
                async with asyncio.timeout(10):
                    await session.send_ping()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        from mcp import ClientSession

        async with self._streams() as streams, ClientSession(streams[0], streams[1]) as session:
            async with asyncio.timeout(START_SECONDS):
                await session.initialize()
            yield session

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, ...]]:
        if self._server.url:
            from mcp.client.streamable_http import streamablehttp_client

            async with streamablehttp_client(self._server.url, timeout=self._server.timeout_seconds) as found:
                yield found
            return
        from mcp.client.stdio import StdioServerParameters, stdio_client

        names = (*_PASSED, *self._server.environment)
        program, *arguments = self._server.command
        environment = {name: os.environ[name] for name in names if name in os.environ}
        parameters = StdioServerParameters(command=program, args=arguments, env=environment)
        with _nowhere() as errors:
            async with stdio_client(parameters, errlog=errors) as found:
                yield found


def _nowhere() -> TextIO:
    """What a server says on its standard error is for nobody: it may hold anything."""
    return open(os.devnull, "w", encoding="utf-8")
