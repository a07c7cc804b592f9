"""One task, from start to end, on an embedded server and with a crew of processes of its own."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from kokuban.blackboard import Client, Event
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.console import _errors
from kokuban.console._crew import children, last_line
from kokuban.console._live import event_line, verdict_of
from kokuban.console._models import ModelChoice
from kokuban.console._options import TaskRequest
from kokuban.console._task_commands import deliver
from kokuban.console._terminal import Paint, one_line, tell
from kokuban.console.launcher import Launcher, LauncherEvent
from kokuban.schemas.contracts import builtin_crew

WORKER_DRAIN_SECONDS = 1.0
HOPELESS_DEATHS = 5
"""A process that dies this often while nothing gets done will not get better."""

_SHOWN = (
    "claimed", "artifact", "refused", "failed", "released", "revoked", "waiting", "gate", "vote", "decision", "fact",
    "cancel",
)  # fmt: skip


async def run_task(
    request: TaskRequest,
    model: ModelChoice,
    *,
    out: Path | None,
    store: Path | None,
    as_json: bool,
    timeout: float | None,
    approve_tools: Sequence[str] = (),
    policy: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> int:
    """Check everything, start everything, do the task, show its result, end everything; the exit code."""
    await request.validate(checks_run_here=True)
    await model.validate()
    with tempfile.TemporaryDirectory(prefix="kokuban-", ignore_cleanup_errors=True) as temporary:
        folder = (store or Path(temporary)).absolute()
        async with EmbeddedServer(folder, protected=True) as server:
            shutil.rmtree(folder / "homes", ignore_errors=True)
            tell(
                f"store: {folder}{'' if store else ' (removed at the end)'}; server: {server.url}; model: {model.spec}"
            )
            return await _with_crew(
                server, folder, request, model, out, as_json, timeout, approve_tools, policy, commands
            )


async def _with_crew(
    server: EmbeddedServer,
    folder: Path,
    request: TaskRequest,
    model: ModelChoice,
    out: Path | None,
    as_json: bool,
    timeout: float | None,
    approve_tools: Sequence[str],
    policy: Path | None,
    commands: Mapping[str, str] | None,
) -> int:
    view = _View(folder)
    crew = children(
        list(builtin_crew()), url=server.url, folder=folder, model=model, drain_seconds=WORKER_DRAIN_SECONDS,
        credentials=server.credentials, approve_tools=approve_tools, policy=policy,
        commands=commands,
    )  # fmt: skip
    launcher = Launcher(crew, server=server, on_event=view.process, drain_seconds=WORKER_DRAIN_SECONDS + 2)
    running = asyncio.create_task(launcher.run())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, launcher, running)
        await _set_up(server)
        board = await stack.enter_async_context(
            await Client.connect(server.url, name="kokuban run", credentials=server.credential("client"))
        )
        task = await request.submit(board)
        tell(f"task: {task}")
        following = asyncio.create_task(_follow(board, task, view))
        hopeless = asyncio.create_task(view.hopeless.wait())
        try:
            await asyncio.wait({following, hopeless, running}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
                outcome = await board.result(task, timeout=30)
                return deliver(outcome, await verdict_of(board, outcome), out, as_json)
        finally:
            hopeless.cancel()
            following.cancel()
        if hopeless.done() and not hopeless.cancelled():
            raise _errors.Infrastructure(view.why)
        if running.done():
            running.result()
            tell("Interrupted.")
            return _errors.INTERRUPTED
        tell(f"Task {task} did not end within {timeout:g} s.")
        return _errors.NOT_ENDED


async def _set_up(server: EmbeddedServer) -> None:
    """Make the board with the supervisor's credential, so that its clients need not wait for a supervisor."""
    secret = server.credential("supervisor")
    async with await Bus.connect(server.url, name="kokuban run: set-up", credentials=secret) as bus:
        await ensure_board(bus)


async def _end(launcher: Launcher, running: asyncio.Task[None]) -> None:
    await launcher.stop()
    await running


async def _follow(board: Client, task: str, view: _View) -> None:
    async for event in board.watch(task):
        view.event(event)


class _View:
    """What a run shows while it goes on. A display that fails is given up; the run goes on."""

    def __init__(self, folder: Path) -> None:
        self.hopeless = asyncio.Event()
        self.why = ""
        self._folder = folder
        self._paint = Paint(sys.stderr)
        self._deaths: Counter[str] = Counter()
        self._on = True

    def event(self, event: Event) -> None:
        """Show an event of the task."""
        if event.event == "artifact":
            self._deaths.clear()
        if event.event in _SHOWN:
            self._show(lambda: event_line(event, self._paint))

    def process(self, name: str, event: LauncherEvent, detail: str) -> None:
        """Show what happened to a process when it went wrong."""
        if event not in ("died", "failed", "killed"):
            return
        reason = one_line(last_line(self._folder / "logs" / f"{name}.log"), 500) if event == "died" else ""
        self._show(lambda: f"{name} {event}: {one_line(detail, 500)}" + (f": {reason}" if reason else ""))
        if event != "killed":
            self._deaths[name] += 1
            if self._deaths[name] == HOPELESS_DEATHS:
                self.why = f"the {name}'s process keeps ending: {reason or one_line(detail, 500)}"
                self.hopeless.set()

    def _show(self, line: Callable[[], str]) -> None:
        if self._on:
            try:
                tell(line())
            except Exception:  # a closed terminal, or text we cannot render
                self._on = False
