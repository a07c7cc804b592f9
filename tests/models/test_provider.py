"""The provider against a real server: what it reads and how it fails (A1, A6, A12 on the wire)."""

import asyncio
from typing import Any

import pytest

from kokuban.agents.models import (
    Delta,
    ModelAuthError,
    ModelConfigError,
    ModelCutOff,
    ModelError,
    ModelProtocolError,
    ModelRefused,
    ModelUnavailable,
    ModelUnreachable,
    Progress,
    Reply,
    Request,
)
from kokuban.agents.models._faults import retry_after
from kokuban.agents.models._openai import ChatCompletionsModel
from models.chat_server import (
    CONTEXT,
    DONE,
    SSE_HEAD,
    Answer,
    ChatServer,
    answer,
    data,
    delta,
    in_pieces,
    request,
    serving,
    stream,
    usage,
)

pytestmark = pytest.mark.anyio
GOOD = stream(delta("ok", finish="stop"), usage(5, 1), DONE)


async def ask(model: ChatCompletionsModel, asked: Request | None = None, progress: Progress | None = None) -> Reply:
    try:
        return await model.call(asked or request(), CONTEXT, progress or Progress())
    finally:
        await model.aclose()


async def failure(server: ChatServer, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await ask(server.model(**options))
    return raised.value


# --- what is read -------------------------------------------------------------------------------------------------

TRICKY = [
    f'data: {{"choices":[{{"index":0,"delta":{{"content":"a{x}b"}}}}]}}\n\n'.encode() for x in "\u2028\u2029\x85漢"
]


@pytest.mark.parametrize("head", [SSE_HEAD, SSE_HEAD.replace(b"event-stream", b"event-stream; charset=iso-8859-1")])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_streams_in_single_bytes_and_under_a_wrong_charset(head: bytes, line_end: bytes) -> None:
    raw = b"".join([*TRICKY, delta("é", finish="stop"), DONE]).replace(b"\n", line_end)
    pieces = [head, *(raw[i : i + 1] for i in range(len(raw)))]
    async with serving(in_pieces(pieces)) as server:
        seen: list[Delta] = []
        reply = await ask(server.model(), progress=Progress(2, seen.append))
        assert reply.content == "a\u2028ba\u2029ba\x85ba漢bé"
        assert "".join(piece.text for piece in seen) == reply.content
        assert {piece.attempt for piece in seen} == {2}


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_server_that_does_not_stream_is_read_too(kind: str) -> None:
    payload = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 4}}
    raw = answer(200, payload).replace(b"application/json", kind.encode())
    async with serving(raw) as server:
        assert (await ask(server.model())).content == "whole"


async def test_done_ends_a_reply_although_the_connection_stays_open() -> None:
    closed = asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(delta("ok"), DONE))
        await writer.drain()
        await closed.wait()

    async with serving(write) as server:
        assert (await ask(server.model())).content == "ok"
        closed.set()


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut_chunk(raw: bytes) -> bytes:
    return CHUNKED + b"%x\r\n" % len(raw) + raw + b"\r\n"  # and no closing chunk


async def test_a_connection_lost_after_the_end_is_no_loss_and_before_it_is() -> None:
    async with serving(cut_chunk(delta("ok", finish="stop") + usage(5, 1))) as server:
        assert (await ask(server.model())).content == "ok"
    async with serving(cut_chunk(delta("ok"))) as server:
        error = await failure(server)
        assert isinstance(error, ModelCutOff)
        assert error.retryable
        assert error.spent


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\n", SSE_HEAD, SSE_HEAD + delta("text")])
async def test_whatever_is_cut_may_be_retried(raw: bytes) -> None:
    async with serving(raw) as server:
        error = await failure(server)
        assert isinstance(error, ModelCutOff)
        assert error.retryable


async def test_keep_alives_reset_the_read_timeout_and_silence_does_not() -> None:
    async def alive(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(10):
            writer.write(b": ping\n\n")
            await writer.drain()
            await asyncio.sleep(0.1)  # the behaviour under test is one of real time
        writer.write(delta("ok", finish="stop") + DONE)
        await writer.drain()

    async with serving(alive) as server:
        assert (await ask(server.model(read_timeout_seconds=0.8))).content == "ok"

    over = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + delta("te"))
        await writer.drain()
        await over.wait()

    async with serving(silent) as server:
        error = await failure(server, read_timeout_seconds=0.05)
        over.set()
        assert isinstance(error, ModelCutOff)
        assert "silent" in str(error)


# --- how it fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "spent"),
    [
        (400, ModelRefused, False),
        (401, ModelAuthError, False),
        (403, ModelAuthError, False),
        (404, ModelRefused, False),
        (408, ModelUnavailable, False),
        (409, ModelUnavailable, False),
        (422, ModelRefused, False),
        (429, ModelUnavailable, False),
        (500, ModelUnavailable, True),
        (502, ModelUnavailable, True),
        (503, ModelUnavailable, False),
        (529, ModelUnavailable, False),
        (307, ModelRefused, False),
    ],
)
async def test_a_status_says_whether_to_retry(status: int, kind: type[ModelError], spent: bool) -> None:
    async with serving(answer(status, {"error": {"message": "so it is", "code": "c0"}})) as server:
        error = await failure(server)
        assert type(error) is kind
        assert error.retryable == (kind is ModelUnavailable)
        assert (error.status, error.code, error.spent) == (status, "c0", spent)
        assert "so it is" in str(error)
        assert len(server.bodies) == 1


async def test_a_used_up_quota_is_permanent_although_it_is_a_429() -> None:
    async with serving(answer(429, {"error": {"message": "pay", "type": "insufficient_quota"}})) as server:
        error = await failure(server)
        assert isinstance(error, ModelRefused)
        assert error.code == "insufficient_quota"


@pytest.mark.parametrize(
    "payload", [b"", b"<html>nginx</html>", b"plain words", b"[1]", b'"text"', b"\xff\xfe", b"[" * 9999]
)
@pytest.mark.parametrize("status", [400, 502])
async def test_any_error_body_is_read(payload: bytes, status: int) -> None:
    async with serving(answer(status, payload)) as server:
        error = await failure(server)
        assert error.status == status
        assert str(status) in str(error)
        assert len(str(error)) < 800


async def test_an_error_body_without_end_is_bounded() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 X\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with serving(endless) as server:
        assert (await failure(server)).status == 400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (("Retry-After: 7",), 7.0),
        (("Retry-After: 1.5",), 1.5),
        (("Date: Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After: Wed, 21 Oct 2015 07:28:30 GMT"), 30.0),
        (("Date: Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After: Wed, 21 Oct 2015 07:27:30 GMT"), 0.0),
        (("Retry-After: Wed, 21 Oct 2015 07:28:30 GMT",), 0.0),
        (("Retry-After: soon",), None),
        (("Retry-After: -3",), None),
        (("Retry-After: nan",), None),
        (("Retry-After: 1e9",), None),
        ((), None),
    ],
)
async def test_retry_after_in_seconds_or_as_a_date(headers: tuple[str, ...], seconds: float | None) -> None:
    async with serving(answer(429, {}, *headers)) as server:
        assert (await failure(server)).retry_after_seconds == seconds


@pytest.mark.parametrize("value", ["9" * 400, "Wed, 99 Oct 2015 07:28:30 GMT", "٣", "\x00"])
def test_a_strange_retry_after_is_none(value: str) -> None:
    assert retry_after(value, "") is None


async def test_no_server_is_told_with_the_way_out() -> None:
    async with serving(GOOD) as server:
        pass
    error = await failure(server)
    assert isinstance(error, ModelUnreachable)
    assert error.retryable
    assert not error.spent
    assert server.url in str(error)


async def test_an_impossible_address_is_a_usage_error() -> None:
    with pytest.raises(ModelConfigError):
        await ask(ChatCompletionsModel("x", model="m", base_url="http://exa\x01mple:1/v1"))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html>", "web page"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n\x1f\x8b", "gzip"),
    ],
)
async def test_what_is_no_model_server_is_said_so(raw: bytes, words: str) -> None:
    async with serving(raw) as server:
        error = await failure(server)
        assert isinstance(error, ModelProtocolError)
        assert not error.retryable
        assert words in str(error)


@pytest.mark.parametrize(
    "reply",
    [
        answer(401, {"error": {"message": "bad key sk-very-secret", "code": "sk-very-secret"}}),
        stream(delta("a"), data({"error": "key sk-very-secret is over its quota"})),
    ],
)
async def test_an_echoed_key_is_taken_out(reply: Answer) -> None:
    async with serving(reply) as server:
        error = await failure(server, key="sk-very-secret", key_name="SOME_KEY")
        assert "sk-very-secret" not in f"{error} {error.code} {error!r}"
        assert "[key]" in str(error)


async def test_a_refused_key_names_its_variable() -> None:
    async with serving(answer(401, {})) as server:
        assert "SOME_KEY" in str(await failure(server, key_name="SOME_KEY"))
