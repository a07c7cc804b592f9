"""The server itself."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from kokuban.agents._asking import Asking
from kokuban.agents._tape import fingerprint
from kokuban.agents._work import StepFailed
from kokuban.agents.gateway._replies import anthropic_body, anthropic_events, openai_body, openai_events
from kokuban.agents.gateway._requests import Refusal, of_anthropic, of_openai, parsed, until_stop
from kokuban.agents.models import ModelError, Reply, Request, worst_request_tokens

MAX_BODY_BYTES = 16 * 2**20
MAX_UNDELIVERED = 16
log = structlog.get_logger("kokuban.gateway")


class Gateway:
    """Serves one step's program. `failure` is why a call could not be paid or made for good; then every later one is
    refused too. Anything else that a call raised (the fence was lost, the wire broke) is in `broken`."""

    def __init__(self, asking: Asking) -> None:
        self.token = secrets.token_urlsafe(24)
        self.failure: StepFailed | None = None
        self.broken: BaseException | None = None
        self.over = asyncio.Event()
        self.calls = 0
        self._asking = asking
        self._bought: list[_Bought] = []
        self._one = asyncio.Lock()  # the journal is a tape: calls made at once take their turns
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes common programs and libraries use this server."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_BASE": f"{self.url}/v1", "OPENAI_API_KEY": self.token,
            "ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": self.token, "ANTHROPIC_AUTH_TOKEN": self.token,
        }  # fmt: skip

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        """Serve on a free port of 127.0.0.1 for the time of a block."""
        import uvicorn

        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._port = listening.getsockname()[1]
            config = uvicorn.Config(
                self._app(), log_config=None, log_level="warning", access_log=False, lifespan="off",
                timeout_graceful_shutdown=1,
            )  # fmt: skip
            server = uvicorn.Server(config)
            running = asyncio.create_task(server._serve([listening]))  # `serve` would take the worker's signals over
            try:
                yield self
            finally:
                server.should_exit = True
                for one in self._bought:
                    one.task.cancel()
                await asyncio.wait({running}, timeout=5)
                running.cancel()
                await asyncio.gather(running, *(one.task for one in self._bought), return_exceptions=True)

    def _app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(routes=[
            Route("/v1/chat/completions", self._openai, methods=["POST"]),
            Route("/v1/messages", self._anthropic, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ])  # fmt: skip

    async def _openai(self, request: Any) -> Any:
        return await self._serve(request, of_openai, openai_body, openai_events)

    async def _anthropic(self, request: Any) -> Any:
        return await self._serve(request, of_anthropic, anthropic_body, anthropic_events)

    async def _models(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        if not self._knows(request):
            return _error(401, "invalid_api_key", "the token is not this step's")
        return JSONResponse({"object": "list", "data": [{"id": "kokuban", "object": "model", "owned_by": "kokuban"}]})

    async def _count(self, request: Any) -> Any:
        """Not what a model would count, but what is reserved: no less."""
        from starlette.responses import JSONResponse

        try:
            _, wanted = await self._read(request, of_anthropic)
        except _Refused as refused:
            return refused.answer
        return JSONResponse({"input_tokens": worst_request_tokens(wanted)})

    async def _serve(
        self, request: Any, read: Callable[[Any], Request], body: Callable[[Reply, int], dict[str, Any]],
        events: Callable[[Reply, int], Iterator[bytes]],
    ) -> Any:  # fmt: skip
        from starlette.responses import JSONResponse, StreamingResponse

        try:
            said, wanted = await self._read(request, read)
        except _Refused as refused:
            return refused.answer
        bought = await self._buy(wanted, request)
        try:
            reply, n = await asyncio.shield(bought.task)
        except StepFailed as error:
            return _error(429, "insufficient_quota", f"{error.why}: {error.reason}")
        except ModelError as error:
            return _error(400, error.code or "invalid_request_error", str(error))
        except asyncio.CancelledError:  # the program has ended, and this server does
            return _error(503, "server_error", "this step is over")
        finally:
            if bought.task.done() and (bought.task.cancelled() or bought.task.exception() is not None):
                self._forget(bought)
        if bought.asker is not request or await request.is_disconnected():  # whoever asks again gets it
            return _error(503, "server_error", "you went away")
        self._forget(bought)
        reply = until_stop(reply, said)
        if said.get("stream"):
            return StreamingResponse(events(reply, n), media_type="text/event-stream")
        return JSONResponse(body(reply, n))

    async def _buy(self, wanted: Request, request: Any) -> _Bought:
        """The call that this request makes. One whose asker went away before its reply was there (a client that gives
        up, and tries again) is not made twice: the next identical request has it."""
        seen = fingerprint(msgspec.to_builtins(wanted))
        for one in self._bought:
            if one.seen == seen and await one.asker.is_disconnected():
                one.asker = request
                return one
        one = _Bought(seen, asyncio.create_task(self._ask(wanted)), request)
        lost = [old for old in self._bought if old.task.done()][:-MAX_UNDELIVERED]
        self._bought = [*(old for old in self._bought if old not in lost), one]
        return one

    def _forget(self, bought: _Bought) -> None:
        self._bought = [one for one in self._bought if one is not bought]

    async def _read(self, request: Any, read: Callable[[Any], Request]) -> tuple[dict[str, Any], Request]:
        """The body as it came, and what it asks. Raises `_Refused`."""
        if not self._knows(request):
            raise _Refused(401, "invalid_api_key", "the token is not this step's")
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BODY_BYTES:
                raise _Refused(413, "too_large", f"a request may have {MAX_BODY_BYTES:,} bytes")
        try:
            return parsed(bytes(data), read)
        except Refusal as refusal:
            raise _Refused(400, "invalid_request_error", str(refusal)) from refusal

    async def _ask(self, wanted: Request) -> tuple[Reply, int]:
        async with self._one:
            if self.failure is not None:
                raise self.failure
            if self.broken is not None:
                raise StepFailed("model", "this step is over")
            try:
                reply = await self._asking.ask(wanted)
            except StepFailed as error:
                self.failure = error
                self.over.set()
                raise
            except (ModelError, asyncio.CancelledError):  # too large: the program may make it smaller; or it went away
                raise
            except BaseException as error:
                self.broken = error
                self.over.set()
                raise StepFailed("model", "this step is over") from error
            self.calls += 1
            return reply, self.calls

    def _knows(self, request: Any) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or request.headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self.token.encode())


@dataclass(eq=False)
class _Bought:
    """A call, and who waits for its reply."""

    seen: str
    task: asyncio.Task[tuple[Reply, int]]
    asker: Any


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, code: str, words: str) -> None:
        super().__init__(words)
        self.answer = _error(status, code, words)


def _error(status: int, code: str, words: str) -> Any:
    from starlette.responses import JSONResponse

    kind = "authentication_error" if status == 401 else "invalid_request_error" if status < 429 else code
    content = {"type": "error", "error": {"type": kind, "code": code, "message": words[:2_000]}}
    return JSONResponse(content, status, {"x-should-retry": "false"})
