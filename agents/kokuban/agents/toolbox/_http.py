"""The HTTP client of an MCP session."""

from __future__ import annotations

import json
from typing import Any

import httpx


class _Client(httpx.AsyncClient):
    """A request that found no connection was not sent. It is answered here as by a server that knows the session no
    more, which ends that request, with a word of its own, and not all that are under way."""

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            return await super().send(request, **options)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            if request.method != "POST" or _method(request.content) == "initialize":
                raise
            return httpx.Response(404, request=request)


def _method(content: bytes) -> object:
    """Of a message of the protocol; an argument of a call may hold any word."""
    try:
        message = json.loads(content)
    except ValueError:
        return None
    return message.get("method") if isinstance(message, dict) else None


def client(timeout_seconds: float) -> httpx.AsyncClient:
    """Follows no redirect. A stream of events may be silent for five minutes; a call has the time of its tool."""
    return _Client(timeout=httpx.Timeout(timeout_seconds, read=300), follow_redirects=False)
