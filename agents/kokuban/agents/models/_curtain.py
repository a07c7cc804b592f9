"""What a model says without this process's credentials: whole, and as it arrives."""

from __future__ import annotations

import msgspec

from kokuban.blackboard.redaction import Redactor, redacted_values

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
    """The same reply, redacted: all of it, since all of it is journalled. A provider may refuse to have its signed
    reasoning back so; it was never told what was taken out."""
    plain = msgspec.to_builtins(reply)
    clean = redacted_values(plain)
    return reply if clean == plain else msgspec.convert(clean, Reply)
