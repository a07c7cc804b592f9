"""Addresses that a model may write, and pages that a stranger may serve: no crash, no hang, and no way to a place that
was not judged."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.tools import ToolContext, ToolError
from kokuban.agents.tools._addresses import is_public, place, places, unwrapped
from kokuban.agents.tools._pages import readable, text_of
from kokuban.agents.tools.fetch import fetch
from support.fuzz import fuzz, in_time

pytestmark = in_time

# --- what models and strangers write ----------------------------------------------------------------------------------

KNOWN = [0x7F000001, 0x0A000001, 0xA9FEA9FE, 0xC0A80001, 0xAC100001, 0x64400001, 0, 0xFFFFFFFF, 0x08080808, 0x01010101]
NUMBERS = st.integers(0, 2**32 - 1) | st.sampled_from(KNOWN)


def written(number: int) -> list[str]:
    """An IPv4 address in the forms that libraries and systems take for it."""
    a, b, c, d = number.to_bytes(4, "big")
    plain = f"{a}.{b}.{c}.{d}"
    sixes = [f"::ffff:{plain}", f"64:ff9b::{plain}", f"2002:{a:02x}{b:02x}:{c:02x}{d:02x}::", f"::{plain}",
             f"::ffff:0:{plain}", f"64:ff9b:1::{plain}", f"2001:0:{a:02x}{b:02x}:{c:02x}{d:02x}::1"]  # fmt: skip
    return [plain, str(number), hex(number), f"0{number:o}", f"{a}.{number & 0xFFFFFF}", f"0x{a:x}.{b}.0{c:o}.{d}",
            plain.replace(".", "\u3002"), f"{plain}.", *(f"[{six}]" for six in sixes)]  # fmt: skip


FORMS = st.sampled_from([form for number in KNOWN for form in written(number)])
HOSTS = (
    FORMS
    | st.sampled_from(["docs.example", "x.example"])
    | NUMBERS.flatmap(lambda number: st.sampled_from(written(number)))
    | st.sampled_from(
        ["docs.example", "DOCS.example.", "docs\uff0eexample", "ⓓocs.example", "localhost", "a..example",
         "x" * 70 + ".example", "xn--.example", "%64ocs.example", "[::1%25eth0]", "[", "]", "docs.example:0",
         "ß.example", "docs.example\\", "docs.example\\@10.0.0.1", "[docs.example]", "[v1.x]", "*.example",
         "\u202edocs.example"]
    )
    | st.text(max_size=12)
)  # fmt: skip
PIECES = st.sampled_from(
    ["http", "https", "file", "HTTP", "gopher", "://", ":", "/", "//", "\\", "@", "a:b@", "#", "?", "..", "%2e", "%00",
     "%0d%0a", "\r\n", "\t", "\0", " ", ":80", ":65536", ":-1", ":0x50", "\ud800", "é", "@10.0.0.1", "?@x", ";", "[::]"]
) | HOSTS  # fmt: skip
SCHEMES = st.sampled_from(["http", "https"])
ENDS = st.sampled_from(["", "/", ":80/", ":443", "/#a"])
URLS = st.one_of(
    st.builds("{}://{}{}".format, SCHEMES, FORMS | st.just("x.example"), ENDS),
    st.builds("{}://{}{}".format, SCHEMES, HOSTS, st.lists(PIECES, max_size=4).map("".join)),
    st.lists(PIECES, max_size=8).map("".join),
    st.text(max_size=60),
)  # fmt: skip
EGRESS = (
    "docs.example",
    "*.example",
    "localhost",
    *(form.strip("[].") for number in KNOWN for form in written(number)),
)


class Stop(httpx.HTTPError):
    """In the place of a connection."""


class Recorded(httpx.AsyncBaseTransport):
    """Says where a request would have gone."""

    def __init__(self, gone: list[httpx.Request], answers: list[httpx.Response]) -> None:
        self._gone, self._answers = gone, answers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._gone.append(request)
        if not self._answers:
            raise Stop("enough")
        return self._answers.pop(0)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """The requests that would have been made; `answers` are what comes back."""
    made: list[httpx.Request] = []
    plain = httpx.AsyncClient

    def client(**options: Any) -> httpx.AsyncClient:
        assert options.pop("trust_env") is False
        assert options.pop("follow_redirects") is False
        del options["verify"]
        return plain(transport=Recorded(made, answers.copy()), **options)

    monkeypatch.setattr(httpx, "AsyncClient", client)
    return made


answers: list[httpx.Response] = []


async def by_system(host: str, port: int) -> list[str]:
    """What the system makes of a number, and for names an address each way."""
    if host == "docs.example":
        return ["93.184.215.14"]
    if host.endswith(".example"):
        return ["93.184.215.14", "10.0.0.9"]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except ValueError as error:
        raise OSError("no name") from error
    return [str(entry[4][0]) for entry in found]


def look(url: str, hop: str = "") -> None:
    answers[:] = [httpx.Response(302, headers=[(b"Location", hop.encode("utf-8", "replace"))])] if hop else []
    here = ToolContext(Path("."), Path("."), egress=EGRESS, protected=("8.8.8.8:80", "bus.example:4222"))
    with pytest.raises(ToolError) as said:
        asyncio.run(fetch(url, here, resolver=by_system))
    str(said.value).encode()
    assert len(str(said.value)) < 600


# --- targets ----------------------------------------------------------------------------------------------------------


@fuzz
@given(URLS)
def test_a_request_goes_to_a_judged_address_or_nowhere(gone: list[httpx.Request], url: str) -> None:
    gone.clear()
    look(url)
    check(gone)


@fuzz
@given(URLS)
def test_what_a_server_redirects_to_is_judged_as_well(gone: list[httpx.Request], hop: str) -> None:
    gone.clear()
    look("http://docs.example/", hop)
    check(gone)
    assert gone


def check(gone: list[httpx.Request]) -> None:
    for request in gone:
        target = ipaddress.ip_address(request.url.host)
        assert is_public(str(target))
        port = request.url.port or {"http": 80, "https": 443}[request.url.scheme]
        assert (str(unwrapped(target)), port) != ("8.8.8.8", 80)  # protected
        host, line = request.headers["host"], bytes(request.url.raw_path)
        assert host.isascii()
        assert not any(letter in host for letter in "@/\\#? \r\n")
        assert not host.startswith("x.example")  # one of its addresses is inside
        assert b"#" not in line
        assert b"\r" not in line
        assert b"\n" not in line
        assert not request.url.userinfo
        assert request.extensions["sni_hostname"] == httpx.URL(f"http://{host}").host


@fuzz
@given(NUMBERS)
def test_an_address_is_no_more_public_in_another_form(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    inside = not is_public(str(plain))
    for form in (text.strip("[].") for text in written(number)):
        try:
            found = socket.getaddrinfo(form, 80, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, ValueError):
            assert not is_public(form)
            continue
        for entry in found:
            if inside:
                assert not is_public(str(entry[4][0])), form


@fuzz
@given(st.text() | st.integers(0, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n))))
def test_any_text_is_an_address_or_none(text: str) -> None:
    if is_public(text):
        found = ipaddress.ip_address(text.partition("%")[0])
        assert found.is_global
        assert place(text, 1)
        assert places(f"nats://[{found}]" if found.version == 6 else f"nats://{found}")
    place(text, 80)


TAGS = st.sampled_from(
    ["<", ">", "</", "<!--", "-->", "<!", "<![CDATA[", "<?", "<script>", "</script", "<p>", "<a href='", "'", '"',
     "=", "/>", "<style", "&amp;", "&#", "&#x", "9" * 20, ";", "&lt;", "<svg/onload=", "\0", "\u2028", "\ud800",
     "<P CLASS=\">\">", "x"]
)  # fmt: skip


@fuzz
@given(st.lists(TAGS | st.text(max_size=5), max_size=30).map("".join), st.text(max_size=30))
def test_any_page_is_read(page: str, kind: str) -> None:
    shown = readable(page)
    assert shown == shown.strip()
    assert len(shown) <= len(page) + page.count("&") * 2
    body = page.encode("utf-8", "surrogatepass")
    for charset in (
        kind,
        "utf-16",
        "punycode",
        "idna",
        "zip",
        "unicode_escape",
        "undefined",
        "cp1252",
        "cp99999",
        "rot13",
    ):
        text_of(body, f"text/html; charset={charset}").encode()


@pytest.mark.parametrize(
    "piece",
    ["<!--", "<!", "<", "<a ", "</a", '<a b="', "<?", "&", "&#9", "<script>", "<script></script>", "<!--a--!", "<p>",
     " ", "\n", "<a b='c' ", "<aaaaaaaa", "<svg>", "a" * 64 + "<", "&amp", "</script>"],
)  # fmt: skip
def test_no_repetition_takes_long(piece: str) -> None:
    page = piece * (400_000 // len(piece))
    begun = time.monotonic()
    readable(page)
    assert time.monotonic() - begun < 10


def test_what_a_path_may_hold_is_sent_as_it_is(gone: list[httpx.Request]) -> None:
    look(f"http://docs.example/a/{quote('é b')}?q=a%2Fb&c=%00#part")
    assert gone[0].url.raw_path == b"/a/%C3%A9%20b?q=a%2Fb&c=%00"
