"""Role contracts: what a role consumes and produces, when it runs, what it may use. Data (TOML), never code.

The built-in five come with this package; a user's are registered on the board beside them.
"""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, ValidationInfo, model_validator

from kokuban.schemas._base import MAX_COUNT
from kokuban.schemas.artifacts import KINDS
from kokuban.schemas.records import Allotment, Teammate
from kokuban.schemas.subjects import TOKEN

Name = Annotated[str, StringConstraints(pattern=TOKEN)]
_GIVEN_BY = {
    "plan": "start", "patch": "planned", "verdict": "triggered", "critique": "triggered", "deliverable": "end",
    "task": "nobody",
}  # fmt: skip
"""Kinds that mean something to the runtime, and the `when` of the roles that alone may give them."""


class InvalidContract(ValueError):
    """A contract that cannot be used; the message names the file, the field and what is expected."""


class Limits(BaseModel):
    """Per attempt, except `concurrency`. 0 is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    concurrency: int = Field(default=4, ge=1, le=10_000, description="Steps under way at once, on all machines.")
    steps: int = Field(default=12, ge=0, le=10_000, description="Model turns.")
    tool_calls: int = Field(default=20, ge=0, le=10_000)
    tokens: int = Field(default=32_000, ge=0, le=MAX_COUNT, description="Input and output tokens together.")
    seconds: int = Field(default=90, ge=0, le=86_400, description="Wall clock.")

    def allotment(self) -> Allotment:
        return Allotment(steps=self.steps, tool_calls=self.tool_calls, tokens=self.tokens, seconds=self.seconds)


class Contract(BaseModel):
    """One role. `when` says what starts a step of it: the task (`start`), the plan (`planned`), an admitted artifact of
    a kind in `triggers` (`triggered`), or the end of all other work (`end`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Name
    summary: str = Field(min_length=1, max_length=500)
    when: Literal["start", "planned", "triggered", "end"]
    consumes: tuple[Name, ...] = ()
    produces: tuple[Name, ...] = Field(min_length=1)
    triggers: tuple[Name, ...] = ()
    tools: tuple[Name, ...] = ()
    requires: tuple[Literal["sources"], ...] = Field(default=(), description="What a task must come with.")
    model: bool = Field(default=False, strict=True, description="Whether the role asks a model.")
    models: tuple[Annotated[str, StringConstraints(pattern=r"^[^\s]{1,200}$")], ...] = Field(
        default=(), description="Models to ask, the first that works; none: the worker's."
    )
    shape: Literal["react", "plan-execute", "workflow"] = Field(default="workflow", description="How its loop runs.")
    reflect: bool | None = Field(
        default=None, strict=True,
        description="Whether an attempt after one that did not count begins with the model's critique of that one; "
        "none: yes for react and plan-execute.",
    )  # fmt: skip
    limits: Limits = Limits()

    @property
    def reflects(self) -> bool:
        """Whether a new attempt begins with a critique of the last one, written by the role's model."""
        return self.model and (self.shape != "workflow" if self.reflect is None else self.reflect)

    @model_validator(mode="after")
    def _sound(self, info: ValidationInfo) -> Contract:
        known = (*KINDS, *(info.context or {}).get("kinds", ()))
        for field in ("consumes", "produces", "triggers"):
            unknown = [kind for kind in getattr(self, field) if kind not in known]
            if unknown:
                raise ValueError(f"{field}: unknown kinds {', '.join(unknown)}; known are {', '.join(known)}")
        if (self.when == "triggered") != bool(self.triggers):
            raise ValueError('triggers: name at least one kind exactly when `when = "triggered"`')
        return self

    def teammate(self) -> Teammate:
        return Teammate(role=self.role, summary=self.summary, consumes=self.consumes, produces=self.produces)


Crew = Mapping[str, Contract]
"""Role name to contract."""


def parse_contract(text: str, origin: str, kinds: Collection[str] = ()) -> Contract:
    """Read one contract, which may name the registered `kinds` beside the built-in ones. Raises `InvalidContract`
    naming `origin`, the field and what was expected."""
    try:
        return Contract.model_validate(tomllib.loads(text), context={"kinds": kinds})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidContract(f"{origin}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'contract'}: {e['msg']}" for e in error.errors()]
        raise InvalidContract(f"{origin}: " + "; ".join(lines)) from error


def check_crew(contracts: Sequence[Contract]) -> Crew:
    """A crew that can end a task and prove it: one role that starts it with a plan, one that ends it with a
    deliverable, one that is triggered to judge that; no name twice. What means something to the runtime is given by the
    roles that may, each kind is judged by one role at most, and none sets another off for ever. Raises
    `InvalidContract`."""
    crew: dict[str, Contract] = {}
    for contract in contracts:
        if contract.role in crew:
            raise InvalidContract(f"role: {contract.role!r} has two contracts")
        crew[contract.role] = contract
    for when, kind in (("start", "plan"), ("end", "deliverable")):
        found = [c for c in contracts if c.when == when]
        if len(found) != 1:
            raise InvalidContract(f"when: exactly one role must have when = {when!r}, {len(found)} have")
        if found[0].produces != (kind,):
            raise InvalidContract(
                f"produces: {found[0].role!r} has when = {when!r} and must produce {kind!r} and nothing else"
            )
    for contract in contracts:
        for kind in contract.produces:
            if _GIVEN_BY.get(kind, contract.when) != contract.when:
                raise InvalidContract(
                    f"produces: {contract.role!r} has when = {contract.when!r}; {kind!r} is given by "
                    f"{_GIVEN_BY[kind]!r} roles alone"
                )
    _check_judges(contracts)
    _check_circles(contracts)
    return crew


def _check_judges(contracts: Sequence[Contract]) -> None:
    """A verdict decides what counts: two roles that judge the same kind could overrule each other."""
    judges: dict[str, list[str]] = {"deliverable": []}
    for contract in contracts:
        if "verdict" in contract.produces:
            for kind in contract.triggers:
                judges.setdefault(kind, []).append(contract.role)
        elif "deliverable" in contract.triggers:
            raise InvalidContract(
                f"triggers: {contract.role!r} is triggered by 'deliverable' and must produce 'verdict': it is the end"
            )
    if not judges["deliverable"]:
        raise InvalidContract("triggers: no role that produces 'verdict' is triggered by 'deliverable'")
    for kind, roles in judges.items():
        if len(roles) > 1:
            raise InvalidContract(f"triggers: {kind!r} is judged by {' and '.join(map(repr, roles))}; one role may")


def _check_circles(contracts: Sequence[Contract]) -> None:
    """Roles that are triggered, directly or not, by what they produce would run for ever."""
    waiting = {c.role: c for c in contracts if c.when == "triggered"}
    while waiting:
        made = {kind for contract in waiting.values() for kind in contract.produces}
        free = [role for role, contract in waiting.items() if not made.intersection(contract.triggers)]
        if not free:
            raise InvalidContract(f"triggers: these roles would set each other off for ever: {', '.join(waiting)}")
        for role in free:
            del waiting[role]


def with_limits(crew: Crew, concurrency: Mapping[str, int]) -> Crew:
    """The crew with other limits on the steps of a role under way at once. Raises `InvalidContract` naming the role."""
    changed = dict(crew)
    for role, count in concurrency.items():
        if role not in crew:
            raise InvalidContract(f"limit: there is no role {role!r}; the roles are {', '.join(crew)}")
        if not 1 <= count <= 10_000:
            raise InvalidContract(f"limit: {role}={count} is outside 1 to 10000")
        limits = crew[role].limits.model_copy(update={"concurrency": count})
        changed[role] = crew[role].model_copy(update={"limits": limits})
    return changed


@functools.cache
def builtin_crew() -> Crew:
    """The five built-in roles: planner, researcher, coder, verifier, integrator."""
    folder = importlib.resources.files("kokuban.schemas").joinpath("roles")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return check_crew([parse_contract(f.read_text("utf-8"), f.name) for f in files])
