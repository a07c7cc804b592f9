"""The three ways to do a task: a crew, one call, and the best of as many calls as the crew's tokens buy."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kokuban.agents.models import CallContext, Message, Meter, ModelError, Request, Usage
from kokuban.agents.roles._writing import fenced_code
from kokuban.agents.tools import ToolError
from kokuban.agents.tools.code import merged
from kokuban.blackboard import Client
from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.blackboard.workspace import File, Tree, checkout
from kokuban.console.evaluation._judging import looks_right, solved
from kokuban.console.evaluation._results import Result
from kokuban.console.evaluation._suite import EvalTask, tree
from kokuban.schemas import Budget

if TYPE_CHECKING:
    from kokuban.console._models import ModelChoice

ARMS = ("crew", "single", "best-of-n")
MAX_TRIES = 16
MAX_OUTPUT_TOKENS = 1_000
HEAT = 0.7
_LIMITED = frozenset({"deadline", "out_of_budget"})
_SYSTEM = (
    "You are an expert. Do the task by writing one file. Say in one or two sentences what is needed, then write the "
    "whole file in one code block."
)
log = structlog.get_logger("kokuban.eval")


class Stopped(Exception):
    """The crew has ended, as a signal asked; no result came of what was under way."""


class Bench:
    """One server and one crew for a whole suite, and the same model for single calls. Use `Bench.open`."""

    def __init__(
        self, board: Client, meter: Meter, running: asyncio.Task[None], seconds: int, budget: Budget | None
    ) -> None:
        self._board, self._meter, self._running = board, meter, running
        self._seconds, self._budget = seconds, budget

    @classmethod
    @asynccontextmanager
    async def open(
        cls, choice: ModelChoice, *, folder: Path, seconds: int = 600, budget: Budget | None = None
    ) -> AsyncIterator[Bench]:
        """Start everything in `folder`, end everything. Raises what the server and the model raise."""
        from kokuban.console._crew import children
        from kokuban.console.launcher import Launcher
        from kokuban.schemas.contracts import builtin_crew

        async with AsyncExitStack() as stack:
            meter = choice.meter()
            stack.push_async_callback(meter.aclose)
            server = await stack.enter_async_context(EmbeddedServer(folder, protected=True))
            async with await Bus.connect(server.url, credentials=server.credential("supervisor")) as bus:
                await ensure_board(bus)
            crew = children(
                list(builtin_crew()), url=server.url, folder=folder, model=choice, drain_seconds=2,
                credentials=server.credentials,
            )  # fmt: skip
            launcher = Launcher(crew, server=server, on_event=lambda *_: None, drain_seconds=4)
            running = asyncio.create_task(launcher.run())

            async def stop() -> None:
                await launcher.stop()
                await running

            stack.push_async_callback(stop)
            board = await stack.enter_async_context(
                await Client.connect(server.url, name="kokuban eval", credentials=server.credential("client"))
            )
            yield cls(board, meter, running, seconds, budget)

    async def run(self, arm: str, task: EvalTask, repeat: int, tokens: int = 0) -> Result:
        """Do the task once. `tokens` is what the best of n may use. Raises `Stopped` when the crew ends first: a signal
        that ends this process drains the crew."""
        doing = asyncio.ensure_future(
            self._crew(task, repeat) if arm == "crew" else self._calls(arm, task, repeat, tokens)
        )
        try:
            await asyncio.wait({doing, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            self._running.result()
            raise Stopped
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def _crew(self, task: EvalTask, repeat: int) -> Result:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kokuban-eval-") as folder:
            workspace, sources = Path(folder, "workspace"), Path(folder, "sources")
            await asyncio.to_thread(checkout, task.workspace, workspace)
            await asyncio.to_thread(checkout, tree(task.sources), sources)
            name = await self._board.submit(
                task.goal, workspace=workspace, sources=[sources] if task.sources else [], checks=task.checks,
                deadline_seconds=self._seconds, budget=self._budget,
            )  # fmt: skip
        outcome = await self._board.result(name)
        state = await self._board.status(name)
        files = {**task.workspace, **outcome.files}
        passed = outcome.state == "done" and await solved(task, files)
        usage = outcome.usage
        return Result(
            task.id, task.kind, repeat, "crew", passed, usage.tokens, usage.model_calls, time.monotonic() - started,
            usage.micros or None, len(state.steps), outcome.state in _LIMITED,
            f"{outcome.state}: {outcome.reason}"[:500],
        )  # fmt: skip

    async def _calls(self, arm: str, task: EvalTask, repeat: int, tokens: int) -> Result:
        started, used, calls, micros, chosen, why = time.monotonic(), 0, 0, 0, False, ""
        candidates: list[Tree] = []
        most = 1 if arm == "single" else MAX_TRIES
        while calls < most and (calls == 0 or (used < tokens and not chosen)):
            try:
                text, usage = await self._ask(task, repeat, calls)
            except ModelError as error:
                why, calls = f"{type(error).__name__}: {error}"[:300], calls + 1
                continue
            used, calls = used + usage.input_tokens + usage.output_tokens, calls + 1
            micros += self._meter.cost(usage) or 0
            files = written(task, text)
            if files is None:
                why = "no usable code block"
                continue
            chosen = arm != "single" and await looks_right(task, files)
            candidates = [files] if chosen else [*candidates, files]
        passed = bool(candidates) and await solved(task, candidates[0])
        return Result(
            task.id, task.kind, repeat, arm, passed, used, calls, time.monotonic() - started, micros or None,
            ended=why if not candidates else "chosen by the checks" if chosen else "the first", tries=calls,
        )  # fmt: skip

    async def _ask(self, task: EvalTask, repeat: int, n: int) -> tuple[str, Usage]:
        request = Request(
            messages=prompt_of(task), max_output_tokens=MAX_OUTPUT_TOKENS,
            temperature=0.0 if n == repeat == 0 else HEAT,
            seed=1_000 * (repeat + 1) + n,
        )  # fmt: skip
        context = CallContext(role="single", step=task.id, attempt=repeat + 1, turn=n + 1)
        reply = await self._meter.call(request, context, deadline=time.monotonic() + self._seconds)
        return reply.content, reply.usage


def prompt_of(task: EvalTask) -> tuple[Message, ...]:
    """Everything that the crew is given, at once."""
    parts = [f"File {path}:\n{text}" for path, text in task.files.items() if text.strip()]
    parts += [f"Document {path}:\n{text}" for path, text in task.sources.items()]
    parts += [f"These checks must pass: {', '.join(task.checks)}"] if task.checks else []
    parts.append(f"Task: {task.goal}\n\nWrite {task.writes}.")
    return Message("system", _SYSTEM), Message("user", "\n\n".join(parts))


def written(task: EvalTask, text: str) -> Tree | None:
    """The files with the reply's code block in them, put in as the crew's coder would; None for a useless reply."""
    code = fenced_code(text, task.writes)
    if code is None:
        return None
    old = task.files.get(task.writes, "")
    try:
        fresh = merged(task.writes, old, code) if task.writes.endswith(".py") else code
    except ToolError:
        return None
    return task.workspace | {task.writes: File(fresh.encode(), False)}
