"""Any program as a role: it gets the work order as a file, the step's checkout as its folder, and a model server of its
own. What it leaves becomes artifacts, checked as anybody's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from kokuban.agents._asking import Asking
from kokuban.agents._data import framed
from kokuban.agents._output import Output
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.gateway import Gateway
from kokuban.agents.roles._coding import Coding, cut
from kokuban.agents.roles._shared import facts_of, feedback_of, scope_of
from kokuban.agents.sandbox import Finished, programs, run
from kokuban.blackboard.workspace import checkout
from kokuban.schemas import KINDS
from kokuban.schemas.subjects import token

OUTPUT_CAP_BYTES = 64 * 1024
TAIL_CHARS = 1_500
SUMMARY_CHARS = 500
PROMPT_CHARS = 30_000  # a variable of the environment may have 128 KiB
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAX_FILES, MAX_FILE_BYTES = 20, 4 * 2**20


class Program:
    """Runs `command` by the shell for each step. Without bubblewrap it can reach what the worker's user can; with it,
    only its folders, the network of this machine, and so the model server."""

    prompt_version = None

    def __init__(self, command: str) -> None:
        self._command = command
        self._readable = _named_by(command)

    async def perform(self, work: Work) -> list[Output]:
        produces = work.assignment.order.produces
        work.saw("untrusted")  # it reads what it likes
        coding = await Coding.begin(work, check="patch" in produces)
        place = work.home / "program"  # all that it can write, but for the checkout: nothing of the runtime's is there
        results = place / "output"
        files = await _files(work)
        order = await asyncio.to_thread(_write, place, files, _order(coding, files))
        given = {
            "KOKUBAN_ORDER": str(order), "KOKUBAN_INPUT": str(place / "input"),
            "KOKUBAN_SOURCES": str(place / "sources"), "KOKUBAN_OUTPUT": str(results),
            "KOKUBAN_PROMPT": _prompt(coding),
        }  # fmt: skip
        await asyncio.to_thread(checkout, await work.sources(), place / "sources")
        gateway = Gateway(Asking(work, await scope_of(work)))
        async with gateway.serving():
            done = await self._run(work, coding, place, {**gateway.environment, **given}, gateway)
        if gateway.broken is not None:
            raise gateway.broken
        if gateway.failure is not None:
            raise gateway.failure
        said = _said(done, work, gateway)
        if done is None or not done.ok:
            raise StepFailed("tool", _ended(done, said))
        coding.changed_since_check = True
        derived = tuple(dict.fromkeys(ref.digest for ref in work.assignment.order.inputs))
        outputs = await asyncio.to_thread(_declared, results, produces, derived)
        if "patch" in produces:
            objection = await coding.objection()
            if objection is not None:
                raise StepFailed("no_progress", f"{objection} {coding.standing()}; it said: {said}")
            outputs.append(await coding.patch(said[-SUMMARY_CHARS:]))
        if not outputs:
            raise StepFailed("no_progress", f"the program left no output; it said: {said}")
        return outputs

    async def _run(
        self, work: Work, coding: Coding, place: Path, environment: dict[str, str], gateway: Gateway
    ) -> Finished | None:
        """The program's end; None when the step was over before."""
        running = asyncio.create_task(
            run(
                self._command, cwd=coding.context.checkout, home=place, timeout_seconds=max(0.1, work.seconds_left),
                output_cap_bytes=OUTPUT_CAP_BYTES, network=True, readable=self._readable,
                env_extra=environment,
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
    """What a command must be able to read: the folders of the programs that it names by an absolute path, with the
    libraries beside a `bin`, and the Python of a virtual environment. Of somebody's home or one of its dot folders, the
    temporary folder or the root only the file itself."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found: list[Path] = []
    for path in (Path(word) for word in words if word.startswith("/") and os.path.exists(word)):
        above = path.parent
        if above.name == "bin" and not _everybodys(above.parent):
            found += map(Path, programs(str(above)))
            found += _base_of(above.parent)
        else:
            found.append(path if _everybodys(above) or above.name.startswith(".") else above)
    return tuple(path for path in dict.fromkeys(found) if not _everybodys(path))


def _everybodys(folder: Path) -> bool:
    """Whether much else is in it that is none of the program's business."""
    many = {Path("/"), Path("/home"), Path("/root"), Path("/tmp"), Path("/var/tmp"), Path.home()}
    return folder in many or folder.parent == Path("/home") or folder == Path(tempfile.gettempdir())


def _base_of(environment: Path) -> list[Path]:
    """The installation that a virtual environment's Python is a link into."""
    try:
        lines = (environment / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    homes = [Path(line.partition("=")[2].strip()) for line in lines if line.partition("=")[0].strip() == "home"]
    return [Path(one) for home in homes if home.name == "bin" and home.is_dir() for one in programs(str(home))]


async def _files(work: Work) -> list[tuple[dict[str, Any], bytes]]:
    """The order's inputs: what each is, with the name of its file, and its JSON."""
    found = []
    for n, ref in enumerate(work.assignment.order.inputs, 1):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", ref.name)[:100]
        what = {"file": f"{n:02}-{name}.{ref.kind}.json", "kind": ref.kind, "step": ref.step, "digest": ref.digest}
        found.append((what, await work.content.raw(ref)))
    return found


def _write(home: Path, files: list[tuple[dict[str, Any], bytes]], order: dict[str, Any]) -> Path:
    """The order and its inputs as files; the path of the order."""
    (home / "output").mkdir(parents=True)
    (home / "input").mkdir()
    for what, data in files:
        (home / "input" / what["file"]).write_bytes(data)
    path = home / "order.json"
    path.write_text(json.dumps(order, indent=2), "utf-8")
    return path


def _prompt(coding: Coding) -> str:
    """The order in plain words, bounded, for programs that take one text. What others wrote is marked as data."""
    work = coding.work
    parts = [work.assignment.order.goal, f"This is a part of: {work.spec.goal}"]
    if "patch" in work.assignment.order.produces:
        parts.append("Change the files in the current folder.")
        if work.spec.checks:
            parts.append("Without changing them, these checks have to pass:\n" + "\n".join(work.spec.checks))
            parts.append(framed(coding.now.report, "what the checks say now", work.assignment.step))
    else:
        kinds = ", ".join(work.assignment.order.produces)
        parts.append(f"Write your result to $KOKUBAN_OUTPUT/NAME.KIND.json, KIND one of: {kinds}.")
    if coding.findings:
        parts.append(framed(facts_of(coding.findings), "findings", work.assignment.step))
    if feedback := feedback_of(work):
        parts.append(framed(feedback, "earlier attempts and added facts", work.assignment.step))
    return cut("\n\n".join(parts).replace("\0", ""), PROMPT_CHARS)


def _order(coding: Coding, files: list[tuple[dict[str, Any], bytes]]) -> dict[str, Any]:
    """The work order as a program reads it."""
    work, order = coding.work, coding.work.assignment.order
    return {
        "task": work.assignment.task, "step": work.assignment.step, "attempt": work.assignment.attempt,
        "goal": order.goal, "whole_goal": work.spec.goal, "checks": list(work.spec.checks),
        "checks_say": coding.now.report, "findings": facts_of(coding.findings), "feedback": feedback_of(work),
        "inputs": [what for what, _ in files], "produces": list(order.produces),
        "schemas": {kind: msgspec.json.schema(KINDS[kind]) for kind in order.produces if kind in KINDS},
        "allotment": msgspec.to_builtins(order.allotment),
    }  # fmt: skip


def _declared(folder: Path, produces: tuple[str, ...], derived: tuple[str, ...]) -> list[Output]:
    """What stands in files NAME.KIND.json; nothing when the folder is gone. Raises `StepFailed` for one that cannot be
    taken, with its name."""
    outputs: list[Output] = []
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise StepFailed("tool", "the folder of its output ($KOKUBAN_OUTPUT) was replaced by something else")
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StepFailed(
            "tool", f"the folder of its output ($KOKUBAN_OUTPUT) cannot be read ({error.strerror})"
        ) from error
    for path in paths[: MAX_FILES + 1]:
        name, _, kind = path.name.removesuffix(".json").rpartition(".")
        if len(outputs) == MAX_FILES:
            raise StepFailed("tool", f"more than {MAX_FILES} files of output")
        if not path.name.endswith(".json") or not name or kind not in produces:
            wanted = f"NAME.KIND.json of a kind that is asked: {', '.join(produces)}"
            raise StepFailed("tool", f"output {path.name[:100]!r} is no {wanted}")
        try:
            token(name, "the name of an output")
            value = msgspec.json.decode(_content(path))
            artifact = msgspec.convert(value, KINDS[kind]) if kind in KINDS else value
        except (OSError, ValueError, RecursionError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)[:300]
            raise StepFailed("tool", f"output {path.name[:100]!r}: {said}") from error
        outputs.append(Output(name, artifact, derived, of="" if kind in KINDS else kind))
    return outputs


def _content(path: Path) -> bytes:
    """Of a plain file. Raises `OSError` and `ValueError`."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise ValueError(f"no file of at most {MAX_FILE_BYTES:,} bytes")
        return file.read()


def _ended(done: Finished | None, said: str) -> str:
    if done is None:
        return "the program went on although its step was over, and was killed"
    how = "was killed at the end of its time" if done.timed_out else f"ended with exit code {done.exit_code}"
    if done.signal is not None and not done.timed_out:
        how = f"was killed by signal {done.signal}"
    return f"the program {how}: {said}"


def _said(done: Finished | None, work: Work, gateway: Gateway) -> str:
    """The end of its output, where its answer or its error mostly is; without colours, our folders, and the token."""
    text = _COLOURS.sub("", done.output if done is not None else "")
    text = text.replace(gateway.token, "…").replace(str(work.home), "~").strip()
    return text[-TAIL_CHARS:] or "(no output)"
