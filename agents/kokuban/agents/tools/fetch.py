"""Fetching a page: of hosts that the policy names, from addresses that were judged, and never more than a bounded text.

The name is resolved once for each hop, every address that it has is judged, and the connection goes to the one that was
judged, whatever the name says a moment later. The server sees the name (Host, TLS), the machine the address.
"""

from __future__ import annotations

import asyncio
import html.parser
import re
import socket
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from kokuban.agents.tools._addresses import is_public
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool

MAX_BYTES = 2_000_000
MAX_HOPS = 5
SECONDS = 20.0
_TEXT = re.compile(r"(?:text/|application/(?:json|xml|[a-z0-9.+-]+\+(?:json|xml)|javascript))", re.IGNORECASE)
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Every address of a name. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def allowed(host: str, egress: tuple[str, ...]) -> bool:
    """Whether the policy names this host."""
    name = host.lower().rstrip(".")
    return any(name.endswith(e[1:].lower()) if e.startswith("*.") else name == e.lower() for e in egress)


async def fetch(url: str, context: ToolContext, *, resolver: Resolve = resolve) -> str:
    """The text of a page, redirects followed. Raises `ToolError`."""
    import httpx

    async with asyncio.timeout(SECONDS):
        for _ in range(MAX_HOPS + 1):
            parts = _checked(url, context)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            address = await _judged(parts.hostname or "", port, context, resolver)
            literal = f"[{address}]" if ":" in address else address
            target = parts._replace(netloc=f"{literal}:{port}", fragment="").geturl()
            headers = {"Host": parts.netloc, "Accept-Encoding": "identity, gzip", "User-Agent": "kokuban"}
            timeout = httpx.Timeout(SECONDS)
            try:
                async with (
                    httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout) as client,
                    client.stream(
                        "GET", target, headers=headers, extensions={"sni_hostname": parts.hostname or ""}
                    ) as answer,
                ):
                    if answer.is_redirect:
                        url = urljoin(url, answer.headers.get("location", ""))
                        continue
                    return await _text(answer, parts)
            except httpx.HTTPError as error:
                busy = isinstance(error, httpx.ConnectError | httpx.ReadTimeout)
                raise ToolError(f"{parts.hostname} cannot be read: {type(error).__name__}", transient=busy) from error
    raise ToolError(f"more than {MAX_HOPS} redirects; give the final address")


def _checked(url: str, context: ToolContext) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ToolError("that is no address; give one such as https://example.org/page") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError("only http and https addresses can be fetched")
    if parts.username is not None or parts.password is not None:
        raise ToolError("an address with a user or password is not fetched; leave that out")
    if port == 0 or any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise ToolError("that is no address; give one without spaces and control characters")
    if not allowed(parts.hostname, context.egress):
        known = ", ".join(context.egress) or "none"
        raise ToolError(f"the policy lets no fetch reach {parts.hostname[:200]}; hosts it names: {known}")
    return parts


async def _judged(host: str, port: int, context: ToolContext, resolver: Resolve) -> str:
    """The address to connect to; every address of the name must be fit."""
    try:
        addresses = await resolver(host, port)
    except OSError as error:
        raise ToolError(f"{host[:200]} has no address", transient=True) from error
    if not addresses:
        raise ToolError(f"{host[:200]} has no address")
    for address in addresses:
        here = f"{address}:{port}"
        if here in context.protected or not (is_public(address) or here in context.local):
            raise ToolError(f"{host[:200]} leads to an address that is not of the internet; it is not fetched")
    return addresses[0]


async def _text(answer: Any, parts: SplitResult) -> str:
    kind = answer.headers.get("content-type", "text/plain")
    if answer.status_code >= 400:
        passing = answer.status_code in (429, 502, 503, 504)
        raise ToolError(f"{parts.hostname} answered {answer.status_code}", transient=passing)
    if not _TEXT.match(kind):
        raise ToolError(f"that is {kind.partition(';')[0][:80]}, and only text can be shown")
    body, cut = await _body(answer)
    charset = re.search(r"charset=([\w-]+)", kind)
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    if "html" in kind.lower():
        text = readable(text)
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


class _Words(html.parser.HTMLParser):
    """The words of a page: no scripts, no styles, a line for each block."""

    _BLOCKS = frozenset({"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"})
    _SILENT = frozenset({"script", "style", "template", "noscript", "svg"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in self._SILENT
        if tag in self._BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in self._SILENT))
        if tag in self._BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def readable(page: str) -> str:
    """An HTML page as plain text."""
    words = _Words()
    words.feed(page)
    words.close()
    lines = (" ".join(line.split()) for line in "".join(words.parts).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


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
