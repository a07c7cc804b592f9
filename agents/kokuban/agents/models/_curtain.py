"""What a model says without this process's credentials: whole, and as it arrives."""

from __future__ import annotations

from msgspec.structs import replace

from kokuban.blackboard.redaction import Redactor, redacted

from ._types import Delta, OnDelta, Reply


class Curtain:
    """Passes pieces of text on. What may be the beginning of a credential waits for the next piece."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._attempt = 0
        self._redactor = Redactor(self._say)

    def show(self, delta: Delta) -> None:
        """The next piece. What is held back of an earlier attempt is void."""
        if delta.attempt != self._attempt:
            self._attempt, self._redactor = delta.attempt, Redactor(self._say)
        self._redactor.feed(delta.text)

    def end(self) -> None:
        """Nothing more comes."""
        self._redactor.end()

    def _say(self, text: str) -> None:
        self._on_delta(Delta(self._attempt, text))


def without_secrets(reply: Reply) -> Reply:
    """The same reply, redacted. A provider's own fields stay as they are: they are signed, and shown to nobody."""
    content = redacted(reply.content)
    calls = tuple(replace(call, arguments=redacted(call.arguments)) for call in reply.calls)
    return reply if (content, calls) == (reply.content, reply.calls) else replace(reply, content=content, calls=calls)
