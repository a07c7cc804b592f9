"""What a role program gets: the order, its inputs, its own folders, the tape, the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from kokuban.agents._output import Output, kind_of
from kokuban.agents._owner import Assignment
from kokuban.agents._tape import Tape
from kokuban.agents.models import Meter
from kokuban.agents.policy import DEFAULT, Policy, PolicyFile, Who
from kokuban.agents.toolbox import Toolbox
from kokuban.agents.tools import BUILT_IN_TOOLS, Registry, Tool, ToolContext
from kokuban.agents.tools._arguments import canonical, normalised
from kokuban.blackboard._content import Content
from kokuban.blackboard.core import Ledger
from kokuban.blackboard.memory import Memories
from kokuban.blackboard.workspace import Conflicts, Mismatch, Tree, apply, merge, tree_digest
from kokuban.schemas import Decided, Gate, Patch, Ref, TaskSpec, Trust, Wire, digest, encode, least_trusted
from kokuban.schemas.records import FailureClass

Shape = TypeVar("Shape", bound=Wire)


class StepFailed(Exception):
    """This attempt cannot succeed; `why` is its class. `conflict` names steps whose work does not fit together."""

    def __init__(
        self, why: FailureClass, reason: str, *, retryable: bool = True, conflict: tuple[str, ...] = (),
        paths: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(reason)
        self.why, self.reason, self.retryable = why, reason, retryable
        self.conflict, self.paths = conflict, paths


@dataclass
class Work:
    """One attempt at a step. `home` is a folder of its own that is removed afterwards; `deadline` an instant of the
    monotonic clock; `say` shows people what is happening and may be lost. `policy` decides what a call may do;
    `principal` is who submitted the task, `toolbox` what may be used beside the built-in tools,
    `memory` what the tenant's teams remember, `protected` the places (host:port) that no tool may reach,
    `critiques` what was written about earlier attempts at this step (`_reflection`). `trust` is the label of the least
    trusted text that this work has seen, and of what it makes; `labels` are those of the inputs, by their digests."""

    assignment: Assignment
    spec: TaskSpec
    content: Content
    tape: Tape
    ledger: Ledger
    home: Path
    deadline: float
    meter: Meter | None = None
    max_output_tokens: int = 1_500
    native_tools: bool = False
    tools: tuple[str, ...] = ()
    policy: Policy | PolicyFile = DEFAULT
    principal: str = ""
    toolbox: Toolbox | None = None
    memory: Memories | None = None
    protected: tuple[str, ...] = ()
    say: Callable[[str], None] = lambda text: None
    kept_outputs: set[str] = field(default_factory=set)
    critiques: tuple[str, ...] = ()
    trust: Trust = "model"
    labels: Mapping[str, Trust] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - self.assignment.clock.monotonic())

    @property
    def who(self) -> Who:
        """For whom this work's calls are made."""
        return Who(self.spec.tenant, self.principal, self.assignment.role, self.trust)

    def saw(self, label: Trust) -> None:
        """Text of this label has been seen: from now on nothing that this work makes is trusted more."""
        self.trust = least_trusted(self.trust, label)

    def saw_files(self, tool: str) -> None:
        """Files were shown without a call: they have the label of what this tool would have shown of them."""
        self.saw(next((one.trust for one in self._known() if one.name == tool), "untrusted"))

    def _known(self) -> tuple[Tool, ...]:
        box = self.toolbox
        return (*box.built_in, *box.tools) if box is not None else BUILT_IN_TOOLS

    def registry(self) -> Registry:
        """The tools that the role's contract names, of those that there are."""
        chosen = [tool for tool in self._known() if tool.name in self.tools]
        for tool in chosen:
            if tool.source.startswith("mcp:"):  # what its description says, a stranger wrote
                self.saw(tool.trust)
        return Registry(chosen)

    def surroundings(self, **more: Any) -> ToolContext:
        """What this work's tools may touch, with the folders `checkout` and `home` among `more`."""
        at = self.assignment
        return ToolContext(
            tenant=self.spec.tenant, principal=self.principal, task=at.task, step=at.step, author=at.role,
            memory=self.memory, inputs=tuple(ref.digest for ref in at.order.inputs), protected=self.protected,
            keep=self._keep, kept=self._kept, checks=self.spec.checks, check_seconds=self.spec.check_seconds, **more,
        )  # fmt: skip

    def secrets(self, tool: Tool) -> dict[str, str]:
        """The credentials that a tool declared. Raises `ToolError` for what is not this task's."""
        return self.toolbox.secrets(tool, self.spec.tenant, self.principal) if self.toolbox and tool.secrets else {}

    async def _keep(self, data: bytes) -> str:
        name = await self.content.keep(data)
        self.kept_outputs.add(name)
        return name

    async def _kept(self, name: str) -> bytes | None:
        return await self.content.kept(name) if name in self.kept_outputs else None

    @property
    def facts(self) -> tuple[str, ...]:
        """What people had added to the task when this work began: data. What an owner that takes the work up asks must
        be what was asked before, so later ones are for the next work."""
        return self.assignment.order.facts if self.tape.facts is None else self.tape.facts

    def key(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The idempotency key of the next call, to this tool with these arguments: for `Opens.key`, and for whoever is
        to honour it. Any attempt at this step that does the same has the same key; see `Tape.key`. Raises
        `BadArguments` for what is not plain JSON."""
        return self.tape.key(tool, canonical(normalised(arguments)))

    async def wait(self, gate: Gate) -> Decided:
        """How this gate ended. Raises `Parked` while it has not: then the step waits, with this record, held by nobody,
        and its next owner comes here again. A decision about anything but exactly this gate is void."""
        found = next((d for d in self.assignment.order.decided if d.gate == gate.id), None)
        if found is None:
            raise await self.tape.park(gate)
        if found.bound != digest(encode(gate)):
            return Decided(gate.id, "withdrawn", found.bound, "the decision was about something else than is asked now")
        return found

    async def inputs(self, shape: type[Shape]) -> list[tuple[Ref, Shape]]:
        """The order's inputs of one kind, in the order of the steps that made them."""
        kind = kind_of(shape)
        refs = [ref for ref in self.assignment.order.inputs if ref.kind == kind]
        found = await asyncio.gather(*(self.content.artifact(ref) for ref in refs))
        return [(ref, item) for ref, item in zip(refs, found, strict=True) if isinstance(item, shape)]

    async def documents(self, kind: str) -> list[tuple[Ref, Any]]:
        """The order's inputs of a registered kind, as their JSON says, in the order of the steps that made them."""
        refs = [ref for ref in self.assignment.order.inputs if ref.kind == kind]
        found = await asyncio.gather(*(self.content.raw(ref) for ref in refs))
        return [(ref, msgspec.json.decode(data)) for ref, data in zip(refs, found, strict=True)]

    async def workspace(self) -> Tree:
        """The task's workspace as it was submitted."""
        return await self.content.tree(self.spec.workspace)

    async def sources(self) -> Tree:
        """The task's documents."""
        return await self.content.tree(self.spec.sources)

    async def start(self) -> tuple[Tree, tuple[str, ...]]:
        """The workspace with the patches of all inputs merged in, and their digests. Raises `StepFailed`."""
        patches = await self.inputs(Patch)
        trees = await self.trees(patches)
        return self.merge_heads(await self.workspace(), patches, trees), tuple(ref.digest for ref, _ in patches)

    async def trees(self, patches: list[tuple[Ref, Patch]]) -> dict[str, Tree]:
        """Patch digest to the tree that it gives, for patches in the order of their steps. Raises `StepFailed` when one
        does not give the files that it names, or builds on work that is not here."""
        workspace = await self.workspace()
        trees: dict[str, Tree] = {}
        for ref, patch in patches:
            if not trees.keys() >= set(patch.onto):
                raise StepFailed("input", f"the patch of step {ref.step} builds on work that has been replaced")
            below = [(r, p) for r, p in patches if r.digest in patch.onto]
            base = self.merge_heads(workspace, below, trees)
            result = apply(base, await self.content.changes(patch.changes))
            if isinstance(result, Mismatch) or (tree_digest(base), tree_digest(result)) != (patch.base, patch.result):
                raise StepFailed("input", f"the patch of step {ref.step} does not give the files that it names")
            trees[ref.digest] = result
        return trees

    @staticmethod
    def merge_heads(workspace: Tree, patches: list[tuple[Ref, Patch]], trees: dict[str, Tree]) -> Tree:
        """Three-way merge over the workspace of what these patches give; one that another builds on is part of that.
        Raises `StepFailed` with class `conflict`, naming steps and paths."""
        below = {digest for _, patch in patches for digest in patch.onto}
        sides = [(ref.step, trees[ref.digest]) for ref, _ in patches if ref.digest not in below]
        merged = merge(workspace, sides)
        if isinstance(merged, Conflicts):
            steps = tuple(dict.fromkeys(side for c in merged.conflicts for side in c.sides))
            text = "; ".join(f"{c.path}: {c.reason} ({', '.join(c.sides)})" for c in merged.conflicts[:10])
            paths = tuple(c.path for c in merged.conflicts[:50])
            raise StepFailed("conflict", f"the work of steps {', '.join(steps)} does not fit together: {text}",
                             conflict=steps, paths=paths)  # fmt: skip
        return merged.tree


class Role(Protocol):
    """A role's program: give the outputs that the order asks for, or raise `StepFailed`."""

    async def perform(self, work: Work) -> list[Output]: ...
