"""What tools may touch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kokuban.agents.tools.guard import CheckRules
from kokuban.blackboard.workspace import Tree


@dataclass(frozen=True)
class ToolContext:
    """One step's surroundings.

    checkout: folder with the step's own copy of the workspace; the file tools work here and nowhere else.
    home: the step's own home folder, outside the checkout; commands get it as HOME.
    base: the workspace as the step found it; its check files are the ones that count.
    sources: reference material to search, never changed.
    checks: the task's check commands.
    check_seconds: time each check has; output_cap_bytes: bytes of each check's output that are kept.
    env_extra: environment variables for commands beyond the scrubbed few.
    key: idempotency key of the present call, for a tool that acts elsewhere: the same when the call is made again.
    """

    checkout: Path
    home: Path
    base: Tree = field(default_factory=dict)
    sources: Tree = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    check_seconds: float = 60.0
    output_cap_bytes: int = 8_192
    env_extra: Mapping[str, str] = field(default_factory=dict)
    key: str = ""

    @cached_property
    def rules(self) -> CheckRules:
        """Which files the step may not touch, because they decide whether its work is right."""
        return CheckRules(self.base, self.checks)
