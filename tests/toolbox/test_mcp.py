"""Tools of a real MCP server, over both transports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from kokuban.agents.toolbox import Toolbox, _mcp
from kokuban.agents.tools import Arguments, Observation, Registry, ToolContext, execute
from support.processes import KILL_SECONDS
from support.waiting import eventually

pytestmark = pytest.mark.anyio
SERVER = str(Path(__file__).with_name("mcp_server.py"))


@asynccontextmanager
async def opened(folder: Path, text: str, patience_seconds: float = 60) -> AsyncIterator[Toolbox]:
    file = folder / "tools.toml"
    file.write_text(text, "utf-8")
    async with Toolbox.open(file, patience_seconds=patience_seconds) as box:
        yield box


def over_stdio(more: str = "", seconds: float = 10) -> str:
    return f'[mcp.s]\ncommand = ["{sys.executable}", "{SERVER}", "stdio"]\ntimeout_seconds = {seconds}\n{more}'


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def served(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, SERVER, "streamable-http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(KILL_SECONDS)


async def call(box: Toolbox, name: str, **values: object) -> Observation:
    judged = Registry(box.tools).validate(name, values)
    assert isinstance(judged, Arguments), judged
    return await execute(judged, ToolContext(Path(), Path()))


async def until_it_answers(box: Toolbox, name: str) -> Observation:
    """Calls that did nothing are made again, as the runtime does."""
    for _ in range(50):
        seen = await call(box, name, a=1, b=2)
        if not seen.transient:
            return seen
        assert seen.known
    return seen


async def test_all_pages_are_taken_and_strangers_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOKUBAN_SECRET_X", "canary-1")
    monkeypatch.setenv("FOR_IT", "yes")
    more = 'environment = ["FOR_IT"]\n[tool.s_pid]\ntier = "read"\neffect = "read"\n'
    async with opened(tmp_path, over_stdio(more)) as box:
        tools = {tool.name: tool for tool in box.tools}
        assert list(tools) == sorted(tools)  # whatever order the server lists them in: requests are compared
        assert len(tools) == 12
        assert (tools["s_add"].tier, tools["s_add"].effect) == ("consequential", "other")
        assert (tools["s_pid"].tier, tools["s_pid"].source) == ("read", "mcp:s")
        assert len({tool.version for tool in box.tools}) == 12
        assert (await call(box, "s_add", a=1, b=2)).text == "3"
        names = (await call(box, "s_env")).text.split(",")
        assert "FOR_IT" in names
        assert "KOKUBAN_SECRET_X" not in names


async def test_results_of_every_kind(tmp_path: Path) -> None:
    async with opened(tmp_path, over_stdio()) as box:
        assert (await call(box, "s_data")).text == '{"total": 3, "of": ["a"]}'
        assert (await call(box, "s_picture")).text == "[image left out]"
        assert (await call(box, "s_typed")).text == "it is 1"  # what it says of its results is not asked
        assert len((await call(box, "s_flood")).text) < 20_000


async def test_an_error_answer_is_known_and_ends_no_connection(tmp_path: Path) -> None:
    async with opened(tmp_path, over_stdio()) as box:
        before = await call(box, "s_pid")
        refused = await call(box, "s_refuse")
        assert (refused.ok, refused.known, refused.text) == (False, True, "s refused: no such account")
        bad = await call(box, "s_bad")
        assert (bad.ok, bad.known, bad.text) == (False, True, "it is closed")
        assert (await call(box, "s_pid")).text == before.text


async def test_a_call_out_of_time_ends_no_other(tmp_path: Path) -> None:
    more = "[tool.s_slow]\ntimeout_seconds = 0.2\n"
    async with opened(tmp_path, over_stdio(more)) as box:
        before = await call(box, "s_pid")
        slow, other = await asyncio.gather(call(box, "s_slow", seconds=30), call(box, "s_add", a=1, b=2))
        assert (slow.ok, slow.known, other.text) == (False, False, "3")
        assert (await call(box, "s_pid")).text == before.text


async def test_a_server_that_works_need_not_answer_pings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mcp, "PING_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(_mcp, "PING_SECONDS", 0.1)
    async with opened(tmp_path, over_stdio()) as box:
        before = await call(box, "s_pid")
        for _ in range(3):
            assert (await call(box, "s_block", seconds=0.5)).text == "worked"
        assert (await call(box, "s_pid")).text == before.text


async def test_a_server_that_comes_later_has_its_tools_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mcp, "GRACE_SECONDS", 0.01)
    port = free_port()
    text = f'[mcp.h]\nurl = "http://127.0.0.1:{port}/mcp"\n[tool.h_add]\ntier = "read"\n'
    async with opened(tmp_path, text) as box:
        assert box.tools == ()
        assert set(box.disabled) == {"h_*"}
        with served(port):
            assert len(await eventually(lambda: box.tools, seconds=30)) == 12
            assert box.disabled == {}
            assert (await until_it_answers(box, "h_add")).text == "3"
            assert next(tool.tier for tool in box.tools if tool.name == "h_add") == "read"


async def test_a_server_that_hangs_is_not_waited_for_and_has_its_tools_when_it_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with opened(tmp_path, f'[mcp.h]\nurl = "http://127.0.0.1:{port}/mcp"\n', 0.1) as box:
            assert box.tools == ()
            assert box.disabled == {"h_*": "no answer within 0.1 s"}
            silent.close()
            with served(port):
                await eventually(lambda: box.tools, seconds=30)
                assert box.disabled == {}


async def test_a_worker_does_not_wait_long_for_a_server_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _mcp.PATIENCE_SECONDS <= 5
    monkeypatch.setattr(_mcp, "START_SECONDS", 3_600.0)
    command = f'["{sys.executable}", "-c", "import sys; sys.stdin.read()"]'
    (tmp_path / "tools.toml").write_text(f"[mcp.s]\ncommand = {command}\n", "utf-8")
    async with asyncio.timeout(60), Toolbox.open(tmp_path / "tools.toml") as box:
        assert box.disabled == {"s_*": f"no answer within {_mcp.PATIENCE_SECONDS:g} s"}


async def test_a_server_that_dies_leaves_its_call_open_and_is_started_again(tmp_path: Path) -> None:
    async with opened(tmp_path, over_stdio()) as box:
        first = await call(box, "s_pid")
        died = await call(box, "s_die")
        assert (died.ok, died.known) == (False, False)
        again = await until_it_answers(box, "s_pid")
        assert again.ok
        assert again.text != first.text
        os.kill(int(again.text), signal.SIGKILL)
        assert (await call(box, "s_add", a=1, b=2)).text != "3"
        assert (await until_it_answers(box, "s_add")).text == "3"


async def test_over_http_a_request_that_found_nobody_is_known_not_to_be_sent(tmp_path: Path) -> None:
    port = free_port()
    text = f'[mcp.h]\nurl = "http://127.0.0.1:{port}/mcp?token=canary-2"\ntimeout_seconds = 10\n'
    with served(port) as server:
        await eventually(lambda: listens(port), seconds=30)
        async with opened(tmp_path, text) as box:
            assert (await call(box, "h_add", a=1, b=2)).text == "3"
            pending = asyncio.create_task(call(box, "h_slow", seconds=30))
            assert (await call(box, "h_add", a=1, b=2)).text == "3"  # the one before is under way by now
            server.kill()
            server.wait()
            lost = await pending
            assert (lost.ok, lost.known) == (False, False)
            gone = await call(box, "h_add", a=1, b=2)
            assert (gone.ok, gone.known, gone.transient) == (False, True, True)
            assert "canary" not in gone.text
            worded = await call(box, "h_add", a="initialize", b="initialize")
            assert (worded.known, worded.transient) == (True, True)
            with served(port):
                assert (await until_it_answers(box, "h_add")).text == "3"


async def test_an_address_that_leads_nowhere_is_told_without_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mcp, "START_SECONDS", 5.0)
    nobody, port = free_port(), free_port()
    servers = {
        "a": f'url = "http://127.0.0.1:{nobody}/x?token=canary-3"',
        "b": f'url = "http://127.0.0.1:{port}/nothing?token=canary-3"',
        "c": 'command = ["no-such-program"]',
    }
    text = "".join(f"[mcp.{name}]\n{how}\n" for name, how in servers.items())
    with served(port):
        await eventually(lambda: listens(port), seconds=30)
        async with opened(tmp_path, text) as box:
            assert box.tools == ()
            assert "ConnectError" in box.disabled["a_*"]
            assert "404" in box.disabled["b_*"]
            assert "no-such-program" in box.disabled["c_*"]
            assert "canary" not in str(box.disabled)
