"""How far what a step works on can be trusted: as far as the least trusted text that it has seen.

All of it is read from the board, and what tools showed stands in the journal: an owner that takes a step up comes to
the same label.
"""

from __future__ import annotations

import asyncio

from kokuban.agents._owner import Owner
from kokuban.blackboard._content import Content
from kokuban.schemas import Trust, least_trusted, subjects

PLANNER, PLAN = "planner", "plan"
QUOTES = ("refused", "verdict", "failed", "conflict")
"""Reasons why an earlier attempt did not count whose words may quote anything that it had seen."""


async def handed(owner: Owner, content: Content, *, plans: bool) -> tuple[dict[str, Trust], Trust]:
    """The labels of what the order hands over, by digest, and of all of it together. With `plans` the plan that the
    step's goal stands in counts, too. Raises `BusError`."""
    at = owner.assignment
    refs = [ref for ref in at.order.inputs if ref.kind != "task"]
    found: list[Trust] = list(await asyncio.gather(*(content.trust(ref) for ref in refs)))
    labels = {ref.digest: label for ref, label in zip(refs, found, strict=True)}
    if any(feedback.reason in QUOTES for feedback in at.order.feedback):
        found.append("untrusted")
    if plans and at.role != PLANNER:
        records = await owner.records(subjects.register(at.task, PLANNER, PLAN))
        found += [record.trust for _, record in records if record.type == "step.done"][-1:]
    return labels, least_trusted("system", *found)
