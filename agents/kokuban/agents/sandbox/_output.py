"""Keeping the head and the tail of output, in bounded memory and in bytes, never cutting inside a character."""

from __future__ import annotations

import codecs


class HeadTail:
    """Takes any amount of bytes and keeps the first and the last half of `cap_bytes`."""

    def __init__(self, cap_bytes: int) -> None:
        if cap_bytes < 2:
            raise ValueError("cap_bytes must be at least 2")
        self.total = 0
        """Bytes fed so far."""
        self._cap = cap_bytes
        self._head_size = cap_bytes // 2
        self._tail_size = cap_bytes - self._head_size
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_size:  # not at every chunk: each trim moves the whole tail
            del self._tail[: -self._tail_size]

    def text(self) -> tuple[str, bool]:
        """The output as text (bytes that are not UTF-8 become U+FFFD) and whether something was left out. The text is
        at most `cap_bytes` long in UTF-8, plus one line that says how many bytes are missing in between."""
        tail = bytes(self._tail[-self._tail_size :])
        if self.total <= self._cap:
            whole = bytes(self._head) + bytes(self._tail)
            return _bounded(whole.decode(errors="replace"), self._cap, self.total)
        # A character cut at either edge is dropped; it is not bad UTF-8.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        start = next((at for at, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), len(tail) if len(tail) < 4 else 0)
        return _joined(head, tail[start:].decode(errors="replace"), self._cap, self.total)


def clip(text: str, cap_bytes: int) -> str:
    """Text of at most `cap_bytes` in UTF-8; of longer text the head and the tail, and one line more that says how many
    bytes are missing in between. Lone surrogates become '?'."""
    encoded = text.encode(errors="replace")
    return _bounded(encoded.decode(), cap_bytes, len(encoded))[0]


def _bounded(text: str, cap: int, total: int) -> tuple[str, bool]:
    return (text, False) if len(text.encode()) <= cap else _joined(text, text, cap, total)


def _joined(head: str, tail: str, cap: int, total: int) -> tuple[str, bool]:
    """The first half of `cap` bytes of `head` and the last of `tail` (replacing bad bytes made both longer)."""
    first = head.encode()[: cap // 2].decode(errors="ignore")
    last = tail.encode()[-(cap - cap // 2) :].decode(errors="ignore")
    return f"{first}\n[… {total:,} bytes in all; only the first and the last are shown …]\n{last}", True
