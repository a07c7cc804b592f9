"""The protocol every model answers to, and the note it keeps while it does."""

from typing import Protocol

from ._types import CallContext, Delta, OnDelta, Reply, Request, Usage
from ._usage import estimate_request_tokens, estimate_tokens


class Progress:
    """What one attempt has received so far, so that a failed or cancelled attempt still has its usage."""

    def __init__(self, attempt: int = 1, on_delta: OnDelta | None = None) -> None:
        self.output_bytes = 0
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.written_tokens = 0
        self._attempt = attempt
        self._on_delta = on_delta

    def text(self, piece: str) -> None:
        """Count a piece of the reply's text and pass it on."""
        if piece:
            self.count(piece)
            self.show(piece)

    def show(self, piece: str) -> None:
        """Pass on text that was counted before."""
        if piece and self._on_delta is not None:
            self._on_delta(Delta(self._attempt, piece))

    def count(self, piece: str) -> None:
        """Count output that is not shown as text (call arguments, reasoning)."""
        self.output_bytes += len(piece.encode("utf-8", "replace"))

    async def again(self) -> None:
        """Await this before another request is made within the attempt. Raises `ModelDeadline`."""

    def report(
        self, input_tokens: int | None, output_tokens: int | None, cached_tokens: int | None, written_tokens: int = 0
    ) -> None:
        """Take over what the server says it used so far; totals, so a later report replaces an earlier one."""
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens
        self.written_tokens = written_tokens

    def usage(self, request: Request, *, complete: bool) -> Usage:
        """The usage of this attempt, with our own estimate (flagged) wherever the server gave none.

        A server that reports 0 for something that was there has given none. Of an incomplete attempt the larger of
        report and estimate counts, because the last report may be older than the last text.
        """
        received = estimate_tokens(self.output_bytes)
        output, input_ = self.output_tokens, self.input_tokens
        estimated = False
        if output is None or (output == 0 and self.output_bytes) or (not complete and output < received):
            output, estimated = received, True
        if not input_:
            input_, estimated = estimate_request_tokens(request), True
        return Usage(input_, output, self.cached_tokens, estimated, self.written_tokens)


class Model(Protocol):
    """Something that answers requests. Call it through a `Meter`, which adds retries, the deadline and the count.

    `name` is how a person names it; `context_tokens` is the size of its window, None when unknown.
    """

    @property
    def name(self) -> str: ...

    @property
    def context_tokens(self) -> int | None: ...

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """Make one attempt. Raises `ModelError`; a partial reply is never returned."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Calling twice is fine."""
        ...


class Around:
    """What stands around another model and is taken for it."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def context_tokens(self) -> int | None:
        """The model's window."""
        return self._model.context_tokens

    @property
    def base_url(self) -> str:
        """The model's server, '' where there is none."""
        return str(getattr(self._model, "base_url", ""))

    async def aclose(self) -> None:
        """Let go of the model's connections."""
        await self._model.aclose()
