"""What goes wrong with tools."""

from __future__ import annotations


class ToolError(Exception):
    """A call that cannot be done. The text is for the model: it names what is valid and another way. Nothing was
    changed."""


class BadArguments(ToolError):
    """Arguments that are not plain, bounded JSON."""
