"""Events come out whole and the same however the bytes were cut (A1, A12)."""

import pytest

from kokuban.agents.models._sse import SseDecoder, SseEvent


def decode(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.close()


STREAMS = [
    b'data: {"x":"a\xe2\x80\xa8b"}\n\ndata: 2\n\n',
    b'data: {"x":"a\xe2\x80\xa9b"}\r\n\r\ndata: 2\r\n\r\n',
    b'data: {"x":"a\xc2\x85b"}\r\rdata: 2\r\r',
    "data: \x0b\x0c\x1c\x1d\x1e käse 漢字 🙂\r\n\r\n".encode(),
    b"\xef\xbb\xbfdata: first\n\n",
    b"event: error\r\ndata: a\r\ndata: b\r\r\n: c\n\ndata:end",
    b"data: a\rdata: b\n\ndata: c\r\rdata: d\n\r\n",
    b"\r\n\r\n\n\rdata: x\r\n\r\n\n\n",
]


@pytest.mark.parametrize("raw", STREAMS)
def test_every_cut_gives_the_same_events(raw: bytes) -> None:
    whole = decode(raw)
    assert whole
    assert decode(*(raw[i : i + 1] for i in range(len(raw)))) == whole
    for cut in range(len(raw) + 1):
        assert decode(raw[:cut], b"", raw[cut:]) == whole


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_lf_crlf_and_cr_end_a_line(char: str) -> None:
    assert decode(f"data: a{char}b\n\n".encode()) == [SseEvent(f"a{char}b")]


def test_the_encoding_is_utf8_and_broken_bytes_do_not_stop_the_stream() -> None:
    assert decode(b"data: \xffa\n\n", b"data: \xc3\xa4\n\n") == [SseEvent("\ufffda"), SseEvent("ä")]


def test_line_ends_may_be_mixed_and_an_event_comes_at_once() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\r") == [SseEvent("a")]
    assert decoder.feed(b"\ndata: b\n\r") == [SseEvent("b")]
    assert decoder.feed(b"\n") == []
    assert decoder.close() == []


@pytest.mark.parametrize(
    "keep_alive",
    [
        b":\n",
        b":\n\n",
        b": ping\n\n",
        b"id: 7\n: ping\n\n",
        b"data:\n\n",
        b"data: \n\n",
        b"data\n\n",
        b"event: ping\n\n",
    ],
)
def test_keep_alives_give_no_event_and_take_none(keep_alive: bytes) -> None:
    assert decode(keep_alive + b"data:{1}\n\n" + keep_alive) == [SseEvent("{1}")]


def test_a_cr_line_before_an_lf_line_loses_neither() -> None:
    assert decode(b"data: a\rdata: b\n\n") == [SseEvent("a\nb")]


def test_fields_follow_the_standard() -> None:
    assert decode(b"data:{1}\n\n") == decode(b"data: {1}\n\n")
    assert decode(b"data: a\n: inside\ndata: b\nretry: 3\nunknown\n\n") == [SseEvent("a\nb")]
    assert decode(b"event: x\ndata: 1\n\ndata: 2\n\n") == [SseEvent("1", "x"), SseEvent("2", None)]


def test_a_long_line_in_single_bytes_is_not_searched_again_and_again() -> None:
    raw = b"data: " + b"x" * 200_000 + b"\n\n"
    decoder = SseDecoder()
    events = [event for i in range(len(raw)) for event in decoder.feed(raw[i : i + 1])]
    assert [len(event.data) for event in events] == [200_000]
