"""Before each attempt at a model call: a slot at the endpoint, which all workers share. The meter knows only this."""

from collections.abc import Callable
from typing import Any, Protocol

from ._canonical import canonical_bytes
from ._errors import ModelCutOff, ModelDeadline, ModelError, ModelProtocolError
from ._model import Progress
from ._types import OnDelta, Reply, Request

TEMPLATE_TOKENS = 16
"""Room for what a server's chat template adds to each message."""


class Slot(Protocol):
    """The right to make one request, until `deadline` (an instant of the monotonic clock)."""

    @property
    def deadline(self) -> float: ...


class Gate(Protocol):
    """Gives slots. `Quota` of the board is one."""

    async def enter(self, *, tokens: int, deadline: float) -> Any:
        """Wait for a `Slot` for a request that uses at most `tokens`. Raises `TimeoutError` when there was none in
        time; nothing is held then."""
        ...

    def leave(
        self, slot: Any, *, heard: float | None = None, tokens: int | None = None, gave_up: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:  # fmt: skip
        """Give it back. `heard`: when the answer began; `tokens`: what it used, None when not known for certain;
        `gave_up`: the endpoint may still be busy with it; `retry_after_seconds`: what the endpoint asked for."""
        ...


def worst_tokens(request: Request) -> int:
    """The most tokens that a request can use. No tokenizer makes more than one token of a byte."""
    size_bytes = canonical_bytes(request)
    return size_bytes + TEMPLATE_TOKENS * (len(request.messages) + 1) + request.max_output_tokens


class Passage(Progress):
    """One attempt's way through a gate, and the note of what it received."""

    def __init__(
        self, number: int, on_delta: OnDelta | None, *, gate: Gate | None, request: Request, deadline: float,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(number, on_delta)
        self.deadline = deadline
        self._gate, self._request, self._clock, self._call_deadline = gate, request, clock, deadline
        self._slot: Slot | None = None
        self._heard: float | None = None

    def count(self, piece: str) -> None:
        """As ever, and note when the first of it came: by then the request had reached the endpoint."""
        if self._heard is None:
            self._heard = self._clock()
        super().count(piece)

    async def enter(self) -> None:
        """Raises `ModelDeadline` when no slot is free in time; nothing was sent."""
        if self._gate is None:
            return
        worst = worst_tokens(self._request)
        try:
            self._slot = await self._gate.enter(tokens=worst, deadline=self._call_deadline)
        except TimeoutError as error:
            raise ModelDeadline(str(error), code="slot", spent=False) from error
        self.deadline = self._slot.deadline

    async def again(self) -> None:
        """The endpoint refused before it began, and is asked once more: that is another request."""
        if self._gate is not None:
            if self._slot is not None:
                self._gate.leave(self._slot, heard=self._heard, tokens=0)
            self._slot, self._heard = None, None
            await self.enter()

    def leave(self, reply: Reply | None, failure: BaseException | None) -> None:
        """Tell the gate how the attempt ended."""
        slot, self._slot = self._slot, None
        if self._gate is None or slot is None:
            return
        tokens = None
        if reply is not None and not reply.usage.estimated:
            tokens = reply.usage.input_tokens + reply.usage.output_tokens
        elif isinstance(failure, ModelError) and not failure.spent and not self.output_bytes:
            tokens = 0
        refused = isinstance(failure, ModelError) and not isinstance(
            failure, ModelCutOff | ModelDeadline | ModelProtocolError
        )
        self._gate.leave(
            slot, heard=self._heard, tokens=tokens,
            gave_up=failure is not None and (not refused or self.output_bytes > 0),
            retry_after_seconds=failure.retry_after_seconds if isinstance(failure, ModelError) else None,
        )  # fmt: skip
