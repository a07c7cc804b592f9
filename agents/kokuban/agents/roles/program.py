"""Any program as a role: it gets the work order as a file, the step's checkout as its folder, and a model server of its
own. What it leaves becomes artifacts, checked as anybody's."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from kokuban.agents._asking import Asking
from kokuban.agents._output import Output
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.gateway import Gateway
from kokuban.agents.roles._coding import Coding, cut
from kokuban.agents.roles._shared import facts_of, feedback_of, scope_of
from kokuban.agents.sandbox import Finished, run
from kokuban.schemas import KINDS

OUTPUT_CAP_BYTES = 64 * 1024
TAIL_CHARS = 1_500
MAX_FILES, MAX_FILE_BYTES = 20, 4 * 2**20


class Program:
    """Runs `command` by the shell for each step. Without bubblewrap it can reach what the worker's user can; with it,
    only its folders, the network of this machine, and so the model server."""

    prompt_version = None

    def __init__(self, command: str) -> None:
        self._command = command
        self._readable = _named_by(command)

    async def perform(self, work: Work) -> list[Output]:
        coding = await Coding.begin(work)
        order, results = work.home / "order.json", work.home / "output"
        await asyncio.to_thread(results.mkdir)
        await asyncio.to_thread(order.write_text, json.dumps(await _order(coding), indent=2), "utf-8")
        gateway = Gateway(Asking(work, await scope_of(work)))
        async with gateway.serving():
            done = await self._run(work, coding, order, results, gateway)
        if gateway.broken is not None:
            raise gateway.broken
        if gateway.failure is not None:
            raise gateway.failure
        if done is None or not done.ok:
            raise StepFailed("tool", _ended(done))
        coding.changed_since_check = True
        outputs = await asyncio.to_thread(_declared, results, work.assignment.order.produces)
        if "patch" in work.assignment.order.produces:
            objection = await coding.objection()
            if objection is not None:
                raise StepFailed("no_progress", f"{objection} {coding.standing()}; it said: {_tail(done.output)}")
            outputs.append(await coding.patch(cut(done.output.strip(), 1_000)))
        if not outputs:
            raise StepFailed("no_progress", f"the program left no output; it said: {_tail(done.output)}")
        return outputs

    async def _run(self, work: Work, coding: Coding, order: Path, results: Path, gateway: Gateway) -> Finished | None:
        """The program's end; None when the step was over before."""
        running = asyncio.create_task(
            run(
                self._command, cwd=coding.context.checkout, home=work.home, timeout_seconds=max(0.1, work.seconds_left),
                output_cap_bytes=OUTPUT_CAP_BYTES, network=True, readable=self._readable,
                env_extra={**gateway.environment, "KOKUBAN_ORDER": str(order), "KOKUBAN_OUTPUT": str(results)},
            )
        )  # fmt: skip
        over = asyncio.create_task(gateway.over.wait())
        try:
            await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():  # nothing more can be paid: it may end by itself, but not for long
                await asyncio.wait({running}, timeout=2)
            return running.result() if running.done() else None
        finally:
            over.cancel()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _named_by(command: str) -> tuple[Path, ...]:
    """Folders of the programs that a command names by an absolute path, with the libraries beside a `bin`: what it must
    be able to read."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found = [Path(word) for word in words if word.startswith("/") and os.path.exists(word)]
    return tuple(dict.fromkeys(p.parent.parent if p.parent.name == "bin" else p.parent for p in found))


async def _order(coding: Coding) -> dict[str, Any]:
    """The work order as a program reads it."""
    work, order = coding.work, coding.work.assignment.order
    return {
        "task": work.assignment.task, "step": work.assignment.step, "attempt": work.assignment.attempt,
        "goal": order.goal, "whole_goal": work.spec.goal, "checks": list(work.spec.checks),
        "checks_say": coding.now.report, "findings": facts_of(coding.findings), "feedback": feedback_of(work),
        "produces": list(order.produces), "allotment": msgspec.to_builtins(order.allotment),
    }  # fmt: skip


def _declared(folder: Path, produces: tuple[str, ...]) -> list[Output]:
    """What stands in files NAME.KIND.json. Raises `StepFailed` for one that cannot be taken, with its name."""
    outputs: list[Output] = []
    for path in sorted(folder.iterdir())[: MAX_FILES + 1]:
        name, _, kind = path.name.removesuffix(".json").rpartition(".")
        if len(outputs) == MAX_FILES:
            raise StepFailed("tool", f"more than {MAX_FILES} files of output")
        if not path.name.endswith(".json") or not name or kind not in produces:
            wanted = f"NAME.KIND.json of a kind that is asked: {', '.join(produces)}"
            raise StepFailed("tool", f"output {path.name[:100]!r} is no {wanted}")
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            raise StepFailed("tool", f"output {path.name[:100]!r} is no file of at most {MAX_FILE_BYTES:,} bytes")
        try:
            value = json.loads(path.read_bytes())
            artifact = msgspec.convert(value, KINDS[kind]) if kind in KINDS else value
        except (ValueError, RecursionError) as error:
            raise StepFailed("tool", f"output {path.name[:100]!r}: {str(error)[:300]}") from error
        outputs.append(Output(name, artifact, of="" if kind in KINDS else kind))
    return outputs


def _ended(done: Finished | None) -> str:
    if done is None:
        return "the program went on although its step was over, and was killed"
    how = "was killed at the end of its time" if done.timed_out else f"ended with exit code {done.exit_code}"
    if done.signal is not None and not done.timed_out:
        how = f"was killed by signal {done.signal}"
    return f"the program {how}: {_tail(done.output)}"


def _tail(output: str) -> str:
    return output.strip()[-TAIL_CHARS:] or "(no output)"
