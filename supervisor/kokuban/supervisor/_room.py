"""Room: how much more may be under way by role, tenant and task; orders that are being written count (invariant 7)."""

from __future__ import annotations

from collections import Counter

from kokuban.blackboard.core import Board
from kokuban.schemas import Allotment
from kokuban.schemas.contracts import Crew
from kokuban.supervisor._commands import Limits


class Room:
    """Counts what is under way by the board and what was promised since. `promised` are orders, and answers to owners
    that asked for more, that are being written: by task and step, with what they may spend."""

    def __init__(self, board: Board, limits: Limits) -> None:
        self.promised: dict[tuple[str, str], Allotment] = {}
        self._board = board
        self._limits = limits
        self._roles: dict[tuple[str, str], str] = {}

    def promise(self, task: str, step: str, role: str, allotment: Allotment) -> None:
        """An order is about to be written: it counts from now on."""
        self.promised[(task, step)] = allotment
        self._roles[(task, step)] = role

    def kept(self, task: str, step: str) -> None:
        """The order is folded, or was not written."""
        self.promised.pop((task, step), None)
        self._roles.pop((task, step), None)

    def of_role(self, role: str, crew: Crew) -> int:
        """How many more steps of the role may run."""
        limit = self._board.limits.roles.get(role, crew[role].limits.concurrency)
        unfolded = sum(r == role for key, r in self._roles.items() if key not in self._board.under_way)
        return limit - self._board.running[role] - unfolded

    def of_task(self, task: str) -> int:
        """How many more steps of the task may run."""
        said = self._board.limits.steps_per_task
        limit = self._limits.steps_per_task if said is None else said
        return limit - sum(key[0] == task for key in self._keys())

    def by_tenant(self) -> Counter[str]:
        """Steps under way by tenant."""
        tasks = self._board.tasks
        return Counter(tasks[task].tenant for task, _ in self._keys() if task in tasks)

    def is_full(self, tenant: str, under_way: Counter[str]) -> bool:
        """Whether the tenant is at its own limit."""
        limit = self._board.limits.tenants.get(tenant)
        return limit is not None and limit.concurrency is not None and under_way[tenant] >= limit.concurrency

    def _keys(self) -> set[tuple[str, str]]:
        return self._board.under_way.keys() | self.promised.keys()
