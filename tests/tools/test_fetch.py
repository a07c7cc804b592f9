"""Fetching (F2, F4): no address that was not judged, no more bytes than the bound, and what is fetched is text."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ipaddress
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban.agents.tools import ToolContext, ToolError
from kokuban.agents.tools import fetch as module
from kokuban.agents.tools._addresses import is_public
from kokuban.agents.tools._pages import readable
from kokuban.agents.tools.fetch import FETCH_URL, MAX_BYTES, fetch, resolve

pytestmark = pytest.mark.anyio
EXAMPLES = int(os.environ.get("KOKUBAN_FUZZ_EXAMPLES", "100"))


class Site:
    """A server that answers as it is told, and keeps what it was asked."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self.asked: list[str] = []
        self._answer = answer
        self.port = 0
        self.at_work: set[asyncio.Task[None] | None] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_work.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        try:
            writer.write(self._answer(head.split(" ")[1]))
            await writer.drain()
        except ConnectionError:
            pass  # who has enough goes away
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def site(answer: Callable[[str], bytes]) -> AsyncIterator[Site]:
    found = Site(answer)
    server = await asyncio.start_server(found.handle, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await asyncio.gather(*(task for task in found.at_work if task), return_exceptions=True)


def said(body: bytes, kind: str = "text/plain", status: str = "200 OK", *more: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


def context(folder: Path, *hosts: str, local: tuple[str, ...] = (), protected: tuple[str, ...] = ()) -> ToolContext:
    return ToolContext(folder, folder, egress=hosts, local=local, protected=protected)


async def names(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_the_judged_address_is_asked_under_the_name(tmp_path: Path) -> None:
    async with site(lambda path: said(b"hello")) as there:
        here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{there.port}",))
        assert await fetch(f"http://docs.example:{there.port}/a?b#c", here, resolver=names) == "hello"
    assert there.asked[0].startswith("GET /a?b HTTP/1.1")
    assert f"Host: docs.example:{there.port}" in there.asked[0].title().replace("Docs.Example", "docs.example")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.1.1", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "::127.0.0.1", "192.0.2.1",
        "2001:db8::1", "ff02::1", "not an address", "", "fe80::1%eth0",
    ],
)  # fmt: skip
async def test_no_address_inside_is_reached_under_any_name(tmp_path: Path, address: str) -> None:
    async def inside(host: str, port: int) -> list[str]:
        return ["93.184.215.14", address]  # one good address does not help

    assert not is_public(address)
    with pytest.raises(ToolError, match="not of the internet"):
        await fetch("http://docs.example/", context(tmp_path, "docs.example"), resolver=inside)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1111", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["2130706433", "127.1", "0x7f.0.0.1", "0177.0.0.1", "localhost", "[::1]", "[::ffff:7f00:1]"]
)
async def test_odd_forms_of_loopback_are_judged_as_what_they_are(tmp_path: Path, host: str) -> None:
    with pytest.raises(ToolError, match=r"not of the internet|has no address"):
        await fetch(f"http://{host}:1/", context(tmp_path, host.strip("[]")), resolver=resolve)


async def test_the_bus_and_the_model_are_protected_whatever_is_allowed(tmp_path: Path) -> None:
    async with site(lambda path: said(b"secret")) as there:
        where = f"127.0.0.1:{there.port}"
        here = context(tmp_path, "docs.example", local=(where,), protected=(where,))
        with pytest.raises(ToolError, match="not of the internet"):
            await fetch(f"http://docs.example:{there.port}/", here, resolver=names)
    assert there.asked == []


async def test_each_hop_is_judged(tmp_path: Path) -> None:
    async with site(lambda path: said(b"secret")) as inner:
        hops = {"/meta": "http://169.254.169.254/latest", "/in": f"http://docs.example:{inner.port}/",
                "/other": "http://other.example/", "/user": "http://a:b@docs.example/",
                "/file": "file:///etc/passwd"}  # fmt: skip
        async with site(lambda path: said(b"", "text/plain", "302 Found", f"Location: {hops[path]}")) as outer:
            here = context(tmp_path, "docs.example", "169.254.169.254", local=(f"127.0.0.1:{outer.port}",))

            async def by_name(host: str, port: int) -> list[str]:
                return ["127.0.0.1"] if host == "docs.example" else [host]

            for path, reason in (
                ("/meta", "not of the internet"), ("/in", "not of the internet"), ("/other", "policy lets no fetch"),
                ("/user", "user or password"), ("/file", "only http"),
            ):  # fmt: skip
                with pytest.raises(ToolError, match=reason):
                    await fetch(f"http://docs.example:{outer.port}{path}", here, resolver=by_name)
        assert inner.asked == []


async def test_a_name_that_changes_between_check_and_connection_does_not_matter(tmp_path: Path) -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    async def changes(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async with site(lambda path: said(b"first")) as there:
        here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{there.port}",))
        assert await fetch(f"http://docs.example:{there.port}/", here, resolver=changes) == "first"
    assert len(answers) == 1


async def test_redirects_end(tmp_path: Path) -> None:
    async with site(lambda path: said(b"", "text/plain", "302 Found", "Location: /again")) as there:
        here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{there.port}",))
        with pytest.raises(ToolError, match="more than 5 redirects"):
            await fetch(f"http://docs.example:{there.port}/", here, resolver=names)
        assert len(there.asked) == 6


@pytest.mark.parametrize("packed", [True, False])
async def test_a_small_download_that_unpacks_to_much_is_cut(tmp_path: Path, packed: bool) -> None:
    import tracemalloc

    large = b"0" * (50 * 2**20 if packed else 3 * 2**20)
    body = gzip.compress(large) if packed else large
    more = ("Content-Encoding: gzip",) if packed else ()
    async with site(lambda path: said(body, "text/plain", "200 OK", *more)) as there:
        here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{there.port}",))
        tracemalloc.start()
        text = await fetch(f"http://docs.example:{there.port}/", here, resolver=names)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert text.endswith(f"[cut after {MAX_BYTES:,} bytes]")
    assert len(text) < MAX_BYTES + 100
    assert peak < 20 * 2**20


async def test_time_is_bounded_however_slowly_it_drips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)

    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{port}",))
    with pytest.raises(ToolError, match=r"more than 0.2 s"):
        await fetch(f"http://docs.example:{port}/", here, resolver=names)
    server.close()
    await ended.wait()


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("image/png", "200 OK", "image/png"),
        ("text/plain", "404 Not Found", "answered 404"),
        ("text/plain", "503 X", "503"),
    ],
)
async def test_what_is_no_text_is_told(tmp_path: Path, kind: str, status: str, reason: str) -> None:
    async with site(lambda path: said(b"x", kind, status)) as there:
        here = context(tmp_path, "docs.example", local=(f"127.0.0.1:{there.port}",))
        with pytest.raises(ToolError, match=reason) as error:
            await fetch(f"http://docs.example:{there.port}/", here, resolver=names)
        assert error.value.transient == (status == "503 X")


async def test_without_a_policy_nothing_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"lets no fetch reach example.org; hosts it names: none"):
        await FETCH_URL.run(context(tmp_path), {"url": "https://example.org/"})  # type: ignore[misc]


def test_a_page_is_read_without_its_scripts() -> None:
    page = "<html><style>p{}</style><script>steal()</script><h1>Title</h1><p>One &amp; <b>two</b></p>three</html>"
    assert readable(page) == "Title\n\nOne & two\nthree"


@given(st.text() | st.integers(0, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n))))
@settings(max_examples=EXAMPLES)
def test_judging_never_breaks_and_agrees_with_what_is_inside(text: str) -> None:
    is_public(text)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=EXAMPLES)
def test_a_wrapped_address_is_no_more_public_than_itself(number: int) -> None:
    plain = ipaddress.IPv4Address(number)
    for wrapped in (
        f"::ffff:{plain}",
        f"64:ff9b::{plain}",
        str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))),
    ):
        assert is_public(wrapped) <= is_public(str(plain))


@given(st.text(max_size=200) | st.from_regex(r"https?://[^\s/]{1,40}(/[^\s]{0,40})?", fullmatch=True))
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_address_breaks_the_fetch(url: str) -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def attempt() -> None:
        with pytest.raises(ToolError):
            await fetch(url, ToolContext(Path("."), Path("."), egress=("*.example",)), resolver=nowhere)

    asyncio.run(attempt())
