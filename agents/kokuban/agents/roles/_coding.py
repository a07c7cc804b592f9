"""The state of a coder's step: its checkout, what the checks say about it, and when its work may be handed over."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from kokuban.agents._output import Output
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.tools import Contained, ToolContext, run_checks_on, weakened
from kokuban.blackboard.workspace import Tree, WorkspaceError, changes, checkout, scan, tree_digest, unified
from kokuban.schemas import Finding, Opens, Patch, Ref, Usage

REPORT_CHARS = 1_000
DIFF_BYTES = 60_000
NOT_FOUND = 127
_MARKS = re.compile(r"^[\s^~?+\-=.]*$")
_NOISE = ("Traceback (most recent call last)",)
_FAILING = re.compile(r"^(?:FAIL|ERROR|FAILED):? (?!\()(.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks say of one state of the files. `failing` names the failing checks and, where their output tells,
    the failing tests in them; `missing` the programs that checks ask for and that are not there."""

    report: str = ""
    passed: dict[str, bool] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()


@dataclass
class Coding:
    """`start` is the tree that the step builds on, `onto` the patches in it, `whole` whether all checks must pass."""

    work: Work
    context: ToolContext
    start: Tree
    onto: tuple[str, ...]
    findings: list[tuple[Ref, Finding]]
    whole: bool
    before: Checked = Checked()
    now: Checked = Checked()
    changed_since_check: bool = True

    @classmethod
    async def begin(cls, work: Work, *, check: bool = True) -> Coding:
        """Check the step's files out and see what the checks say before anything is changed."""
        start, onto = await work.start()
        if start:
            work.saw_files("read_file")
        folder = work.home / "checkout"
        await asyncio.to_thread(checkout, start, folder)
        context = work.surroundings(checkout=folder, home=work.home / "home", base=start, sources=await work.sources())
        whole = work.assignment.order.scope == "whole"
        coding = cls(work, context, start, onto, await work.inputs(Finding), whole)
        if check:
            await coding.check()
        if coding.now.missing:
            wanted = ", ".join(coding.now.missing)
            raise StepFailed("input", f"check: {wanted} is not installed where this worker runs", retryable=False)
        coding.before = coding.now
        return coding

    @property
    def was_failing(self) -> bool:
        """Whether a check failed before the work began: then passing checks are the goal."""
        return bool(self.before.failing)

    @property
    def acceptable(self) -> bool:
        """Whether the verifier would pass this: all checks, or for a part of the work, none worse than before."""
        was = self.before.passed
        return all(ok or (not self.whole and not was[check]) for check, ok in self.now.passed.items())

    async def files(self) -> Tree:
        """The checkout as it is now. Raises `WorkspaceError`."""
        return await asyncio.to_thread(scan, self.context.checkout, may_be_link=False)

    async def check(self) -> None:
        """Run the checks on the files as they are, once for each state of them; a line in the journal like any call."""
        if not self.changed_since_check or not self.work.spec.checks:
            return
        digest = tree_digest(await self.files())

        async def perform() -> tuple[object, Usage]:
            runs = await run_checks_on(await self.files(), self.context)
            failing = {name for run in runs if not run.passed for name in (run.command, *_FAILING.findall(run.output))}
            return {
                "report": "\n".join(f"$ {r.command}\n{brief(r.output)}\n{_end(r.passed)}" for r in runs),
                "passed": {run.command: run.passed for run in runs},
                "failing": sorted(failing),
                "isolation": sorted({run.isolation for run in runs}),
                "missing": [word for run in runs if run.exit_code == NOT_FOUND and (word := _program(run.command))],
            }, Usage()

        played = await self.work.tape.call(lambda n: Opens(n, "tool", "run_checks", key=digest), perform)
        said = played.result
        self.now = Checked(said["report"], said["passed"], frozenset(said["failing"]), tuple(said["missing"]))
        self.changed_since_check = False

    async def restore(self, tree: Tree, checked: Checked) -> None:
        """Bring the checkout back to an earlier state, of which the checks are known."""
        await asyncio.to_thread(self._restore, await self.files(), tree)
        self.now, self.changed_since_check = checked, False

    def _restore(self, now: Tree, tree: Tree) -> None:
        with Contained(self.context.checkout) as files:
            for path in now.keys() - tree.keys():
                files.delete(path)
            for path, file in tree.items():
                if now.get(path) != file:
                    files.write(path, file)

    async def objection(self) -> str | None:
        """Why the work may not be handed over yet, in words for the model; None when it may."""
        try:
            files = await self.files()
        except WorkspaceError as error:
            return f"The files cannot be handed over: {error}"
        if tree_digest(files) == tree_digest(self.start):
            return "Nothing is changed yet: change the files first."
        weaker = weakened(await self.work.workspace(), files, self.work.spec.checks)
        if weaker:
            return "Refused: " + "; ".join(weaker)
        await self.check()
        return None if self.acceptable else "Not finished: the checks still fail."

    def standing(self) -> str:
        """What stands in the way of handing the work over, for people and the next attempt; '' when nothing does."""
        return f"the checks say:\n{self.now.report}" if self.now.passed and not self.acceptable else ""

    async def patch(self, summary: str) -> Output:
        """The runtime's own diff of the checkout against what the step started from."""
        files = await self.files()
        diff = unified(self.start, files)
        patch = Patch(
            base=tree_digest(self.start),
            result=tree_digest(files),
            changes=await self.work.content.to_wire(changes(self.start, files)),
            diff=diff if len(diff) <= DIFF_BYTES else diff[:DIFF_BYTES] + "\n… (cut)\n",
            onto=self.onto,
            summary="".join(c for c in summary if c.isprintable() or c == "\n")[:4_000],
        )
        order = self.work.assignment.order
        derived = (*(ref.digest for ref in order.inputs), *(f.digest for f in order.feedback if f.digest))
        return Output("patch", patch, tuple(dict.fromkeys(derived)))


def _program(command: str) -> str:
    """The program that a check runs, when it is a plain name: one with a path may be what the task is to make."""
    word = command.split(maxsplit=1)[0]
    return word if re.fullmatch(r"[A-Za-z0-9_.+-]+", word) else ""


def _end(passed: bool) -> str:
    return "passed" if passed else "failed"


def brief(output: str) -> str:
    """Check output for a small context: no lines of marks only, no traceback headers; head and tail when long."""
    lines = [line for line in output.splitlines() if not _MARKS.match(line) and not line.startswith(_NOISE)]
    text = "\n".join(lines).strip()
    if len(text) > REPORT_CHARS:
        text = text[: REPORT_CHARS * 2 // 3] + "\n[…]\n" + text[-REPORT_CHARS // 3 :]
    return text


def cut(value: Any, most: int) -> str:
    """Text of at most `most` characters."""
    text = str(value)
    return text if len(text) <= most else text[:most] + "…"
