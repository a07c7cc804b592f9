"""Models behind a chat-completions server: OpenAI's own, vLLM, llama.cpp, Ollama and others."""

import json
from typing import Any, Protocol

import httpx
from msgspec.structs import replace

from ._chat import ChatReply
from ._dialect import Dialect
from ._errors import (
    ModelConfigError,
    ModelCutOff,
    ModelError,
    ModelProtocolError,
    ModelRefused,
    ModelUnreachable,
)
from ._extra import signed
from ._faults import find_fault, model_error, wait_of
from ._model import Progress
from ._types import CallContext, Reply, Request

_MAX_REPLY_BYTES = 64 << 20  # a streamed token costs some 250 bytes
_MAX_ERROR_BYTES = 64 << 10
# Failing for good or for now, these say that no token was spent.
_NOT_STARTED_STATUS = {503, 529}


class Writer(Protocol):
    """Writes bodies for one server, and learns from what it refuses."""

    def body(self, request: Request) -> dict[str, Any]: ...
    def learn(self, body: dict[str, Any], words: str) -> bool: ...


class Reader(Protocol):
    """Puts a reply together while it arrives."""

    done: bool

    @property
    def complete(self) -> bool: ...
    def feed(self, chunk: bytes) -> None: ...
    def close(self) -> None: ...
    def reply(self, fallback_model: str) -> Reply: ...


class ChatCompletionsModel:
    """One model of one server, streamed over httpx.

    name: the spec a person gave; model: what the server calls it; base_url: ends before `/chat/completions`.
    key: sent as a bearer token when given; key_name: where it comes from, for error texts.
    direct: bypass proxies of the environment (for loopback).
    read_timeout_seconds: the longest silence on an open connection; every byte, keep-alives too, begins it anew.
    Default 120. The deadline of the whole call is the meter's.
    thinks: replies begin with a <think> block, which is kept apart.
    """

    path = "/chat/completions"

    def __init__(
        self,
        name: str,
        *,
        model: str,
        base_url: str,
        key: str | None = None,
        key_name: str = "KOKUBAN_API_KEY",
        limit_field: str = "max_tokens",
        context_tokens: int | None = None,
        direct: bool = False,
        read_timeout_seconds: float = 120.0,
        thinks: bool = False,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self._limit_field = limit_field
        self._thinks = thinks
        self.dialect = self._write(model)
        self._model = model
        self._base_url = base_url
        self._key = key
        self._key_name = key_name
        self._direct = direct
        self._read_timeout_seconds = read_timeout_seconds
        self._client: httpx.AsyncClient | None = None

    @property
    def base_url(self) -> str:
        """Where its server is."""
        return self._base_url

    async def call(self, request: Request, context: CallContext, progress: Progress) -> Reply:
        """Make one attempt. Raises `ModelError`.

        A server that refuses an optional part of the request is asked again without it, at once and within the attempt:
        a refusal costs nothing, and the server's way is remembered.
        """
        try:
            while True:
                body = self.dialect.body(request)
                try:
                    return await self._exchange(request, body, progress)
                except ModelRefused as error:
                    early = error.status in (400, 422) and not progress.output_bytes
                    if not (early and self.dialect.learn(body, str(error))):
                        raise
                await progress.again()
        except ModelError as error:
            error.hide(self._key)
            raise

    def _write(self, model: str) -> Writer:
        return Dialect(model, limit_field=self._limit_field)

    def _read(self, request: Request, progress: Progress) -> Reader:
        return ChatReply(request, progress, thinks=self._thinks)

    def _credentials(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def aclose(self) -> None:
        """Close the connections. Calling twice is fine."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _exchange(self, request: Request, body: dict[str, Any], progress: Progress) -> Reply:
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelRefused(f"the request cannot be written as JSON: {error}", code="not_json") from error
        reply = self._read(request, progress)
        try:
            async with self._open_client().stream("POST", f"{self._base_url}{self.path}", content=content) as response:
                if not response.is_success:
                    raise await self._refusal(response)
                self._check_kind(response)
                await _receive(response, reply)
        except httpx.InvalidURL as error:
            raise ModelConfigError(f"the base URL {self._base_url!r} is not an address: {error}") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ModelUnreachable(
                f"no connection to the model server at {self._base_url}: {error or 'timed out'}; "
                "check that it runs and that the address is right",
                code="unreachable",
            ) from error
        except httpx.TransportError as error:
            # A reply that had ended is complete however the connection went down after it.
            if not reply.complete:
                what = "was silent for too long" if isinstance(error, httpx.ReadTimeout) else "broke the connection"
                raise ModelCutOff(
                    f"the model server {what} before the reply was complete ({type(error).__name__})", code="cut_off"
                ) from error
        answered = reply.reply(self._model)
        return replace(answered, extra=signed(answered.extra, self._model))

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",  # so that a small download stays small
                "User-Agent": "kokuban",
            }
            headers |= self._credentials()
            timeout = httpx.Timeout(
                connect=10.0, read=self._read_timeout_seconds, write=self._read_timeout_seconds, pool=None
            )
            self._client = httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=not self._direct)
        return self._client

    def _check_kind(self, response: httpx.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise ModelProtocolError(f"the model server sent a {encoding} reply although none was accepted")
        if response.headers.get("content-type", "").lower().startswith("text/html"):
            raise ModelProtocolError(
                f"{self._base_url} answered with a web page, not as a model server; check the address "
                "(most end in /v1)",
                spent=False,
            )

    async def _refusal(self, response: httpx.Response) -> ModelError:
        raw = bytearray()
        try:
            async for chunk in response.aiter_raw():
                raw += chunk
                if len(raw) > _MAX_ERROR_BYTES:
                    break
        except httpx.TransportError:
            pass  # the status alone says enough
        text = bytes(raw).decode("utf-8", "replace").strip()
        try:
            payload: Any = json.loads(text)
        except (ValueError, RecursionError):
            payload = "" if text.startswith("<") else text
        status = response.status_code
        error = model_error(
            find_fault(payload) or payload or response.reason_phrase,
            status=status,
            retry_after_seconds=wait_of(response.headers),
            spent=status >= 500 and status not in _NOT_STARTED_STATUS,
        )
        hint = {
            401: f"; set {self._key_name} to a key this server takes",
            404: f"; check the model's name ({self._model!r}) and the address {self._base_url} (most end in /v1)",
        }.get(status, "")
        if 300 <= status < 400:
            hint = f"; {self._base_url} redirects elsewhere, give the final address"
        error.args = (f"{error}{hint}",)
        return error


async def _receive(response: httpx.Response, reply: Reader) -> None:
    size_bytes = 0
    async for chunk in response.aiter_raw():
        size_bytes += len(chunk)
        if size_bytes > _MAX_REPLY_BYTES:
            raise ModelProtocolError(f"the model server's reply is longer than {_MAX_REPLY_BYTES} bytes")
        reply.feed(chunk)
        if reply.done:  # some servers keep the connection open after it
            return
    reply.close()
