"""Which model a command was told to use. Keys stay in the environment: they are no part of this."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console._options import PATH

if TYPE_CHECKING:
    from kokuban.agents.models import Model, Prices

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "KOKUBAN_API_KEY")
"""Environment variables that hold secrets. Only processes that ask a model get them."""


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

    @property
    def endpoint_name(self) -> str:
        """As `kokuban limits` names it: `openai`, or for an address `openai-compatible-127-0-0-1-8000`."""
        return self.endpoint or _endpoint_of(self.spec.partition(":")[0], self.base_url)

    def open(self) -> Model:
        """The model; nothing is sent yet. Raises `ModelConfigError`."""
        from kokuban.agents.models import ModelConfigError, open_model

        window = os.environ.get("KOKUBAN_CONTEXT_TOKENS", "")
        if window and not (window.isdecimal() and int(window) >= 1_024):
            raise ModelConfigError(f"KOKUBAN_CONTEXT_TOKENS: {window[:40]!r} is no number of tokens, at least 1024")
        return open_model(
            self.spec, base_url=self.base_url, record=self.record, env=os.environ,
            thinks=bool(os.environ.get("KOKUBAN_MODEL_THINKS")), context_tokens=int(window) if window else None,
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
        """Raises the `ModelConfigError` that `open` or `prices` would raise later."""
        self.prices()
        await self.open().aclose()

    def environment(self) -> dict[str, str]:
        """What hands this choice to a child process, together with `arguments`."""
        environment = {"KOKUBAN_MODEL": self.spec}
        return environment | {"KOKUBAN_BASE_URL": self.base_url} if self.base_url else environment

    def arguments(self) -> list[str]:
        """The command line's part of it."""
        record = ["--record", str(self.record)] if self.record else []
        endpoint = ["--endpoint", self.endpoint] if self.endpoint else []
        prices = [argument for text in self.declared for argument in ("--price", text)]
        return [*record, *endpoint, *prices, "--native-tools" if self.native_tools else "--plain-text"]


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
    model: str | None = None, base_url: str | None = None, record: Path | None = None, native_tools: bool | None = None,
    endpoint: str | None = None, prices: tuple[str, ...] = (),
) -> ModelChoice | None:  # fmt: skip
    """The model named by options, else by KOKUBAN_MODEL and KOKUBAN_BASE_URL. None when none is named."""
    spec = model or os.environ.get("KOKUBAN_MODEL")
    if not spec:
        return None
    kind, separator, rest = spec.partition(":")
    if kind in ("scripted", "recorded") and rest:
        spec = f"{kind}{separator}{Path(rest).expanduser().absolute()}"
    if base_url is None and kind.endswith("-compatible"):
        base_url = os.environ.get("KOKUBAN_BASE_URL") or None
    native = kind in ("openai", "anthropic") if native_tools is None else native_tools
    kept = record.expanduser().absolute() if record else None
    return ModelChoice(spec, base_url, kept, native, endpoint or "", prices)


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
    """Adds --model, --base-url, --record, --native-tools, --endpoint and --price: the arguments of `choose`."""
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
        "--model", metavar="SPEC",
        help="openai:NAME, openai-compatible:NAME, anthropic:NAME, anthropic-compatible:NAME, recorded:DIR or "
        "scripted:FILE (or KOKUBAN_MODEL).",
    )(command)  # fmt: skip
