"""Which model a command was told to use. Keys stay in the environment: they are no part of this."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console._options import PATH

if TYPE_CHECKING:
    from kokuban.agents.models import Gate as Slots
    from kokuban.agents.models import Meter, Model, Prices
    from kokuban.agents.models._meter import OnAttempt

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KOKUBAN_API_KEY", "KOKUBAN_EMBEDDINGS_KEY")
"""Environment variables that hold secrets. Only processes that ask a model get them."""


def is_key(name: str) -> bool:
    """Whether an environment variable holds a secret: one of `KEYS`, or the key of a server of its own."""
    return name in KEYS or name.startswith("KOKUBAN_API_KEY_")


_OF_ROLE = re.compile(r"([a-z][a-z0-9-]*)=(.+)", re.DOTALL)
_BY_CONTRACT = ("openai:", "anthropic:", "openai-compatible:", "anthropic-compatible:")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model by its name on the command line; paths in it are absolute, so that any process may open it."""

    spec: str
    base_url: str | None = None
    record: Path | None = None
    native_tools: bool = False
    """Whether a coder uses the provider's tool calls, or writes one file a turn in plain text (for small models)."""
    endpoint: str = ""
    """The name under which all workers share this model's endpoint; '': from the provider and the address."""
    declared: tuple[str, ...] = ()
    """Prices given as MODEL=IN,OUT, over the built-in table and KOKUBAN_PRICES."""
    text_tools: bool = False
    """Whether calls are written and read as text, where the model is no provider's own."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask, in order, when this one cannot serve."""
    roles: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Models of single roles, instead of these."""
    native_given: bool = field(default=False, compare=False)
    """Whether a person said how a coder acts, rather than the model's kind."""

    @property
    def endpoint_name(self) -> str:
        """As `kokuban limits` names it: `openai`, or for an address `openai-compatible-127-0-0-1-8000`."""
        if self.endpoint:
            return self.endpoint
        found = re.search("@(https?://.*)", self.spec)
        return _endpoint_of(self.spec.partition(":")[0], found[1] if found else self.base_url)

    @property
    def each(self) -> tuple[ModelChoice, ...]:
        """This model and its fallbacks, one by one. The address goes to those that need one and bring none; an endpoint
        that was named is the first one's."""
        others = (self._alone(spec) for spec in self.fallbacks)
        return (replace(self._alone(self.spec), endpoint=self.endpoint), *others)

    def _alone(self, spec: str) -> ModelChoice:
        # An address beside a single model that takes none is a mistake, which opening it says.
        url = self.base_url if _takes_address(spec) or not self.fallbacks else None
        return replace(self, spec=spec, base_url=url, fallbacks=(), roles=(), endpoint="")

    def for_role(self, role: str, named: Sequence[str] = ()) -> ModelChoice:
        """The choice for one role: what was given for it, else what its contract names, else what was given for all.
        Raises a usage error for a contract that names what only an operator may: an address, or a file."""
        own = dict(self.roles).get(role) or by_contract(named)
        if not own:
            return replace(self, roles=())
        native = self.native_tools if self.native_given else self.text_tools or _is_native(own[0])
        url = self.base_url if any(_takes_address(spec) for spec in own) else None
        return replace(self, spec=own[0], fallbacks=own[1:], roles=(), base_url=url, native_tools=native)

    def check_roles(self, known: Sequence[str]) -> None:
        """Raises a usage error when a model is given for a role that is not among these."""
        unknown = [role for role, _ in self.roles if role not in known]
        if unknown:
            raise click.UsageError(f"model: {unknown[0]!r} is none of the roles {', '.join(known)}")

    def meter(self, gates: Mapping[str, Slots] | None = None, on_attempt: OnAttempt | None = None) -> Meter:
        """The way to this model and its fallbacks. `gates` are by endpoint. Raises `ModelConfigError`."""
        from kokuban.agents.models import Meter

        prices, gates = self.prices(), gates or {}
        first, *others = ((one.open(), gates.get(one.endpoint_name)) for one in self.each)
        fallbacks = [Meter(model, prices=prices, on_attempt=on_attempt, gate=gate) for model, gate in others]
        return Meter(first[0], prices=prices, on_attempt=on_attempt, gate=first[1], fallbacks=fallbacks)

    def open(self) -> Model:
        """The first model; nothing is sent yet. Raises `ModelConfigError`."""
        from kokuban.agents.models import ModelConfigError, open_model

        window = os.environ.get("KOKUBAN_CONTEXT_TOKENS", "")
        if window and not (window.isdecimal() and int(window) >= 1_024):
            raise ModelConfigError(f"KOKUBAN_CONTEXT_TOKENS: {window[:40]!r} is no number of tokens, at least 1024")
        return open_model(
            self.spec, base_url=self.base_url, record=self.record, env=os.environ,
            thinks=bool(os.environ.get("KOKUBAN_MODEL_THINKS")), context_tokens=int(window) if window else None,
            text_tools=self.text_tools,
        )  # fmt: skip

    def prices(self) -> Prices:
        """What its calls cost. Raises `ModelConfigError`."""
        from kokuban.agents.models import Prices

        file = os.environ.get("KOKUBAN_PRICES")
        prices = Prices.load(Path(file) if file else None)
        for text in self.declared:
            prices = prices.declare(text)
        return prices

    async def validate(self) -> None:
        """Raises the `ModelConfigError` that opening any of the models, or the prices, would raise later."""
        await self.meter().aclose()
        for role, _ in self.roles:
            await self.for_role(role).meter().aclose()

    def environment(self) -> dict[str, str]:
        """What hands this choice to a child process, together with `arguments`."""
        environment = {"KOKUBAN_MODEL": "\n".join((self.spec, *self.fallbacks))}
        return environment | {"KOKUBAN_BASE_URL": self.base_url} if self.base_url else environment

    def arguments(self) -> list[str]:
        """The command line's part of it."""
        record = ["--record", str(self.record)] if self.record else []
        endpoint = ["--endpoint", self.endpoint] if self.endpoint else []
        prices = [argument for text in self.declared for argument in ("--price", text)]
        text = ["--text-tools"] if self.text_tools else []
        return [*record, *endpoint, *prices, *text, "--native-tools" if self.native_tools else "--plain-text"]


def _endpoint_of(provider: str, base_url: str | None) -> str:
    """A name for a server: the same for every spelling of its address that differs in case or in a default port."""
    import hashlib
    import re
    from urllib.parse import urlsplit

    if not base_url:
        return provider
    try:
        parts = urlsplit(base_url.strip())
        host, port = parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError:
        return provider  # no address; opening the model says so
    words = re.sub("[^a-z0-9]+", "-", host.lower()).strip("-")
    name = f"{provider}-{words}-{port}"
    return name if len(name) <= 64 else f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:13]}"


def choose(
    model: str | Sequence[str] | None = None, base_url: str | None = None, record: Path | None = None,
    native_tools: bool | None = None, endpoint: str | None = None, prices: tuple[str, ...] = (),
    text_tools: bool = False,
) -> ModelChoice | None:  # fmt: skip
    """The models named by options, else by KOKUBAN_MODEL (one a line) and KOKUBAN_BASE_URL: each SPEC, asked in order
    when those before it cannot serve, or ROLE=SPEC for one role alone. None when none is named. Raises a usage error
    when only roles have one."""
    given = [model] if isinstance(model, str) else list(model or ())
    given = given or os.environ.get("KOKUBAN_MODEL", "").splitlines()
    every: list[str] = []
    roles: dict[str, tuple[str, ...]] = {}
    for text in (text.strip() for text in given if text.strip()):
        of_role = _OF_ROLE.fullmatch(text)
        if of_role:
            roles[of_role[1]] = (*roles.get(of_role[1], ()), _absolute(of_role[2]))
        else:
            every.append(_absolute(text))
    if not every and not roles:
        return None
    if not every:
        raise click.UsageError("model: only single roles have one; name one for the others too, without ROLE=")
    if base_url is None and any(_takes_address(spec) for own in (every, *roles.values()) for spec in own):
        base_url = os.environ.get("KOKUBAN_BASE_URL") or None
    native = text_tools or _is_native(every[0]) if native_tools is None else native_tools
    kept = record.expanduser().absolute() if record else None
    return ModelChoice(
        every[0], base_url, kept, native, endpoint or "", prices, text_tools, tuple(every[1:]), tuple(roles.items()),
        native_given=native_tools is not None,
    )  # fmt: skip


def choose_for(role: str, named: Sequence[str], **options: Any) -> ModelChoice | None:
    """`choose`, for a worker of one role whose contract names these models."""
    choice = choose(**options)
    if choice is None and named:
        choice = choose(**{**options, "model": by_contract(named)})
    return choice.for_role(role, named) if choice is not None else None


def by_contract(named: Sequence[str]) -> tuple[str, ...]:
    """The models that a contract names. Raises a usage error for one with an address, or for a file: a contract comes
    from the board, and where keys and files go is for whoever starts the worker to say."""
    for spec in named:
        if not spec.startswith(_BY_CONTRACT) or "://" in spec:
            raise click.UsageError(
                f"the role's contract names the model {spec!r}; it may name openai:NAME, anthropic:NAME, "
                "openai-compatible:NAME or anthropic-compatible:NAME, and no address: give that with --base-url"
            )
    return tuple(named)


def _absolute(spec: str) -> str:
    kind, separator, rest = spec.partition(":")
    if kind in ("scripted", "recorded") and rest:
        return f"{kind}{separator}{Path(rest).expanduser().absolute()}"
    return spec


def _takes_address(spec: str) -> bool:
    return spec.partition(":")[0].endswith("-compatible") and not re.search("@https?://", spec)


def _is_native(spec: str) -> bool:
    return spec.startswith(("openai:", "anthropic:"))


class NoModel(click.ClickException):
    """No model is named where one is needed. Nothing was started."""

    exit_code = 2


def required(choice: ModelChoice | None) -> ModelChoice:
    """The choice, or the usage error that tells the ways to make one."""
    if choice is None:
        from kokuban.agents.models import describe_ways

        raise NoModel(describe_ways())
    return choice


def _endpoint(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    from kokuban.schemas import subjects

    return subjects.token(value, "endpoint") if value is not None else None


def model_options(command: Any) -> Any:
    """Adds --model, --base-url, --record, --native-tools, --text-tools, --endpoint and --price: the arguments of
    `choose`."""
    command = click.option(
        "--text-tools", is_flag=True,
        help="Tell compatible models of tools in words, and read calls from what they write (for small models).",
    )(command)  # fmt: skip
    command = click.option(
        "--price", "prices", multiple=True, metavar="MODEL=IN,OUT",
        help="What a model costs, in dollars per million tokens (or a file of prices in KOKUBAN_PRICES).",
    )(command)  # fmt: skip
    command = click.option(
        "--endpoint", metavar="NAME", callback=_endpoint,
        help="The model server's name in `kokuban limits` (default: from the provider and the address).",
    )(command)  # fmt: skip
    command = click.option(
        "--native-tools/--plain-text", default=None,
        help="How a coder acts: the provider's tool calls (default for openai, anthropic), or one file a turn in text.",
    )(command)  # fmt: skip
    command = click.option(
        "--record", type=PATH, metavar="DIR",
        help="Keep every reply of the model in this folder, to replay with --model recorded:DIR.",
    )(command)  # fmt: skip
    command = click.option(
        "--base-url", metavar="URL", help="Address of an openai- or anthropic-compatible server (or KOKUBAN_BASE_URL)."
    )(command)
    return click.option(
        "--model", metavar="[ROLE=]SPEC", multiple=True,
        help="openai:NAME, openai-compatible:NAME, anthropic:NAME, anthropic-compatible:NAME, recorded:DIR or "
        "scripted:FILE (or KOKUBAN_MODEL); a compatible one may end in @URL. Given again: asked when those before it "
        "cannot serve. With ROLE=: for that role alone.",
    )(command)  # fmt: skip
