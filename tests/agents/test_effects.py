"""Effects on an endpoint that keeps a log: once where it honours keys, in doubt where it does not."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents._keys import key_stem
from kokuban.agents._tape import InDoubt
from kokuban.agents.tools import Registry, Tool, ToolContext
from kokuban.blackboard.wire import Bus
from support.bench import DONE, OPTIONAL, Bench, Benches, call, says
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio


class Endpoint:
    """Counts what it was asked, by key, and what it did: once for each key, and each time for none."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.did = 0

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @contextmanager
    def serving(self) -> Iterator[Endpoint]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                key = self.headers.get("Idempotency-Key", "")
                endpoint.did += not key or key not in endpoint.asked
                endpoint.asked.append(key)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def post(endpoint: Endpoint, *, keyed: bool, dies: bool = False) -> Registry:
    """A tool that posts, and may die when the endpoint has answered, before anybody has written that down."""

    def run(context: ToolContext, arguments: Mapping[str, Any]) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
        connection.request("POST", "/", headers={"Idempotency-Key": context.key} if context.key else {})
        connection.getresponse().read()
        connection.close()
        if dies:
            raise SystemExit(9)
        return "posted"

    return Registry([Tool("post", "", OPTIONAL, run, tier="write", effect="keyed" if keyed else "other")])


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint().serving() as serving:
        yield serving


POST = says(call("post", '{"limit":1}'))


async def lost_after_the_effect(b: Bench, endpoint: Endpoint, *, keyed: bool) -> None:
    b.tools = post(endpoint, keyed=keyed, dies=True)
    with pytest.raises(SystemExit):
        await b.run(POST, DONE)


async def test_a_keyed_effect_is_sent_again_under_its_key_and_done_once(bench: Benches, endpoint: Endpoint) -> None:
    await lost_after_the_effect(await bench(), endpoint, keyed=True)
    await lost_after_the_effect(await bench(resumes=True), endpoint, keyed=True)
    third = await bench(resumes=True)
    third.tools = post(endpoint, keyed=True)
    assert await third.run(DONE) == "done"
    assert len(endpoint.asked) == 3
    assert set(endpoint.asked) == {key_stem(bench.desk.task, "fix", "post", '{"limit":1}') + ":0"}
    assert endpoint.did == 1


async def test_any_other_effect_is_in_doubt_and_done_once(bench: Benches, endpoint: Endpoint) -> None:
    await lost_after_the_effect(await bench(), endpoint, keyed=False)
    for _ in range(2):
        later = await bench(resumes=True)
        later.tools = post(endpoint, keyed=False)
        with pytest.raises(InDoubt, match="post"):
            await later.run(DONE)
    assert (endpoint.asked, endpoint.did) == ([""], 1)


async def test_a_new_attempt_that_does_the_same_sends_the_same_key(bench: Benches, endpoint: Endpoint) -> None:
    """It has no tape to play back; whoever honours keys does once what all attempts ask for."""
    for replies in ((POST, RuntimeError("a bug")), (says(call("list")), POST, POST, DONE)):
        b = await bench()
        b.tools = post(endpoint, keyed=True)
        b.tools.add(Tool("list", "", OPTIONAL, lambda context, arguments: "nothing", "read", "read"))
        with contextlib.suppress(RuntimeError):
            await b.run(*replies)
    first, again, second = endpoint.asked
    assert first == again
    assert second == f"{first[:-1]}1"  # wanted twice in one attempt, it is done twice
    assert endpoint.did == 2


@pytest.mark.parametrize("keyed", [True, False])
async def test_what_is_settled_is_not_even_asked_again(bench: Benches, endpoint: Endpoint, keyed: bool) -> None:
    first = await bench()
    first.tools = post(endpoint, keyed=keyed)
    with pytest.raises(ConnectionAbortedError):
        await first.run(POST, says(call("post", '{"limit":2}')), ConnectionAbortedError("as if killed"))
    second = await bench(resumes=True)
    second.tools = post(endpoint, keyed=keyed)
    assert await second.run(DONE) == "done"
    assert len(endpoint.asked) == 2
    assert endpoint.did == 2
