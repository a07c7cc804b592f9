"""Whether a result passes checks, in a folder of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kokuban.agents import sandbox
from kokuban.blackboard.workspace import Tree, checkout
from kokuban.console.evaluation._suite import EvalTask, tree

CHECK_SECONDS = 20.0


async def passes(files: Tree, checks: Sequence[str], beside: Tree) -> bool:
    """Whether every check ends with 0 on these files; `beside` is laid over them."""
    with tempfile.TemporaryDirectory(prefix="kokuban-eval-") as folder:
        place, home = Path(folder, "files"), Path(folder, "home")
        home.mkdir()
        await asyncio.to_thread(checkout, dict(sorted(({**files, **beside}).items())), place)
        for check in checks:
            done = await sandbox.run(check, cwd=place, home=home, timeout_seconds=CHECK_SECONDS)
            if not done.ok:
                return False
    return True


async def solved(task: EvalTask, files: Tree) -> bool:
    """What the hidden checks say. The task's own files are what they were, but for what the result is in."""
    kept = {path: file for path, file in task.workspace.items() if path != task.writes}
    return await passes({**files, **kept}, task.hidden.checks, {**tree(task.sources), **tree(task.hidden.files)})


async def looks_right(task: EvalTask, files: Tree) -> bool:
    """What the checks say that the agents may see; true when there are none."""
    kept = {path: file for path, file in task.workspace.items() if path != task.writes}
    return await passes({**files, **kept}, task.checks, {})
