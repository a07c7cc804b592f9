"""The tool that runs the task's checks, and the same run for those who judge."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kokuban.agents import sandbox
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.blackboard.workspace import Tree, WorkspaceError, checkout, scan


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One check, really run. `output` is stabilised and bounded; `exit_code` is None when it was killed."""

    command: str
    passed: bool
    exit_code: int | None
    signal: int | None
    timed_out: bool
    left_running: bool
    output: str
    seconds: float
    isolation: sandbox.Kind = "group"

    def describe(self) -> str:
        """What a model is shown: the command, how it ended, and its output."""
        if self.timed_out:
            end = "did not end in time and was killed"
        elif self.signal is not None:
            end = f"was killed by signal {self.signal}"
        else:
            end = f"{'passed' if self.passed else 'failed'} with exit code {self.exit_code}"
        left = " (it left processes running, which were killed)" if self.left_running else ""
        return f"$ {self.command}\n{self.output.rstrip() or '(no output)'}\n=> {end}{left}"


async def run_checks_on(tree: Tree, context: ToolContext) -> tuple[CheckRun, ...]:
    """Run every check of the task, in order, each on a checkout of `tree` of its own that is removed again: what a
    check writes reaches neither another check nor the work. Raises `WorkspaceError` or `SandboxError` when no checkout
    or process can be made."""
    return tuple([await _run_one(tree, command, context) for command in context.checks])


async def _run_one(tree: Tree, command: str, context: ToolContext) -> CheckRun:
    context.home.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="check-", dir=context.home))
    try:
        folder = scratch / "workspace"
        await asyncio.to_thread(checkout, tree, folder)
        finished = await sandbox.run(
            command,
            cwd=folder,
            home=scratch / "home",
            timeout_seconds=context.check_seconds,
            output_cap_bytes=context.output_cap_bytes,
            env_extra=context.env_extra,
        )
    finally:
        await asyncio.shield(asyncio.to_thread(sandbox.remove, scratch))
    return CheckRun(
        command,
        finished.ok,
        finished.exit_code,
        finished.signal,
        finished.timed_out,
        finished.left_running,
        sandbox.stabilise(finished.output, folder),
        finished.seconds,
        finished.isolation,
    )


async def _run_checks(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    if not context.checks:
        raise ToolError("this task has no checks to run; read the files again instead")
    try:
        runs = await run_checks_on(await asyncio.to_thread(scan, context.checkout, may_be_link=False), context)
    except WorkspaceError as error:
        raise ToolError(f"the checks cannot be run on these files: {error}") from error
    failed = sum(not run.passed for run in runs)
    total = f"{len(runs)} check{'s' if len(runs) > 1 else ''}"
    summary = f"{failed} of {total} failed." if failed else f"All checks passed ({total})."
    return "\n\n".join([*(run.describe() for run in runs), summary])


RUN_CHECKS = Tool(
    "run_checks",
    "Run the task's checks on the files as they are now. Returns what each says and whether it passed. "
    "Not for commands of your own.",
    {"type": "object", "properties": {}, "additionalProperties": False},
    _run_checks,
    timeout_seconds=3_600.0,  # each check has its own, shorter time
    tier="read",
    effect="read",
)
