"""The bus and the model are nobody's to fetch, in whatever form they are asked for and whatever a policy allows."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kokuban.agents.policy import InvalidPolicy, Policy, PolicyFile
from kokuban.agents.tools import ToolContext, ToolError
from kokuban.agents.tools._addresses import bus_places, is_own, places
from kokuban.agents.tools.fetch import fetch
from kokuban.blackboard import Client
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from support.nats_server import NatsServer
from support.processes import child
from support.team import records, script, team
from tools.test_fetch import said, site

pytestmark = pytest.mark.anyio
CONTRACT = """role = "looker"
summary = "Looks at pages."
when = "planned"
consumes = ["task"]
produces = ["note"]
model = true
tools = ["fetch_url"]
"""
NOTE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text"],
    "properties": {"text": {"type": "string"}},
}
PLAN = {"steps": [{"id": "look", "role": "looker", "goal": "Look at it all", "needs": []}]}


def reply(*calls: tuple[str, dict[str, Any]]) -> bytes:
    wanted = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": wanted}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 10}
    return said(json.dumps({"id": "r", "object": "chat.completion", "choices": [choice], "usage": usage}).encode(),
                "application/json")  # fmt: skip


class Model:
    """A model server whose model fetches each of these addresses, and then says that it is done."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.turn = 0

    def answer(self, path: str) -> bytes:
        assert path == "/v1/chat/completions", path
        self.turn += 1
        if self.turn <= len(self.urls):
            return reply(("fetch_url", {"url": self.urls[self.turn - 1]}))
        return reply(("give_note", {"text": "done"}))


@asynccontextmanager
async def looking(server: NatsServer, folder: Path, policy: str, base_url: str) -> AsyncIterator[Client]:
    (folder / "policy.toml").write_text(policy)
    async with await Bus.connect(server.url) as bus:
        await ensure_board(bus)
        await register_kind(bus, "note", json.dumps(NOTE).encode())
        await register_role(bus, CONTRACT)
    planner = script(folder / "planner.json", {"when": {"role": "planner"}, "reply": {"content": PLAN}})
    words = ["worker", "looker", "--nats", server.url, "--policy", str(folder / "policy.toml"),
             "--model", "openai-compatible:m", "--base-url", base_url, "--home", str(folder / "home")]  # fmt: skip
    async with (
        team(server.url, planner, folder / "team"),
        child("-m", "kokuban.console.main", *words, log=folder / "worker.log"),
        await Client.connect(server.url) as board,
    ):
        yield board


async def test_a_worker_fetches_neither_its_bus_nor_its_model(nats_server: NatsServer, tmp_path: Path) -> None:
    bus, model = nats_server.url.rpartition(":")[2], Model()
    async with site(lambda path: said(b"a page of this network")) as page, site(model.answer) as there:
        ports = (bus, there.port, 8222, 6222)
        hosts = ("127.0.0.1", "localhost", "LOCALHOST.", "2130706433", "127.1", "0x7f.0.0.1", "0177.0.0.1", "0.0.0.0",
                 "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]")  # fmt: skip
        guarded = [f"http://{host}:{port}/healthz" for port in ports for host in hosts]
        model.urls = [f"http://127.0.0.1:{page.port}/", *guarded]
        names = sorted({host.strip("[].").lower() for host in hosts})
        where = [
            f"{host}:{port}" for port in (*ports, page.port) for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]")
        ]
        policy = f'version = "1"\negress = {json.dumps(names)}\nlocal = {json.dumps(where)}\n'
        async with looking(nats_server, tmp_path, policy, f"http://localhost:{there.port}/v1") as board:
            task = await board.submit("Look around", tool_calls=200, steps=200)
            end = await board.result(task, timeout=120)
        assert end.state == "done", (end, (tmp_path / "worker.log").read_text()[-2_000:])
        assert [line.split(" ")[0] for line in there.asked] == ["POST"] * model.turn
        assert len(page.asked) == 1
    stored = b"".join(one.data for one in await records(nats_server.url)).decode()
    assert stored.count("a page of this network") == 1
    assert stored.count("belongs to this system; it is not fetched") + stored.count("not of the internet") == len(
        guarded
    )


async def test_what_listens_on_all_addresses_is_protected_on_all(tmp_path: Path) -> None:
    own = [address for address in ("127.0.0.1", "127.0.0.9", "0.0.0.0", "::1", "::") if is_own(address)]
    assert "127.0.0.9" in own
    assert not any(map(is_own, ("93.184.215.14", "2606:4700::1111", "10.255.255.254", "", "no address")))
    for named in own:
        for asked in own:

            async def there(host: str, port: int, found: str = asked) -> list[str]:
                return [found]

            place = f"[{asked}]:4222" if ":" in asked else f"{asked}:4222"
            bus = bus_places(f"nats://[{named}]:4222" if ":" in named else f"nats://{named}")
            here = ToolContext(tmp_path, tmp_path, egress=("docs.example",), local=(place,), protected=bus)
            for port in (4222, 8222, 6222):
                with pytest.raises(ToolError, match="not of the internet"):
                    await fetch(f"http://docs.example:{port}/", here, resolver=there)


async def test_every_server_of_the_cluster_and_the_machine_itself_count(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        assert bus.addresses[0] == nats_server.url
        assert set(bus_places(*bus.addresses)) >= {nats_server.url.removeprefix("nats://"), "127.0.0.1:8222"}
    name = socket.gethostname()
    assert set(bus_places(f"nats://{name}:4333, b:4444,")) >= {f"{name.lower()}:4333", "b:4444", "b:8222"}
    assert bus_places("a:99999", "[", "a:b") == ()
    assert bus_places(f"tls://ann:secret@{name}:4333")[0] == f"{name.lower()}:4333"


ODD = st.sampled_from(
    ["nats://", "http://", "://", "[", "]", "::1", "@", ":", ",", "a", "4", "99999", "-1", "%", "/", "\ud800"]
)


@given(st.text() | st.lists(ODD, max_size=8).map("".join))
@example("a,b")
@example("a:1,b:2")
def test_of_any_text_the_places_are_hosts_with_ports_or_none(text: str) -> None:
    for place in (*places(text), *bus_places(text)):
        host, _, port = place.rpartition(":")
        assert host
        assert 0 < int(port) < 65_536


@pytest.mark.parametrize(
    "one", ["intranet:80", "10.1.2.3", "10.1.2.3:0", "10.1.2.3:99999", "10.1.2.3:x", "*:80", ":80"]
)
def test_a_local_address_is_an_address_and_a_port(one: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match=r"local: .*give one such as"):
        Policy.parse(f'version = "1"\nlocal = ["{one}"]\n', "policy.toml")
    good = 'version = "1"\nlocal = ["10.1.2.3:80", "[fd00::1]:80"]\n'
    (tmp_path / "policy.toml").write_text(good)
    policy = PolicyFile(tmp_path / "policy.toml")
    assert policy.local == ("10.1.2.3:80", "[fd00::1]:80")
    assert Policy.parse('version = "1"\n', "p").version == Policy.parse('version = "1"\nlocal = []\n', "p").version
