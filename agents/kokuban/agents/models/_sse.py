"""Server-sent events, split by bytes.

Text-line iterators also break lines at characters that are legal inside JSON (U+2028, U+2029, U+0085) and trust the
charset header. An event stream has three line ends (LF, CRLF, CR) and one encoding (UTF-8).
"""

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"[\r\n]")
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event that carried data; `name` is None unless the server named it."""

    data: str
    name: str | None = None


class SseDecoder:
    """Turns bytes, cut anywhere, into events. Comments and events without data are keep-alives and give nothing."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._first = True
        self._data: list[bytes] = []
        self._name: bytes | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes; returns the events they complete."""
        self._buffer += chunk
        events: list[SseEvent] = []
        start = 0
        while found := _LINE_END.search(self._buffer, max(start, self._scanned)):
            end = found.start()
            is_rest_of_crlf = self._after_cr and end == start and found[0] == b"\n"
            self._after_cr = found[0] == b"\r"
            if not is_rest_of_crlf:
                self._line(bytes(self._buffer[start:end]), events)
            start = self._scanned = end + 1
        del self._buffer[:start]
        self._scanned = len(self._buffer)
        if self._buffer:
            self._after_cr = False
        return events

    def close(self) -> list[SseEvent]:
        """The stream ended: returns what an event without its closing blank line holds, which may be half of it."""
        events: list[SseEvent] = []
        if self._buffer:
            self._line(bytes(self._buffer), events)
            self._buffer.clear()
        self._dispatch(events)
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        data = b"\n".join(self._data)
        if data.strip():
            name = None if self._name is None else self._name.decode("utf-8", "replace")
            events.append(SseEvent(data.decode("utf-8", "replace"), name))
        self._data.clear()
        self._name = None
