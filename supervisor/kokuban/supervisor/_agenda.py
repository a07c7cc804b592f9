"""The agenda: of all that could run next, what runs first (Hayes-Roth's blackboard control, 1985: rated, then picked).

Offers wait until there is room. Among tenants, who has least under way goes first, in turn when that is the same; among
a tenant's offers, the best rated one. Ratings grow alike with age, so an offer is rated once; a task with a deadline is
rated anew now and then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from kokuban.blackboard.core import Task
from kokuban.supervisor._commands import Offer

WEIGHTS: Mapping[str, float] = {
    "plan_order": 1.0, "priority": 1_000.0, "deadline": 100.0, "cost": 0.01, "staleness": 10.0, "age": 1.0,
}  # fmt: skip
"""Points per place later in the plan (taken away), per unit of priority, per hour that the deadline is nearer than a
day, per thousand tokens that the order may cost (taken away), for work that became stale, per minute of age."""


def rating(task: Task, offer: Offer, weights: Mapping[str, float], now: float) -> float:
    """How much this should run next: higher goes first. A weight that is not given has its default."""
    weight = {**WEIGHTS, **weights}
    nearer = 0.0 if task.deadline is None else max(0.0, 24 - (task.deadline - now) / 3_600)
    return (
        weight["priority"] * task.spec.priority
        + weight["deadline"] * nearer
        + weight["staleness"] * offer.stale
        - weight["plan_order"] * offer.position
        - weight["cost"] * offer.order.order.allotment.tokens / 1_000
        - weight["age"] * task.time / 60
    )


@dataclass(slots=True)
class _Waiting:
    """An offer in its heap; `live` until it is taken or its task has changed."""

    offer: Offer
    live: bool = True


class Agenda:
    """Offers by role and tenant, best first."""

    def __init__(self) -> None:
        self._heaps: dict[str, dict[str, list[tuple[float, int, _Waiting]]]] = {}
        self._of_task: dict[str, list[_Waiting]] = {}
        self._number = count()
        self._served: dict[tuple[str, str], int] = {}  # role and tenant to the number of its last turn

    def put(self, task: Task, offers: list[Offer], weights: Mapping[str, float], now: float) -> None:
        """Replace what this task offers."""
        self.drop(task.id)
        for offer in offers:
            entry = _Waiting(offer)
            self._of_task.setdefault(task.id, []).append(entry)
            heap = self._heaps.setdefault(offer.order.role, {}).setdefault(task.tenant, [])
            heapq.heappush(heap, (-rating(task, offer, weights, now), next(self._number), entry))

    def drop(self, task: str) -> None:
        """The task has changed: what it offered is void."""
        for entry in self._of_task.pop(task, ()):
            entry.live = False

    def __len__(self) -> int:
        return sum(map(len, self._of_task.values()))

    def pick(
        self, role: str, under_way: Mapping[str, int], full: Callable[[str], bool], allows: Callable[[Offer], bool]
    ) -> Offer | None:
        """Take the next offer of a role: the best one of the tenant that has least under way and is not `full`, of
        those that `allows` lets through (a task may be at its own limit). Of tenants that have the same under way, the
        one whose last turn is longest ago: else the first of them would have every slot that falls free."""
        heaps = self._heaps.get(role, {})
        for tenant in sorted(heaps, key=lambda name: (under_way.get(name, 0), self._served.get((role, name), -1))):
            found = None if full(tenant) else _best(heaps[tenant], allows)
            if not heaps[tenant]:
                del heaps[tenant]
            if found is not None:
                self._of_task[found.offer.task].remove(found)
                found.live = False
                self._served[(role, tenant)] = next(self._number)
                return found.offer
        return None


def _best(heap: list[tuple[float, int, _Waiting]], allows: Callable[[Offer], bool]) -> _Waiting | None:
    passed = []
    found = None
    while heap and found is None:
        top = heapq.heappop(heap)
        if top[2].live and allows(top[2].offer):
            found = top[2]
        elif top[2].live:
            passed.append(top)
    for entry in passed:
        heapq.heappush(heap, entry)
    return found
