"""The embedded server: which program it runs, who holds a store, what is durable, and who ends with whom."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from kokuban.blackboard.wire import _server_binary
from kokuban.blackboard.wire.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    RunningServer,
    ServerBinary,
    find_server,
    running_server,
)
from support.nats_server import NatsServer
from support.processes import end, gone, linux_only, said

pytestmark = pytest.mark.anyio

MakeServer = Callable[..., EmbeddedServer]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "the store"


@pytest.fixture
def make(store: Path, nats_binary: ServerBinary) -> MakeServer:
    """An embedded server on the test's store, not started."""

    def server(**options: object) -> EmbeddedServer:
        return EmbeddedServer(**{"store": store, "sync": "default", "binary": nats_binary, **options})  # type: ignore[arg-type]

    return server


def fake_server(path: Path, said: str, code: int = 0) -> Path:
    """A program that answers --version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    path.chmod(0o755)
    return path


# --- which program -------------------------------------------------------------------------------------------------


def test_the_pinned_wheel_is_the_default() -> None:
    found = find_server({})
    assert found.version == _server_binary.PINNED_VERSION
    assert found.path.is_absolute()
    assert subprocess.run([found.path, "--version"], capture_output=True, check=True).stdout


@pytest.mark.parametrize("version", ["v2.14.0", "v2.15.1", "v2.100.0", "v3.0.0", "2.14.3", "v2.14.0-RC.1"])
def test_a_new_enough_server_is_preferred(tmp_path: Path, version: str) -> None:
    program = fake_server(tmp_path / "nats-server", f"nats-server: {version}")
    expected = ServerBinary(program, version.removeprefix("v"))
    assert find_server({"PATH": str(tmp_path)}) == expected
    assert find_server({"KOKUBAN_NATS_SERVER": str(program)}) == expected


@pytest.mark.parametrize("said", ["nats-server: v2.13.9", "nats-server: v1.99.0", "nats-server: v2.9.10", "hello", ""])
def test_an_unfit_server_on_the_path_is_passed_over(tmp_path: Path, said: str) -> None:
    fake_server(tmp_path / "nats-server", said)
    assert find_server({"PATH": str(tmp_path)}) == find_server({})


@pytest.mark.parametrize(
    ("said", "words"),
    [("nats-server: v2.13.9", "2.13.9"), ("hello", "--version"), ("nats-server: unknown", "--version")],
)
def test_an_unfit_named_server_is_an_error(tmp_path: Path, said: str, words: str) -> None:
    named = fake_server(tmp_path / "old", said)
    good = fake_server(tmp_path / "nats-server", "nats-server: v2.15.1")
    with pytest.raises(EmbeddedServerError, match=words) as caught:
        find_server({"KOKUBAN_NATS_SERVER": str(named), "PATH": str(good.parent)})
    assert str(named) in str(caught.value)
    assert "KOKUBAN_NATS_SERVER" in str(caught.value)


def test_a_named_server_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    for named, words in [
        (tmp_path / "missing", "not a file"),
        (tmp_path, "not a file"),
        (plain, "not executable"),
        (broken, "cannot be run"),
    ]:
        with pytest.raises(EmbeddedServerError, match=words):
            find_server({"KOKUBAN_NATS_SERVER": str(named)})


def test_an_empty_variable_names_nothing() -> None:
    assert find_server({"KOKUBAN_NATS_SERVER": "", "PATH": ""}) == find_server({})


def test_the_wheel_on_the_path_is_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = find_server({}).path
    monkeypatch.setattr(_server_binary, "PINNED_SHA256", {(sys.platform, platform.machine()): "0" * 64})
    with pytest.raises(EmbeddedServerError, match="sha256"):
        find_server({"PATH": str(pinned.parent)})


def test_an_unknown_platform_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(EmbeddedServerError, match=r"riscv64.*KOKUBAN_NATS_SERVER.*--nats"):
        find_server({})


# --- a server's life -----------------------------------------------------------------------------------------------


async def test_start_serves_jetstream_on_loopback_and_stop_ends_it(make: MakeServer, store: Path) -> None:
    async with make() as server:
        assert server.url.startswith("nats://127.0.0.1:")
        assert server.store == store
        client = await nats.connect(server.url)
        await client.jetstream().account_info()
        await client.close()
        pid = server.pid
        assert f"[{pid}]" in server.log.read_text()
        assert store.stat().st_mode & 0o077 == 0
    assert not server.running
    assert gone(pid)
    assert running_server(store) is None
    await server.stop()


@linux_only
async def test_it_listens_on_loopback_only(make: MakeServer) -> None:
    async with make() as server:
        port = f":{int(server.url.rpartition(':')[2]):04X}"
        listeners = [
            local
            for table in ("tcp", "tcp6")
            for _, local, _, state, *_ in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines())
            if state == "0A" and local.endswith(port)
        ]
        assert listeners == [f"0100007F{port}"]


async def test_the_board_outlives_stop_and_kill_and_keeps_its_url(make: MakeServer) -> None:
    server = make(sync="always")
    await server.start()
    url = server.url
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="BOARD", subjects=["kb.>"])
    await client.jetstream().publish("kb.one", b"1")
    await client.close()
    server.kill()
    assert await server.wait() == -signal.SIGKILL
    await server.start()
    assert server.url == url
    await server.stop()
    await server.start()
    client = await nats.connect(server.url)
    assert (await client.jetstream().get_last_msg("BOARD", "kb.one")).data == b"1"
    await client.close()
    await server.stop()
    async with make() as another:
        client = await nats.connect(another.url)
        assert (await client.jetstream().get_last_msg("BOARD", "kb.one")).data == b"1"
        await client.close()


async def test_a_store_can_be_moved(make: MakeServer, store: Path, tmp_path: Path) -> None:
    async with make() as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="BOARD", subjects=["kb.>"])
        await client.close()
    moved = tmp_path / 'quo"ted $HOME \\ {x}'
    store.rename(moved)
    async with make(store=moved) as server:
        client = await nats.connect(server.url)
        await client.jetstream().stream_info("BOARD")
        await client.close()


async def test_the_store_limit_holds(make: MakeServer) -> None:
    async with make(max_store_bytes=1 << 20) as server:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        with pytest.raises(nats.js.errors.ServerError, match="insufficient storage"):
            await stream.add_stream(name="BOARD", subjects=["kb.>"], max_bytes=1 << 21)
        await client.close()


async def test_misuse_is_told(make: MakeServer) -> None:
    server = make()
    with pytest.raises(EmbeddedServerError, match="start"):
        _ = server.url
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.pid
    with pytest.raises(EmbeddedServerError, match="never started"):
        await server.wait()
    await server.stop()
    async with server:
        with pytest.raises(EmbeddedServerError, match="already runs"):
            await server.start()


async def test_model_keys_do_not_reach_the_server(make: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    async with make() as server:
        environ = Path(f"/proc/{server.pid}/environ")
        if environ.exists():
            assert b"sk-secret" not in environ.read_bytes()


# --- what can be in the way ----------------------------------------------------------------------------------------


async def test_one_store_has_one_server(make: MakeServer, store: Path) -> None:
    async with make() as server:
        assert running_server(store) == RunningServer(server.pid, server.url)
        with pytest.raises(EmbeddedServerError) as caught:
            await make().start()
        assert str(server.pid) in str(caught.value)
        assert server.url in str(caught.value)
        client = await nats.connect(server.url)
        await client.close()


async def test_of_many_at_once_one_gets_the_store(make: MakeServer) -> None:
    servers = [make() for _ in range(4)]
    results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    assert sum(isinstance(result, EmbeddedServer) for result in results) == 1
    assert sum(isinstance(result, EmbeddedServerError) for result in results) == 3
    for server in servers:
        await server.stop()


async def test_many_at_once_take_different_ports(make: MakeServer, tmp_path: Path) -> None:
    servers = [make(store=tmp_path / str(i)) for i in range(6)]
    await asyncio.gather(*(server.start() for server in servers))
    assert len({server.url for server in servers}) == 6
    await asyncio.gather(*(server.stop() for server in servers))


async def test_a_taken_port_is_named(make: MakeServer, store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = make(port=port)
        with pytest.raises(EmbeddedServerError, match=rf"port {port} .*taken.*another port"):
            await server.start()
        assert not server.running
        assert running_server(store) is None
    async with server:
        assert server.url == f"nats://127.0.0.1:{port}"


async def test_a_store_that_cannot_be_a_folder_is_named(make: MakeServer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for store in (file, file / "below"):
        with pytest.raises(EmbeddedServerError, match=r"store folder .*file.* choose another"):
            await make(store=store).start()
    assert file.read_text() == ""


async def test_a_server_that_says_why_it_ends_is_quoted(make: MakeServer, tmp_path: Path) -> None:
    program = fake_server(tmp_path / "bin" / "nats-server", "nats-server: the moon is full", code=1)
    with pytest.raises(EmbeddedServerError, match=r"the moon is full.*server\.log"):
        await make(binary=ServerBinary(program, "2.15.1")).start()


async def test_a_program_gone_since_it_was_found_is_named(make: MakeServer, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"gone.* cannot be run"):
        await make(binary=ServerBinary(tmp_path / "gone", "2.15.1")).start()


async def test_a_server_that_never_answers_is_given_up_and_ended(make: MakeServer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    mute = tmp_path / "mute"
    mute.write_text(f"#!/bin/sh\necho $$ > '{pid_file}'\nexec sleep 3600\n")
    mute.chmod(0o755)
    server = make(binary=ServerBinary(mute, "2.15.1"), ready_seconds=0.3)
    with pytest.raises(EmbeddedServerError, match=r"did not answer within 0.3 s"):
        await server.start()
    assert gone(int(pid_file.read_text()))
    assert running_server(server.store) is None


async def test_a_cancelled_start_leaves_nothing(make: MakeServer, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho begun\nexec sleep 3600\n")
    mute.chmod(0o755)
    server = make(binary=ServerBinary(mute, "2.15.1"))
    start = asyncio.create_task(server.start())
    await said(server.log, "begun")
    pid = server.pid
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert gone(pid)
    async with make():
        pass


async def test_what_a_killed_server_left_is_no_obstacle(make: MakeServer, store: Path) -> None:
    store.mkdir()
    (store / "server.lock").write_text(json.dumps({"pid": os.getpid(), "url": "nats://127.0.0.1:1"}))
    (store / "nats-server_1.ports").write_text('{"nats":["nats://127.0.0.1:1"]}')
    (store / "nats-server_2.ports").write_text("half a f")
    assert running_server(store) is None
    async with make() as server:
        assert server.url != "nats://127.0.0.1:1"


async def test_a_server_that_ignores_sigterm_is_killed(make: MakeServer) -> None:
    server = await make().start()
    os.kill(server.pid, signal.SIGSTOP)
    pid = server.pid
    await server.stop(grace_seconds=0.05)
    assert gone(pid)


def test_asking_about_a_store_makes_nothing(tmp_path: Path) -> None:
    assert running_server(tmp_path / "missing") is None
    assert not (tmp_path / "missing").exists()


# --- who ends with whom --------------------------------------------------------------------------------------------

KEEPER = """
    import asyncio, sys
    from pathlib import Path
    from kokuban.blackboard.wire.embedded import EmbeddedServer
    async def main():
        async with EmbeddedServer(Path(sys.argv[1])) as server:
            print(server.pid, server.url, flush=True)
            await asyncio.Event().wait()
    asyncio.run(main())
"""


@linux_only
async def test_a_killed_keeper_takes_its_server_along(make: MakeServer, store: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KEEPER), str(store)]
    keeper = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert keeper.stdout
        pid, url = (await keeper.stdout.readline()).decode().split()
        assert running_server(store) == RunningServer(int(pid), url)
    finally:
        await end(keeper)
    async with make():
        assert gone(int(pid))


@linux_only
async def test_a_server_without_its_keeper_still_holds_the_store(make: MakeServer, store: Path) -> None:
    """As on a system where a server outlives its keeper: the lock is the server's as well."""
    server = await make().start()
    assert server._lock is not None
    os.close(server._lock)
    server._lock = None
    try:
        assert running_server(store) == RunningServer(server.pid, server.url)
        with pytest.raises(EmbeddedServerError, match=str(server.pid)):
            await make().start()
    finally:
        await server.stop()


def test_a_server_of_the_fixture_can_be_killed_and_restarted(nats_server: NatsServer) -> None:
    url, pid = nats_server.url, nats_server.pid
    nats_server.kill()
    assert gone(pid)
    nats_server.restart()
    assert nats_server.url == url
    assert nats_server.pid != pid
