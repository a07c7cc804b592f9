"""The data that crosses the model boundary."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call a model asked for.

    `arguments` is the JSON text exactly as the model gave it ("" when it gave none): parse it once, with
    `parse_arguments`. `problem` says why a call must never be run (cut off, ambiguous); None means it may be.
    """

    id: str
    name: str
    arguments: str
    problem: str | None = None


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation.

    `calls` belong to assistant turns; `call_id` names the call a tool turn answers. `extra` keeps a provider's own
    fields untouched; it is never part of what a recording is keyed by.
    """

    role: Role
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class ToolSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool the model may call; `parameters` is the JSON Schema of its arguments object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one model call asks.

    `schema` is the JSON Schema the reply's text should satisfy (None: free text). The server enforces it where it can,
    so the caller still validates. `seed` None leaves the choice to the server.
    """

    messages: tuple[Message, ...]
    max_output_tokens: int
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    schema_name: str = "reply"
    temperature: float = 0.0
    seed: int | None = None


class CallContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where in a task a call is made. None of it is sent to a model.

    Scripts match on `role`, `step`, `attempt` (of the step) and `turn`, all counted from 1. Recordings are keyed by
    `role`, `step`, `scope` (JSON values: goal, workspace digest, sources digest …) and `occurrence`: how many identical
    requests came before in the same step, from 0.
    """

    role: str
    step: str
    attempt: int = 1
    turn: int = 1
    occurrence: int = 0
    scope: dict[str, Any] = msgspec.field(default_factory=dict)


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens one attempt used.

    `cached_tokens` are part of `input_tokens`; None means the server did not say, which is not zero. `estimated` is
    true when any number is our own guess. `written_tokens` are those of the input that the provider kept for later, at
    a price of their own.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    estimated: bool = False
    written_tokens: int = 0


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A complete answer.

    `truncated` is true when the output limit or a filter cut it: then no call in it may run. `finish` is the server's
    own word for why it stopped, for people only. An empty `content` without `calls` is possible; never store it as a
    turn.
    """

    content: str
    usage: Usage
    model: str
    calls: tuple[Call, ...] = ()
    truncated: bool = False
    finish: str | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Delta(msgspec.Struct, frozen=True):
    """A piece of text as it arrives.

    `attempt` counts the attempts of one call from 1. Text of a higher attempt replaces all text seen before; when the
    call raises, all of it is void.
    """

    attempt: int
    text: str


OnDelta = Callable[[Delta], None]
