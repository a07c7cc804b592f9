"""An MCP server as a source of tools: started or asked, connected anew when it went away.

The official `mcp` package speaks the protocol. What the server says about its tools is a stranger's word: without a
declaration of ours each is consequential and may not be run again, whatever its annotations claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec
import structlog

from kokuban.agents.sandbox import clip
from kokuban.agents.toolbox._file import McpServer
from kokuban.agents.toolbox._results import text_of
from kokuban.agents.tools import Tool, ToolContext, ToolError
from kokuban.schemas import digest

PATIENCE_SECONDS = 5.0
"""How long a worker that starts waits for a server: one that comes later has its tools then."""
START_SECONDS, GRACE_SECONDS = 20.0, 3.0
PING_EVERY_SECONDS, PING_SECONDS = 1.0, 10.0
PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
MAX_TOOLS = 500
MAX_PAGES = 50
MAX_RESULT_BYTES = 1_000_000
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV")
_NAME = re.compile(r"[^A-Za-z0-9_-]")
_QUERY = re.compile(r"\?[^\s'\"<>]*")
_TIMED_OUT, _CLOSED, _TERMINATED = 408, -32000, 32600  # what the package itself says in the name of the server
log = structlog.get_logger("kokuban.mcp")


class McpSource:
    """One server. `start` it, take its `tools`, `stop` it. `folder`: where it is started; `timeouts`: seconds that a
    person declared, by a tool's name here."""

    def __init__(
        self, name: str, server: McpServer, folder: Path, timeouts: Mapping[str, float] | None = None
    ) -> None:  # fmt: skip
        self.name = name
        self.why_not = ""
        self._server, self._folder = server, folder
        self._timeouts = timeouts or {}
        self._session: Any = None
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._gone = asyncio.Event()
        self._tried = asyncio.Event()
        self._calls = self._under_way = 0
        self._first: dict[str, Any] | None = None
        self._now: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self, patience_seconds: float) -> None:
        """Connect, and wait for that, but not long. A server that cannot be reached has no tools yet; it is tried again
        all the same, and has them when it comes."""
        self._task = asyncio.create_task(self._keep())
        try:
            async with asyncio.timeout(patience_seconds):
                await self._tried.wait()
        except TimeoutError:
            self.why_not = f"no answer within {patience_seconds:g} s"
        else:  # it may be starting, too
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), min(GRACE_SECONDS, patience_seconds))
        if not self.connected:
            log.warning("MCP server has no tools yet", server=self.name, why=self.why_not)

    @property
    def connected(self) -> bool:
        """Whether it has been, and so what its tools are."""
        return self._first is not None

    async def stop(self) -> None:
        """Disconnect, and end the server if it was started here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def tools(self) -> list[Tool]:
        """As they were listed at the first connection, by name: servers list them in any order."""
        first = self._first or {}
        return [self._tool(first[name]) for name in sorted(first)]

    def _tool(self, listed: Any) -> Tool:
        remote, version = str(listed.name), _version(listed)
        name = _NAME.sub("_", f"{self.name}_{remote}")[:64]
        seconds = self._timeouts.get(name, self._server.timeout_seconds)

        async def run(context: ToolContext, values: Mapping[str, Any]) -> str:
            return await self._call(remote, version, values, seconds)

        return Tool(
            name, str(listed.description or "")[:4_000], dict(listed.inputSchema or {"type": "object"}), run,
            timeout_seconds=seconds, version=version, source=f"mcp:{self.name}",
        )  # fmt: skip

    async def _call(self, remote: str, version: str, values: Mapping[str, Any], seconds: float) -> str:
        """Raises `ToolError` when it is known that nothing was done, or when the server says that it failed. Whatever
        else is raised leaves that open."""
        try:
            async with asyncio.timeout(min(5.0, seconds / 2)):
                await self._ready.wait()
        except TimeoutError:
            raise self._unreachable() from None
        if self._now.get(remote) != version:
            raise ToolError(
                f"{remote} of {self.name} is not the tool any more that it was; a restart takes the new one"
            )
        result = await self._asked(remote, dict(values))
        text = clip(text_of(result), MAX_RESULT_BYTES)
        if result.isError:
            raise ToolError(text or f"{remote} failed without a word")
        return text

    async def _asked(self, remote: str, values: dict[str, Any]) -> Any:
        import anyio
        from mcp import McpError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest

        request = ClientRequest(CallToolRequest(params=CallToolRequestParams(name=remote, arguments=values)))
        session, gone = self._session, self._gone
        self._calls, self._under_way = self._calls + 1, self._under_way + 1
        # Not `call_tool`: that judges the result by a schema of the server's, which may hang or fetch something.
        asking = asyncio.ensure_future(session.send_request(request, CallToolResult))
        ending = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait((asking, ending), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionError(f"the connection to {self.name} broke during the call")
            return asking.result()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._lost(session)  # it could not even be handed over
            raise self._unreachable() from None
        except McpError as error:
            if error.error.code == _TERMINATED:
                self._lost(session)
                raise self._unreachable() from error
            if error.error.code in (_TIMED_OUT, _CLOSED):
                self._lost(session)
                raise
            said = clip(str(error.error.message), 2_000)
            raise ToolError(f"{self.name} refused: {said}") from error
        finally:
            self._under_way -= 1
            for task in (asking, ending):
                task.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    def _lost(self, session: Any) -> None:
        """Calls that follow wait for the next connection."""
        if session is self._session:
            self._ready.clear()
            self._broken.set()

    def _unreachable(self) -> ToolError:
        return ToolError(f"the server {self.name} cannot be reached now; nothing was done", transient=True)

    async def _keep(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            self._broken, self._gone = asyncio.Event(), asyncio.Event()
            try:
                async with self._connected() as session:
                    self._session = session
                    listed = await _listed(session)
                    self._first = listed if self._first is None else self._first
                    self._now = {name: _version(one) for name, one in listed.items()}
                    self._ready.set()
                    self.why_not = ""
                    if self._tried.is_set():
                        log.info("MCP server is there", server=self.name, tools=len(listed))
                    self._tried.set()
                    pause = PAUSE_SECONDS
                    await self._until_broken(session)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # the transport's task group gives groups of errors
                self.why_not = why(error)
                log.debug("MCP server is gone", server=self.name, error=self.why_not)
            finally:
                self._ready.clear()
                self._gone.set()
                self._tried.set()
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)

    async def _until_broken(self, session: Any) -> None:
        """Until a call found it broken, or it no longer answers a ping. While it works at a call it need not answer:
        many servers do one thing at a time, and the call has a time limit of its own."""
        while not self._broken.is_set():
            try:
                async with asyncio.timeout(PING_EVERY_SECONDS):
                    await self._broken.wait()
            except TimeoutError:
                calls = self._calls
                if self._under_way:
                    continue
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await session.send_ping()
                except TimeoutError:
                    if calls == self._calls:
                        raise

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
            from mcp.client.streamable_http import streamable_http_client

            from kokuban.agents.toolbox._http import client

            async with (
                client(self._server.timeout_seconds) as http,
                streamable_http_client(self._server.url, http_client=http) as found,
            ):
                yield found
            return
        from mcp.client.stdio import StdioServerParameters, stdio_client

        names = (*_PASSED, *self._server.environment)
        program, *arguments = self._server.command
        environment = {name: os.environ[name] for name in names if name in os.environ}
        parameters = StdioServerParameters(command=program, args=arguments, env=environment, cwd=self._folder)
        with _nowhere() as errors:
            async with stdio_client(parameters, errlog=errors) as found:
                yield found


async def _listed(session: Any) -> dict[str, Any]:
    """All pages of the server's tools, by name, within bounds."""
    found: dict[str, Any] = {}
    cursor: str | None = None
    seen: set[str] = set()
    async with asyncio.timeout(START_SECONDS):
        for _ in range(MAX_PAGES):
            page = await session.list_tools(cursor)
            for one in page.tools:
                if len(found) < MAX_TOOLS:
                    found.setdefault(str(one.name), one)
            cursor = page.nextCursor
            if not cursor or cursor in seen or len(found) >= MAX_TOOLS:
                break
            seen.add(cursor)
    return found


def _version(listed: Any) -> str:
    """Of what the server says about a tool: it is another one when that changes."""
    said = [listed.description, listed.inputSchema]
    return digest(msgspec.json.encode(said, order="sorted")).removeprefix("sha256:")[:12]


def why(error: BaseException) -> str:
    """The first error of a group, without what an address may hold behind its `?`."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = str(error).partition("\n")[0]
    if getattr(getattr(error, "error", None), "code", None) == _TERMINATED:
        return "the server answered 404; is its address right?"
    if (answer := getattr(error, "response", None)) is not None:
        return f"the server answered {answer.status_code}"
    return f"{type(error).__name__}: {_QUERY.sub('', said)}"[:300]


def _nowhere() -> TextIO:
    """What a server says on its standard error is for nobody: it may hold anything."""
    return open(os.devnull, "w", encoding="utf-8")
