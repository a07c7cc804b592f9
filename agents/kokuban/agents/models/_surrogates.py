"""JSON may escape one character as two halves, and a stream may cut between them. UTF-8 can carry no half."""

import codecs


def joined(text: str) -> str:
    """The text with its surrogate pairs joined and single halves replaced by U+FFFD."""
    return text if text.isascii() else _halves(text).decode("utf-16-le", "replace")


class PairJoiner:
    """`joined` for text that comes in pieces: a half waits for the piece that brings the other."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def feed(self, piece: str) -> str:
        """The text that is complete with this piece."""
        return self._decoder.decode(_halves(piece))

    def close(self) -> str:
        """What still waited: U+FFFD for a half whose other never came."""
        return self._decoder.decode(b"", True)


def _halves(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")
