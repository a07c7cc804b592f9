"""Fetching a page: of hosts that the policy names, from addresses that were judged, and never more than a bounded text.

The name is resolved once for each hop, every address that it has is judged, and the connection goes to the one that was
judged, whatever the name says a moment later. The server sees the name (Host, TLS), the machine the address.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from kokuban.agents.sandbox import clip
from kokuban.agents.tools._addresses import is_own, is_public, place
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._pages import text_of
from kokuban.agents.tools._registry import Tool

MAX_BYTES = 2_000_000
MAX_HOPS = 5
SECONDS = 20.0
_NAMED_BYTES = 400
_TEXT = re.compile(r"(?:text/|application/(?:json|xml|[a-z0-9.+-]+\+(?:json|xml)|javascript))", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63}){0,40}|[0-9a-f:.]{2,45}")
_PORTS = {"http": 80, "https": 443}
Resolve = Callable[[str, int], Awaitable[list[str]]]


class _Target(NamedTuple):
    """What an address names: `host` in the one form (lower case, ASCII) in which it is judged, resolved and sent."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def named(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name. Raises `OSError`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:  # a name that cannot be written as DNS wants it
        raise OSError(f"{host[:200]!r} is no name") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def allowed(host: str, egress: tuple[str, ...]) -> bool:
    """Whether the policy names this host."""
    name = host.lower().rstrip(".")
    return any(name.endswith(e[1:].lower()) if e.startswith("*.") else name == e.lower() for e in egress)


async def fetch(
    url: str, context: ToolContext, *, resolver: Resolve = resolve, trust: ssl.SSLContext | None = None
) -> str:
    """The text of a page, redirects followed. `trust` replaces the known authorities. Raises `ToolError`."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _follow(url, context, resolver, trust)
    except TimeoutError as error:
        raise ToolError(f"that took more than {SECONDS:g} s and was given up", transient=True) from error


async def _follow(url: str, context: ToolContext, resolver: Resolve, trust: ssl.SSLContext | None) -> str:
    import httpx

    for _ in range(MAX_HOPS + 1):
        target = _checked(url, context)
        address = await _judged(target, context, resolver)
        literal = f"[{address}]" if ":" in address else address
        headers = {"Host": target.named, "Accept-Encoding": "gzip, identity", "User-Agent": "kokuban"}
        try:
            async with (
                httpx.AsyncClient(
                    trust_env=False, follow_redirects=False, timeout=SECONDS, verify=trust if trust else True
                ) as client,
                client.stream(
                    "GET", f"{target.scheme}://{literal}:{target.port}{target.path}", headers=headers,
                    extensions={"sni_hostname": target.host},
                ) as answer,
            ):  # fmt: skip
                if not answer.has_redirect_location:
                    return await _text(answer, target.host)
                url = urljoin(url, answer.headers["location"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            passing = isinstance(error, httpx.ConnectError | httpx.ReadError)
            raise ToolError(f"{target.host} cannot be read: {type(error).__name__}", transient=passing) from error
    raise ToolError(f"more than {MAX_HOPS} redirects; give the final address")


def _checked(url: str, context: ToolContext) -> _Target:
    if any(ord(letter) <= 32 or ord(letter) == 127 or "\ud800" <= letter <= "\udfff" for letter in url):
        raise ToolError("that is no address; give one without spaces and control characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ToolError("that is no address; give one such as https://example.org/page") from error
    if parts.scheme not in _PORTS or not host:
        raise ToolError("only http and https addresses can be fetched")
    if "@" in parts.netloc:
        raise ToolError("an address with a user or password is not fetched; leave that out")
    host = _ascii(host)
    if port == 0 or not _HOST.fullmatch(host):
        raise ToolError("that is no address; give one such as https://example.org/page")
    if not allowed(host, context.egress):
        known = clip(", ".join(context.egress), _NAMED_BYTES) or "none"
        raise ToolError(f"the policy lets no fetch reach {host}; hosts it names: {known}")
    path = parts._replace(scheme="", netloc="", fragment="").geturl().lstrip("/")
    return _Target(parts.scheme, host, port or _PORTS[parts.scheme], f"/{path}")


def _ascii(host: str) -> str:
    """A name as DNS and certificates have it; '' for what can be none."""
    try:
        return host.rstrip(".").encode("ascii" if host.isascii() else "idna").decode().lower()
    except UnicodeError:
        return ""


async def _judged(target: _Target, context: ToolContext, resolver: Resolve) -> str:
    """The address to connect to; every address of the name must be fit."""
    try:
        addresses = await resolver(target.host, target.port)
    except OSError as error:
        raise ToolError(f"{target.host} has no address", transient=True) from error
    if not addresses:
        raise ToolError(f"{target.host} has no address")
    guarded = await _guarded(target, context, resolver)
    own = any(is_own(_split(entry)[0]) for entry in guarded)
    local = {place(*_split(entry)) for entry in context.local}
    for address in addresses:
        here = place(address, target.port)
        if here in guarded or (own and is_own(address)) or not (is_public(address) or (here and here in local)):
            raise ToolError(f"{target.host} leads to an address that is not of the internet; it is not fetched")
    return addresses[0]


async def _guarded(target: _Target, context: ToolContext, resolver: Resolve) -> set[str]:
    """The protected places of the target's port, by address. One whose name is asked for stands for whatever that name
    leads to at this moment."""
    found: set[str] = set()
    for host, port in map(_split, context.protected):
        if port != target.port:
            continue
        if host == target.host:
            raise ToolError(f"{host}:{port} belongs to this system; it is not fetched")
        try:
            found |= {place(address, port) for address in ([host] if place(host, port) else await resolver(host, port))}
        except OSError as error:
            # What cannot be compared is not allowed.
            raise ToolError(f"{target.host} cannot be told from {host} now", transient=True) from error
    return found


def _split(entry: str) -> tuple[str, int]:
    host, _, port = entry.rpartition(":")
    return host.strip("[]").lower(), int(port)


async def _text(answer: Any, host: str) -> str:
    kind = answer.headers.get("content-type", "text/plain")
    if answer.status_code >= 400:
        passing = answer.status_code in (429, 502, 503, 504)
        raise ToolError(f"{host} answered {answer.status_code}", transient=passing)
    if not _TEXT.match(kind):
        raise ToolError(f"that is {kind.partition(';')[0][:80]}, and only text can be shown")
    body, cut = await _body(answer)
    text = await asyncio.to_thread(text_of, body, kind)
    return f"{text}\n[cut after {MAX_BYTES:,} bytes]" if cut else text


async def _body(answer: Any) -> tuple[bytes, bool]:
    """At most `MAX_BYTES` of the body after unpacking, which is bounded too: a small download may unpack to much."""
    packed = answer.headers.get("content-encoding", "identity").lower()
    if packed not in ("identity", "", "gzip"):
        raise ToolError(f"the answer is packed as {packed[:40]}, which was not asked for")
    unpack = zlib.decompressobj(31) if packed == "gzip" else None
    body = bytearray()
    async for chunk in answer.aiter_raw():
        try:
            body += unpack.decompress(chunk, MAX_BYTES + 1 - len(body)) if unpack else chunk
        except zlib.error as error:
            raise ToolError("the answer cannot be unpacked") from error
        if len(body) > MAX_BYTES:
            return bytes(body[:MAX_BYTES]), True
    return bytes(body), False


async def _fetch_url(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    return await fetch(arguments["url"], context)


FETCH_URL = Tool(
    "fetch_url",
    "Fetch a web page or text file of a host that the policy names. Returns its text, HTML without tags. "
    "Not for files of the workspace, and not for hosts of this machine's network.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["url"],
        "properties": {"url": {"type": "string", "maxLength": 2_000, "description": "An http or https address."}},
    },
    _fetch_url,
    tier="read",
    effect="read",
    timeout_seconds=SECONDS + 5,
)
