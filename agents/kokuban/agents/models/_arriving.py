"""The bytes of a model server's answer while they arrive: a stream of events, or one JSON body."""

from abc import ABC, abstractmethod

from ._errors import ModelCutOff
from ._sse import SseDecoder, SseEvent

_BOM = b"\xef\xbb\xbf"


class Arriving(ABC):
    """`feed` it the bytes of a 200 answer, `close` it at their end. Whatever its headers call it, only a JSON body
    begins with a brace."""

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._body = bytearray()
        self._is_json: bool | None = None  # None: not known yet

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes. Raises `ModelError` as soon as what arrives carries an error, or is one."""
        if self._is_json is None:
            chunk = bytes(self._body) + chunk
            self._body.clear()
            begin = chunk.removeprefix(_BOM).lstrip()
            if begin and not _BOM.startswith(chunk):
                self._is_json = begin.startswith(b"{")
        if self._is_json is False:
            for event in self._events.feed(chunk):
                self._add_event(event)
        else:
            self._body += chunk

    def close(self) -> None:
        """The answer's bytes ended. Raises as `feed` does."""
        if self._is_json:
            self._add_body(bytes(self._body))
            return
        try:
            for event in self._events.close():
                self._add_event(event)
        except ModelCutOff:
            pass  # half an event at the end adds nothing; whether the reply was complete before is asked elsewhere

    @abstractmethod
    def _add_event(self, event: SseEvent) -> None: ...

    @abstractmethod
    def _add_body(self, body: bytes) -> None: ...
