"""The file that names tools (TOML)."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from kokuban.schemas import Trust

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]


class InvalidToolbox(ValueError):
    """A file of tools that cannot be used; the message names the file, the field and what is expected."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class McpServer(_Part):
    """A server that is started (`command`) or asked (`url`, streamable HTTP). Of the environment it gets what is needed
    to run, and the variables in `environment`."""

    command: tuple[str, ...] = ()
    url: str = Field(default="", pattern=r"^(https?://[^\s@]+)?$")
    environment: tuple[Variable, ...] = ()
    timeout_seconds: float = Field(default=30.0, gt=0, le=3_600)

    @model_validator(mode="after")
    def _one(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        return self


class Declared(_Part):
    """What a person says about a tool, over what its source says."""

    tier: Literal["read", "write", "consequential"] | None = None
    effect: Literal["read", "keyed", "other"] | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=86_400)
    result_cap_bytes: int | None = Field(default=None, ge=256, le=1_000_000)
    secrets: tuple[Variable, ...] | None = None
    trust: Trust | None = None


class Secret(_Part):
    """A credential, from the environment variable KOKUBAN_SECRET_<its name>. It is for tasks of these tenants and
    people only; an empty list is everybody."""

    tenants: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()


class ToolboxFile(_Part):
    """`python`: modules whose tools are taken, looked for beside the file first. `tool`: declarations by name."""

    python: tuple[str, ...] = ()
    mcp: dict[Name, McpServer] = {}
    tool: dict[Name, Declared] = {}
    secret: dict[Variable, Secret] = {}

    @model_validator(mode="after")
    def _apart(self) -> ToolboxFile:
        """A tool's name begins with its server's: which server's it is must be plain."""
        for name in self.mcp:
            longer = next((other for other in self.mcp if other.startswith(f"{name}_")), None)
            if longer is not None:
                raise ValueError(
                    f"mcp.{longer}: its name begins with that of {name} and '_', so its tools' could be its"
                )
        return self


def parse_toolbox(text: str, origin: str) -> ToolboxFile:
    """Raises `InvalidToolbox`."""
    try:
        return ToolboxFile.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidToolbox(f"{origin}: not TOML: {error}") from error
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'file'}: {e['msg']}" for e in error.errors()[:10]]
        raise InvalidToolbox(f"{origin}: " + "; ".join(lines)) from error
