"""What reaches a terminal: foreign text made harmless, colour only where it belongs, and noticing that nobody reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import IO

import click

from kokuban.blackboard.redaction import redacted

# Control bytes but newline, lone surrogates, and the marks that reorder text or break lines where none is seen.
_HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Legal inside a JSON string as they are, but a terminal or a line reader could act on them.
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SPACE = re.compile(r"\s+")
_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


def clean(text: str) -> str:
    """Text of several lines without anything that a terminal would act on. A tab becomes a space."""
    return _HARMFUL.sub("", text.replace("\t", " ").replace("\r\n", "\n"))


def one_line(text: str, most: int = 160) -> str:
    """The same as one line of at most `most` characters."""
    line = _HARMFUL.sub("", _SPACE.sub(" ", text)).strip()
    return line if len(line) <= most else line[: most - 1] + "…"


def json_line(data: bytes) -> str:
    """Valid JSON as exactly one line, whatever spaces and line separators its writer used."""
    import msgspec

    text = msgspec.json.format(data, indent=-1).decode("utf-8", "replace")
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Paint:
    """Colours for one stream: none unless it is a terminal, and none with NO_COLOR or TERM=dumb."""

    def __init__(self, stream: IO[str] | None) -> None:
        terminal = stream is not None and not stream.closed and stream.isatty()
        self._on = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str = "") -> str:
        """The text in a colour (red, green, yellow, cyan, dim, bold; '' is none)."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._on and colour else text


def put(text: str) -> None:
    """A line of the result, on standard output, at once."""
    click.echo(text, color=True)


def tell(text: str) -> None:
    """A line about progress, on standard error, at once. Lost when nobody can read it: the work goes on."""
    try:
        click.echo(redacted(text), err=True, color=True)
    except (OSError, ValueError):
        return


def when_unread(stream: IO[str] | None, call: Callable[[], object]) -> None:
    """Call back in the running event loop once the reader of a piped `stream` is gone, also while nothing is written.
    Does nothing for files and terminals."""
    import asyncio
    import select
    import stat
    import threading

    if stream is None:
        return
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return
    loop = asyncio.get_running_loop()

    def wait() -> None:
        poll = select.poll()
        poll.register(fd, 0)  # no event asked for: only the end of the other side is told
        poll.poll()
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    threading.Thread(target=wait, name="wait for the reader's end", daemon=True).start()
