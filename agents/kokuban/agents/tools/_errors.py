"""What goes wrong with tools."""

from __future__ import annotations


class ToolError(Exception):
    """A call that cannot be done. The text is for the model: it names what is valid and another way. Nothing was
    changed.

    transient: the same call may succeed a little later (a busy server); the runtime tries it again, reads and keyed
        effects only, after `retry_after_seconds` or a pause of its own.
    terminal: no call of this tool can succeed in this step (no permission, no such account): the step ends.
    """

    def __init__(
        self, text: str = "", *, transient: bool = False, terminal: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(text)
        self.transient, self.terminal = transient, terminal
        self.retry_after_seconds = retry_after_seconds


class BadArguments(ToolError):
    """Arguments that are not plain, bounded JSON."""
