"""`scripted:FILE`: a model that answers from a file, for tests and benches. Instant and deterministic."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

from ._errors import ModelConfigError, ScriptMiss
from ._model import Progress
from ._types import Call, CallContext, Reply, Request, Usage


class _When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str | None = None
    step: str | None = None
    attempt: int | None = None
    turn: int | None = None
    contains: str | None = None

    def matches(self, request: Request, context: CallContext) -> bool:
        wanted = ((self.role, context.role), (self.step, context.step), (self.attempt, context.attempt))
        if any(want is not None and want != have for want, have in (*wanted, (self.turn, context.turn))):
            return False
        return self.contains is None or any(self.contains in message.content for message in request.messages)


class _ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: Any = msgspec.field(default_factory=dict)


class _ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: Any = ""
    calls: tuple[_ScriptedCall, ...] = ()


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reply: _ScriptedReply
    when: _When = _When()
    times: int | None = None
    delay_seconds: float = 0.0
    usage: Usage | None = None


class _Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replies: tuple[_Entry, ...]


class ScriptedModel:
    """Answers each call with the first entry of the script whose `when` matches it and that has uses left.

    The file is JSON: `{"replies": [{"when": {…}, "reply": {…}, "times": 1, "delay_seconds": 0, "usage": {…}}, …]}`.
    `when` may name `role`, `step`, `attempt`, `turn` (equal) and `contains` (in any message); all it names must match.
    `reply` has `content` (text, or any JSON value to be sent as text) and/or `calls` of `name` and `arguments` (an
    object, or raw text). `times` bounds the uses of an entry, counted in each process for itself.
    """

    context_tokens: int | None = None

    def __init__(self, path: Path) -> None:
        """Read the script. Raises `ModelConfigError` when it cannot be read or is none."""
        self.name = f"scripted:{path}"
        self._path = path
        try:
            self._entries = msgspec.json.decode(path.read_bytes(), type=_Script).replies
        except OSError as error:
            raise ModelConfigError(f"the script {path} cannot be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise ModelConfigError(f"the script {path} is not a script: {error}") from error
        self._uses = [0] * len(self._entries)

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """The scripted reply. Raises `ScriptMiss` when no entry answers this call."""
        number = self._find(request, context)
        entry = self._entries[number]
        self._uses[number] += 1
        if entry.delay_seconds > 0:
            await asyncio.sleep(entry.delay_seconds)
        content = _text(entry.reply.content)
        progress.text(content)
        calls = tuple(
            Call(f"call_{len(request.messages)}_{position}", call.name, _text(call.arguments))
            for position, call in enumerate(entry.reply.calls)
        )
        for call in calls:
            progress.count(call.name + call.arguments)
        usage = entry.usage or progress.usage(request, complete=True)
        return Reply(content=content, calls=calls, finish="stop", usage=usage, model=self.name)

    async def aclose(self) -> None:
        """Nothing to let go of."""

    def _find(self, request: Request, context: CallContext) -> int:
        for number, entry in enumerate(self._entries):
            has_uses = entry.times is None or self._uses[number] < entry.times
            if has_uses and entry.when.matches(request, context):
                return number
        raise ScriptMiss(
            f"the script {self._path} has no reply left for role {context.role}, step {context.step}, "
            f"attempt {context.attempt}, turn {context.turn}",
            code="script_miss",
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
