"""The integrator: code that merges what the others made into one deliverable, and says where each part came from."""

from __future__ import annotations

from kokuban.agents._output import Output
from kokuban.agents._work import Work
from kokuban.blackboard.workspace import changes, tree_digest, unified
from kokuban.schemas import Deliverable, Finding, Part, Patch, Ref

DIFF_BYTES = 100_000


class Integrator:
    """Three-way merge of every patch over the task's workspace. What does not fit together is a failure that names the
    steps and the paths; the supervisor has one of them redone on top of the other."""

    prompt_version = None

    async def perform(self, work: Work) -> list[Output]:
        workspace = await work.workspace()
        patches, findings = await work.inputs(Patch), await work.inputs(Finding)
        merged = work.merge_heads(workspace, patches, await work.trees(patches))
        changed = changes(workspace, merged)
        manifest = tuple(
            Part(change.path, tuple(ref for ref, patch in patches if any(c.path == change.path for c in patch.changes)))
            for change in changed
        )
        diff = unified(workspace, merged)
        cites = work.assignment.order.inputs
        deliverable = Deliverable(
            base=tree_digest(workspace),
            tree=tree_digest(merged),
            changes=await work.content.to_wire(changed),
            diff=diff if len(diff) <= DIFF_BYTES else diff[:DIFF_BYTES] + "\n… (cut; see the files)\n",
            report=_report(work, patches, findings, manifest),
            manifest=manifest,
            cites=cites,
            checked=bool(work.spec.checks),
        )
        return [Output("deliverable", deliverable, tuple(ref.digest for ref in cites))]


def _report(
    work: Work, patches: list[tuple[Ref, Patch]], findings: list[tuple[Ref, Finding]], parts: tuple[Part, ...]
) -> str:
    lines = ["# Report", "", f"Task: {work.spec.goal[:4_000]}", ""]
    if work.facts:
        lines += ["## Facts that people added", "", *(f"- {' '.join(fact.split())}" for fact in work.facts), ""]
    if patches:
        lines += ["## Changes", ""]
        lines += [f"- {ref.step}: {patch.summary or 'no summary'} (`{_short(ref)}`)" for ref, patch in patches]
        lines += ["", "Files:", ""]
        lines += [
            f"- `{part.path}` from {', '.join(r.step for r in part.sources) or 'a merge'}" for part in parts[:500]
        ]
        lines.append("")
    if findings:
        lines += ["## Findings", ""]
        for ref, finding in findings:
            lines.append(f"- {finding.statement} (`{_short(ref)}`)")
            lines += [f'  - {c.source}, lines {c.first}-{c.last}: "{c.quote}"' for c in finding.citations]
        lines.append("")
    if work.spec.checks:
        lines += ["## Checks", "", *(f"- `{check}`" for check in work.spec.checks), ""]
        lines.append(
            "They are run on the merged files by a verifier before the task is done; its verdict names their digest."
        )
    else:
        lines += ["## Checks", "", "None was given: this result is unchecked."]
    return "\n".join(lines)[:60_000] + "\n"


def _short(ref: Ref) -> str:
    return ref.digest.removeprefix("sha256:")[:12]
