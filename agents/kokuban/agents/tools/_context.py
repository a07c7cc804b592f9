"""What tools may touch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban.agents.tools.guard import CheckRules
from kokuban.blackboard.workspace import Tree
from kokuban.schemas import Trust

if TYPE_CHECKING:
    from kokuban.blackboard.memory import Memories


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
    tenant, principal, task, step, author: whose task this is, and who works on it; what a tool may see elsewhere is
        theirs and nobody else's.
    secrets: the credentials of that principal which the present tool declared, by name.
    memory: the tenant's long-term memory, None where there is none.
    inputs: digests of the artifacts that the step works from.
    trust: how far what the step has seen so far can be trusted. `saw` takes the label of what the present call shows
        beyond what the tool itself declares.
    keep: stores a result in full and returns its digest, None where results are not kept; `kept` gives it back, to the
        step that kept it alone.
    egress: hosts that a fetch may reach.
    protected: places (host:port or IP:port) that no tool may reach whatever else is allowed: the bus, the model server.
    local: addresses (IP:port) outside the internet that a fetch may reach all the same.
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
    tenant: str = "default"
    principal: str = ""
    task: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    author: str = ""
    step: str = ""
    memory: Memories | None = None
    inputs: tuple[str, ...] = ()
    trust: Trust = "untrusted"
    saw: Callable[[Trust], None] = lambda label: None
    keep: Callable[[bytes], Awaitable[str]] | None = None
    kept: Callable[[str], Awaitable[bytes | None]] | None = None
    egress: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    @cached_property
    def rules(self) -> CheckRules:
        """Which files the step may not touch, because they decide whether its work is right."""
        return CheckRules(self.base, self.checks)
