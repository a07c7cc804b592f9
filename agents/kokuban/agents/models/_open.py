"""From what a person wrote after `--model` to a model."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from kokuban.blackboard.redaction import conceal

from ._errors import ModelConfigError
from ._model import Model

_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_KEY = "OPENAI_API_KEY"
_ANTHROPIC_URL = "https://api.anthropic.com/v1"
_ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
_KEY = "KOKUBAN_API_KEY"
_KINDS = ("openai", "openai-compatible", "anthropic", "anthropic-compatible", "scripted", "recorded")
_WAYS = (
    ("a server that speaks OpenAI's API (vLLM, llama.cpp, Ollama …)", "--model openai-compatible:NAME --base-url URL"),
    ("OpenAI, with its key in OPENAI_API_KEY", "--model openai:NAME"),
    ("Anthropic, with its key in ANTHROPIC_API_KEY", "--model anthropic:NAME"),
    ("a server that speaks Anthropic's API", "--model anthropic-compatible:NAME --base-url URL"),
    ("a session recorded earlier with --record DIR", "--model recorded:DIR"),
    ("replies from a file, for tests", "--model scripted:FILE"),
)
_EXAMPLES = (
    "--model openai-compatible:qwen2.5-coder --base-url http://127.0.0.1:8000/v1",
    "--model openai:gpt-4.1-mini",
    "--model anthropic:claude-sonnet-4-5",
    "--model anthropic-compatible:my-model --base-url http://127.0.0.1:8000/v1",
    "--model recorded:recordings/my-task",
    "--model scripted:replies.json",
)


def describe_ways() -> str:
    """What to tell a person who configured no model: each way, with one example."""
    lines = ["No model is configured. Name one with --model:"]
    for (what, form), example in zip(_WAYS, _EXAMPLES, strict=True):
        lines += [f"  {form}", f"      {what}; for example {example}"]
    lines.append(f"Keys come from the environment only: {_OPENAI_KEY}, {_ANTHROPIC_KEY}, and {_KEY} for other servers.")
    return "\n".join(lines)


def open_model(
    spec: str,
    *,
    base_url: str | None = None,
    record: Path | None = None,
    env: Mapping[str, str],
    thinks: bool = False,
    context_tokens: int | None = None,
    text_tools: bool = False,
) -> Model:
    """The model that `spec` names; nothing is sent yet.

    `base_url` is the address of a compatible server, up to but without `/chat/completions` or `/messages`; a spec that
    ends in `@URL` brings its own. `record` keeps every reply in that folder; `thinks` says that replies begin with a
    <think> block, `context_tokens` how large the model's window is, `text_tools` that a compatible (or scripted) model
    writes its calls as text. Keys are read from `env`: OPENAI_API_KEY goes to OpenAI only, ANTHROPIC_API_KEY to
    Anthropic only, KOKUBAN_API_KEY to the server at `base_url`, and the one that `key_variable` names to the server of
    an `@URL` (compatible servers may need none). Raises `ModelConfigError`, a usage error.
    """
    spec, own_url = split_address(spec)
    kind, _, rest = spec.partition(":")
    if kind not in _KINDS or not rest.strip():
        forms = ", ".join(form.removeprefix("--model ") for _, form in _WAYS)
        raise ModelConfigError(f"{spec!r} names no model; the forms are: {forms}")
    if own_url is not None and not kind.endswith("-compatible"):
        raise ModelConfigError(f"an address goes with openai-compatible or anthropic-compatible, not with {kind}")
    if base_url is not None and not kind.endswith("-compatible"):
        raise ModelConfigError(
            f"a base URL goes with openai-compatible:{rest} or anthropic-compatible:{rest}, not with {kind}"
        )
    if kind == "recorded":
        if record is not None:
            raise ModelConfigError("a recorded session cannot be recorded again; name a real model to record one")
        from ._recording import RecordedModel

        return RecordedModel(Path(rest))
    model: Model
    if kind == "scripted":
        from ._scripted import ScriptedModel

        model = ScriptedModel(Path(rest))
    else:
        variable = _KEY if own_url is None else key_variable(own_url, env)
        model = _open_server(kind, rest, own_url or base_url, env, variable, thinks, context_tokens)
    if text_tools and kind not in ("openai", "anthropic"):
        from ._texttools import TextTools

        model = TextTools(model)
    if record is None:
        return model
    from ._recording import Recorder

    if record.exists() and not record.is_dir():
        raise ModelConfigError(f"{record} is no folder, so nothing can be recorded in it")
    return Recorder(model, record)


def split_address(spec: str) -> tuple[str, str | None]:
    """`openai-compatible:NAME@URL` as its two parts; None where no address is given."""
    found = re.search("@https?://", spec)
    return (spec[: found.start()], spec[found.start() + 1 :]) if found else (spec, None)


def key_variable(url: str, env: Mapping[str, str] | None = None) -> str:
    """The environment variable of the key for the server at an address that stands in a spec, so that no server is
    given the key of another: KOKUBAN_API_KEY_ and its host in capitals, `.` as `_` and `-` as `__` (no two hosts share
    one). Where `env` has the same with the address's port behind it (…_LOCALHOST_8001), that one."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").upper(), parts.port
    except ValueError:
        host, port = "", None
    host = f"IP6_{host}" if ":" in host else host
    name = f"{_KEY}_{re.sub('[^A-Z0-9]', '_', host.replace('-', '__'))}"
    return f"{name}_{port}" if port is not None and env and env.get(f"{name}_{port}") else name


def _open_server(
    kind: str, name: str, base_url: str | None, env: Mapping[str, str], variable: str, thinks: bool,
    context_tokens: int | None,
) -> Model:  # fmt: skip
    from ._anthropic import MessagesModel  # httpx takes long to import
    from ._openai import ChatCompletionsModel

    shape = MessagesModel if kind.startswith("anthropic") else ChatCompletionsModel
    if kind in ("openai", "anthropic"):
        url, needed = (_OPENAI_URL, _OPENAI_KEY) if kind == "openai" else (_ANTHROPIC_URL, _ANTHROPIC_KEY)
        key = _key(env, needed)
        if key is None:
            raise ModelConfigError(f"{kind}:{name} needs a key; set {needed} in the environment")
        return shape(
            f"{kind}:{name}", model=name, base_url=url, key=key, key_name=needed,
            limit_field="max_completion_tokens", thinks=thinks, context_tokens=context_tokens,
        )  # fmt: skip
    if not base_url:
        raise ModelConfigError(
            f"{kind}:{name} needs the server's address, for example --base-url http://127.0.0.1:8000/v1"
        )
    url, host = _checked(base_url)
    return shape(
        f"{kind}:{name}",
        model=name,
        base_url=url,
        key=_key(env, variable),
        key_name=variable,
        direct=_is_loopback(host),
        thinks=thinks,
        context_tokens=context_tokens,
    )


def _key(env: Mapping[str, str], variable: str) -> str | None:
    key = env.get(variable, "").strip()
    # Checked here because the HTTP library shows a header it cannot send, and with it the key.
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelConfigError(f"{variable} holds characters that no key has; set it again")
    conceal(variable, key)
    return key or None


def _checked(base_url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ModelConfigError("the base URL is not an address; it looks like http://127.0.0.1:8000/v1") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ModelConfigError(f"the base URL must hold no user, password or query; put the key into {_KEY}")
    if parts.scheme not in ("http", "https") or not host or not host.isprintable() or " " in host:
        raise ModelConfigError(f"the base URL {base_url!r} is not an http(s) address like http://127.0.0.1:8000/v1")
    return parts.geturl().rstrip("/").removesuffix("/chat/completions").removesuffix("/messages"), host


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
