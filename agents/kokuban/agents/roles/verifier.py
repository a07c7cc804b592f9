"""The verifier: runs the checks on a fresh checkout, compares quotes, and names the digest that it judged. No model."""

from __future__ import annotations

import asyncio
from typing import Literal

from kokuban.agents._output import Output
from kokuban.agents._work import Work
from kokuban.agents.roles.researcher import stands
from kokuban.agents.tools import CheckRun, ToolContext, run_checks_on, weakened, with_checks_from
from kokuban.blackboard.workspace import Mismatch, Tree, apply, tree_digest
from kokuban.schemas import CheckResult, Critique, Deliverable, Finding, Patch, Ref, Verdict

REASON_CHARS = 1_900
OUTPUT_CHARS = 6_000
NO_CHECKS = "no check was given for this task: the result is unchecked"


class Verifier:
    """One verdict for each artifact that the order asks to judge, and a critique beside each that fails."""

    prompt_version = None

    async def perform(self, work: Work) -> list[Output]:
        outputs: list[Output] = []
        judged = set(work.assignment.order.judges)
        verdicts: list[Verdict] = []
        sources = await work.sources()
        for ref, finding in await work.inputs(Finding):
            if ref.digest in judged:
                verdicts.append(_on_finding(ref, finding, sources))
        patches = await work.inputs(Patch)
        if any(ref.digest in judged for ref, _ in patches):
            trees = await work.trees(patches)
            for ref, patch in patches:
                if ref.digest in judged:
                    below = [(r, p) for r, p in patches if r.digest in patch.onto]
                    before = work.merge_heads(await work.workspace(), below, trees)
                    verdicts.append(
                        await self._on_tree(work, ref, before, trees[ref.digest], work.assignment.order.scope)
                    )
        for ref, deliverable in await work.inputs(Deliverable):
            if ref.digest in judged:
                verdicts.append(await self._on_deliverable(work, ref, deliverable))
        for verdict in verdicts:
            name = f"{verdict.subject.kind}-{verdict.subject.name}"[:64]
            outputs.append(Output(name, verdict, (verdict.subject.digest,)))
            if not verdict.passed:
                outputs.append(Output(name, Critique(verdict.subject, _critique(verdict)), (verdict.subject.digest,)))
        return outputs

    async def _on_deliverable(self, work: Work, ref: Ref, deliverable: Deliverable) -> Verdict:
        workspace = await work.workspace()
        tree = apply(workspace, await work.content.changes(deliverable.changes))
        if isinstance(tree, Mismatch) or (tree_digest(workspace), tree_digest(tree)) != (
            deliverable.base,
            deliverable.tree,
        ):
            return Verdict(ref, False, "whole", True, reasons=("its changes do not give the files that it names",))
        return await self._on_tree(work, ref, workspace, tree, "whole")

    async def _on_tree(self, work: Work, ref: Ref, before: Tree, after: Tree, scope: str) -> Verdict:
        """`whole`: every check passes. `part`: none that passed before fails now."""
        if work.spec.checks:  # what they print stands in the verdict
            work.saw_files("run_checks")
        checks, workspace, digest = work.spec.checks, await work.workspace(), tree_digest(after)
        whole = scope == "whole"
        weaker = await asyncio.to_thread(weakened, workspace, after, checks)
        if weaker:
            return Verdict(ref, False, _scope(whole), bool(checks), digest, reasons=_bounded(weaker))
        context = ToolContext(
            work.home / "checkout", work.home, workspace, checks=checks, check_seconds=work.spec.check_seconds
        )
        runs = await run_checks_on(with_checks_from(workspace, after, checks), context)
        earlier: dict[str, CheckRun] = {}
        if not whole and not all(run.passed for run in runs):
            earlier = {run.command: run for run in await run_checks_on(before, context)}
        results = tuple(_result(run, earlier.get(run.command)) for run in runs)
        wrong = [run for run in runs if not run.passed and (whole or earlier[run.command].passed)]
        reasons = tuple(f"check failed: {run.command}" for run in wrong)
        if not checks:
            reasons = (NO_CHECKS,)
        return Verdict(ref, not wrong, _scope(whole), bool(checks), digest, results, _bounded(reasons))


def _on_finding(ref: Ref, finding: Finding, sources: Tree) -> Verdict:
    missing = [c for c in finding.citations if not stands(sources, c)]
    reasons = tuple(f"the quote is not verbatim in {c.source}, lines {c.first}-{c.last}" for c in missing)
    return Verdict(ref, not missing, "citations", True, reasons=_bounded(reasons))


def _result(run: CheckRun, before: CheckRun | None) -> CheckResult:
    earlier = _code(before) if before else None
    return CheckResult(run.command[:2_000], _code(run), run.timed_out, earlier, run.output, run.isolation)


def _code(run: CheckRun) -> int:
    """The exit code, or minus the signal that ended it."""
    return run.exit_code if run.exit_code is not None else -(run.signal or 9)


def _critique(verdict: Verdict) -> str:
    failed = [c for c in verdict.checks if c.exit_code != 0 or c.timed_out]
    parts = [*verdict.reasons]
    for check in failed[:3]:
        end = "did not end in time" if check.timed_out else f"ended with exit code {check.exit_code}"
        parts.append(f"$ {check.command}\n{check.output[-OUTPUT_CHARS:]}\n=> {end}")
    return "\n".join(parts) or "it did not pass"


def _scope(whole: bool) -> Literal["whole", "part"]:
    return "whole" if whole else "part"


def _bounded(reasons: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(reason[:REASON_CHARS] for reason in reasons[:50])
