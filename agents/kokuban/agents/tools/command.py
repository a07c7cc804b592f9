"""The tool that runs a command of the model's own, on a copy of the step's checkout that is thrown away afterwards.

Invariant: what a command writes reaches neither the checkout nor the next command. Files are changed by the file tools
alone, which guard what the checks are made of and can be played back for whoever takes the step over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokuban.agents import sandbox
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.blackboard.workspace import Tree, WorkspaceError, checkout, scan

SECONDS = 60
MAX_SECONDS = 600
KEPT_OUTPUT_BYTES = 2**20
"""Output of a command that can be read on in; of more, the first and the last half of it (1 MiB)."""
_NAMED_FILES = 10


async def _run_command(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    seconds = arguments.get("timeout_seconds", SECONDS)
    context.home.mkdir(parents=True, exist_ok=True)
    scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="command-", dir=context.home))
    folder = scratch / "workspace"
    try:
        before = await asyncio.to_thread(scan, context.checkout, may_be_link=False)
        await asyncio.to_thread(checkout, before, folder)
        done = await sandbox.run(
            arguments["command"], cwd=folder, home=scratch / "home", timeout_seconds=seconds,
            output_cap_bytes=KEPT_OUTPUT_BYTES, env_extra=context.env_extra,
        )  # fmt: skip
        wrote = await asyncio.to_thread(_written, before, folder)
    except WorkspaceError as error:
        raise ToolError(f"no command can be run on these files: {error}") from error
    except sandbox.SandboxError as error:
        raise ToolError(f"the command was not run: {error}") from error
    finally:
        await asyncio.shield(asyncio.to_thread(sandbox.remove, scratch))
    output = sandbox.stabilise(done.output, folder).rstrip() or "(no output)"
    return f"{output}\n=> {ending(done, seconds)}{wrote}"


def ending(done: sandbox.Finished, seconds: float) -> str:
    """How a command ended, in words."""
    if done.timed_out:
        how = f"timed out after {seconds:g} s and was killed"
    elif done.signal is not None:
        how = f"was killed by signal {done.signal}"
    else:
        how = f"exit code {done.exit_code}"
    left = "; it left processes running, which were killed" if done.left_running else ""
    alone = "" if done.isolation == "bubblewrap" else "; not isolated"
    return f"{how}{left}{alone}"


def _written(before: Tree, folder: Path) -> str:
    """Which files it changed, for a model that expects them to be kept."""
    try:
        after = scan(folder, may_be_link=False)
    except WorkspaceError:
        return "\n[the files that it wrote are not kept]"
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if not names:
        return ""
    more = f" and {len(names) - _NAMED_FILES:,} more" if len(names) > _NAMED_FILES else ""
    shown = ", ".join(name[:200] for name in names[:_NAMED_FILES])
    return f"\n[not kept, write them with the file tools if you want them: {shown}{more}]"


RUN_COMMAND = Tool(
    "run_command",
    "Run one command on a copy of the workspace's files, without network. Returns its output and how it ended. "
    "Not for changing files: what it writes is not kept. Not for the task's checks: use run_checks.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["command"],
        "properties": {
            "command": {
                "anyOf": [
                    {"type": "string", "minLength": 1, "maxLength": 8_000},
                    {"type": "array", "minItems": 1, "maxItems": 200, "items": {"type": "string", "maxLength": 8_000}},
                ],
                "description": "A line for the shell, or a program and its arguments as a list",
            },
            "timeout_seconds": {
                "type": "integer", "minimum": 1, "maximum": MAX_SECONDS, "description": f"{SECONDS} by default",
            },
        },
    },
    _run_command,
    tier="consequential",  # where nothing isolates it, it can do what the worker's user can
    effect="other",
    timeout_seconds=MAX_SECONDS + 60,
)  # fmt: skip
