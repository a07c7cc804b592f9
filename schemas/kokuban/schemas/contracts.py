"""Role contracts: what a role consumes and produces, when it runs, what it may use. Data (TOML), never code."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from kokuban.schemas._base import MAX_COUNT
from kokuban.schemas.artifacts import KINDS
from kokuban.schemas.records import Allotment, Teammate
from kokuban.schemas.subjects import TOKEN

Name = Annotated[str, StringConstraints(pattern=TOKEN)]


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
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _sound(self) -> Contract:
        for field in ("consumes", "produces", "triggers"):
            unknown = [kind for kind in getattr(self, field) if kind not in KINDS]
            if unknown:
                raise ValueError(f"{field}: unknown kinds {', '.join(unknown)}; known are {', '.join(KINDS)}")
        if (self.when == "triggered") != bool(self.triggers):
            raise ValueError('triggers: name at least one kind exactly when `when = "triggered"`')
        return self

    def teammate(self) -> Teammate:
        return Teammate(role=self.role, summary=self.summary, consumes=self.consumes, produces=self.produces)


Crew = Mapping[str, Contract]
"""Role name to contract."""


def parse_contract(text: str, origin: str) -> Contract:
    """Read one contract. Raises `InvalidContract` naming `origin`, the field and what was expected."""
    try:
        return Contract.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidContract(f"{origin}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'contract'}: {e['msg']}" for e in error.errors()]
        raise InvalidContract(f"{origin}: " + "; ".join(lines)) from error


def check_crew(contracts: list[Contract]) -> Crew:
    """A crew that can end a task: one role that starts it with a plan, one that ends it with a deliverable, one that is
    triggered to judge that; no name twice. Raises `InvalidContract`."""
    crew: dict[str, Contract] = {}
    for contract in contracts:
        if contract.role in crew:
            raise InvalidContract(f"role: {contract.role!r} has two contracts")
        crew[contract.role] = contract
    for when, kind in (("start", "plan"), ("end", "deliverable"), ("triggered", "verdict")):
        found = [c for c in contracts if c.when == when]
        if len(found) != 1:
            raise InvalidContract(f"when: exactly one role must have when = {when!r}, {len(found)} have")
        role, produces = found[0].role, found[0].produces
        if kind not in produces or (when != "triggered" and len(produces) > 1):
            alone = "" if when == "triggered" else " and nothing else"
            raise InvalidContract(f"produces: {role!r} has when = {when!r} and must produce {kind!r}{alone}")
        if when == "triggered" and "deliverable" not in found[0].triggers:
            raise InvalidContract(f"triggers: {role!r} must be triggered by 'deliverable' too: nobody else judges it")
    return crew


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
