"""The launcher in a test's own event loop: restarts, backoff, drain, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kokuban.blackboard.wire.embedded import EmbeddedServer, ServerBinary
from kokuban.console.launcher import Backoff, Child, Launcher
from support.processes import DRAINS, IGNORES_SIGTERM, gone, linux_only, said

pytestmark = pytest.mark.anyio

PROMPT = Backoff(first_seconds=0.01, most_seconds=0.04)


class Events:
    """Everything the launcher tells, to look back on and to wait for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self._changed = asyncio.Event()

    def __call__(self, name: str, event: str, detail: str) -> None:
        self.seen.append((name, event, detail))
        self._changed.set()

    def of(self, name: str, event: str) -> list[str]:
        return [detail for *key, detail in self.seen if key == [name, event]]

    async def until(self, name: str, event: str, times: int = 1) -> str:
        async with asyncio.timeout(20):
            while len(self.of(name, event)) < times:
                self._changed.clear()
                await self._changed.wait()
        return self.of(name, event)[times - 1]


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Child]:
    """Makes a child that runs a piece of Python; `said` waits for a line of its log."""

    def make(name: str, code: str, **env: str) -> Child:
        return Child(name, [sys.executable, "-S", "-c", textwrap.dedent(code)], env, tmp_path / "logs" / f"{name}.log")

    return make


class Running:
    """A launcher that runs in the background of a test, and is over at its end."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    async def __aenter__(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.launcher.run())
        return self.task

    async def __aexit__(self, *exc: object) -> None:
        self.launcher.kill()
        if not self.task.cancelled():
            await self.task


async def test_a_child_gets_its_environment_only_no_input_and_a_log(child: Callable[..., Child]) -> None:
    shown = child(
        "one",
        """
        import os, sys
        for name in os.environ.keys() - {"KOKUBAN_PARENT_FD", "LC_CTYPE"}: print(name, os.environ[name])
        print("no input:", sys.stdin.read() == "")
        print("to err", file=sys.stderr)
        """,
        A="1",
    )
    events = Events()
    async with Running(Launcher([shown], on_event=events)):
        await events.until("one", "died")
    assert sorted(shown.log.read_text().splitlines()) == ["A 1", "no input: True", "to err"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_what_dies_is_restarted_and_the_others_are_left_alone(
    child: Callable[..., Child], signum: signal.Signals
) -> None:
    events = Events()
    children = [child("one", "import signal; signal.pause()"), child("two", "import signal; signal.pause()")]
    launcher = Launcher(children, on_event=events, backoff=PROMPT)
    async with Running(launcher):
        await events.until("one", "started")
        await events.until("two", "started")
        before = launcher.pids()
        os.kill(before["one"], signum)
        await events.until("one", "started", times=2)
        after = launcher.pids()
        assert after["one"] != before["one"]
        assert after["two"] == before["two"]
        assert signum.name in events.of("one", "died")[0]
        assert str(children[0].log) in events.of("one", "died")[0]


async def test_a_clean_exit_is_no_reason_to_stay_away(child: Callable[..., Child]) -> None:
    events = Events()
    async with Running(Launcher([child("one", "")], on_event=events, backoff=PROMPT)):
        await events.until("one", "started", times=3)
        assert "code 0" in events.of("one", "died")[0]


async def test_the_backoff_doubles_to_its_limit_and_is_shown(child: Callable[..., Child]) -> None:
    events = Events()
    async with Running(Launcher([child("one", "import sys; sys.exit(3)")], on_event=events, backoff=PROMPT)):
        await events.until("one", "waiting", times=4)
    assert [detail.split()[-2] for detail in events.of("one", "waiting")[:4]] == ["0.01", "0.02", "0.04", "0.04"]
    assert "code 3" in events.of("one", "died")[0]


def test_the_backoff_starts_again_for_what_stayed_up() -> None:
    backoff = Backoff(first_seconds=1, most_seconds=8, settled_seconds=60)
    assert backoff.after(0, 0) == 1
    assert backoff.after(4, 59.9) == 8
    assert backoff.after(8, 0) == 8
    assert backoff.after(8, 60) == 1


async def test_what_cannot_start_is_shown_and_tried_again(child: Callable[..., Child], tmp_path: Path) -> None:
    program = tmp_path / "program"
    events = Events()
    missing = Child("late", [str(program)], {}, tmp_path / "late.log")
    async with Running(
        Launcher([missing, child("one", "import signal; signal.pause()")], on_event=events, backoff=PROMPT)
    ):
        assert str(program) in await events.until("late", "failed", times=2)
        ready = tmp_path / "ready"
        ready.write_text("#!/bin/sh\nexec sleep 60\n")
        ready.chmod(0o755)
        ready.rename(program)
        await events.until("late", "started")
        assert not events.of("one", "died")


async def test_stop_drains_all_at_once(child: Callable[..., Child]) -> None:
    events = Events()
    children = [child(f"c{i}", DRAINS) for i in range(3)]
    launcher = Launcher(children, on_event=events, drain_seconds=60)
    async with Running(launcher) as run:
        for one in children:
            await said(one.log, "ready")
        await launcher.stop()
        assert run.done()
    for one in children:
        await said(one.log, "drained")
        assert events.of(one.name, "stopped") == ["ended with code 0"]
        assert not events.of(one.name, "killed")
    kinds = [event for _, event, _ in events.seen]
    assert max(i for i, kind in enumerate(kinds) if kind == "stopping") < kinds.index("stopped")
    assert launcher.pids() == {}


@linux_only
async def test_what_ignores_sigterm_is_killed_with_its_group_after_the_drain(child: Callable[..., Child]) -> None:
    events = Events()
    deaf = child("deaf", IGNORES_SIGTERM)
    launcher = Launcher([deaf], on_event=events, drain_seconds=0.05)
    async with Running(launcher):
        await said(deaf.log, "ready")
        grandchild = int((await said(deaf.log, "grandchild")).split()[1])
        pid = launcher.pids()["deaf"]
        await launcher.stop()
    assert events.of("deaf", "killed")
    assert gone(pid)
    assert gone(grandchild)


@linux_only
async def test_what_a_dead_child_left_in_its_group_is_killed(child: Callable[..., Child]) -> None:
    events = Events()
    parent = child("one", IGNORES_SIGTERM)
    launcher = Launcher([parent], on_event=events)
    async with Running(launcher):
        grandchild = int((await said(parent.log, "grandchild")).split()[1])
        os.kill(launcher.pids()["one"], signal.SIGKILL)
        await events.until("one", "died")
        assert gone(grandchild)


async def test_stop_while_waiting_to_restart_does_not_wait(child: Callable[..., Child]) -> None:
    events = Events()
    launcher = Launcher([child("one", "")], on_event=events, backoff=Backoff(first_seconds=3600))
    async with Running(launcher):
        await events.until("one", "waiting")
        await asyncio.wait_for(launcher.stop(), 10)
    assert len(events.of("one", "started")) == 1


@linux_only
async def test_cancelling_kills_at_once(child: Callable[..., Child]) -> None:
    deaf = child("deaf", IGNORES_SIGTERM)
    launcher = Launcher([deaf], drain_seconds=3600)
    async with Running(launcher) as run:
        await said(deaf.log, "ready")
        pid = launcher.pids()["deaf"]
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert gone(pid)


async def test_a_display_that_fails_ends_nothing(child: Callable[..., Child], caplog: pytest.LogCaptureFixture) -> None:
    events = Events()

    def broken(name: str, event: str, detail: str) -> None:
        events(name, event, detail)
        raise RuntimeError("no terminal")

    async with Running(Launcher([child("one", "")], on_event=broken, backoff=PROMPT)):
        await events.until("one", "started", times=2)
    assert "no terminal" in caplog.text


def test_two_children_of_one_name_are_refused(child: Callable[..., Child]) -> None:
    with pytest.raises(ValueError, match="one"):
        Launcher([child("one", ""), child("one", "")])


async def test_a_killed_server_comes_back_at_its_url(
    tmp_path: Path, nats_binary: ServerBinary, child: Callable[..., Child]
) -> None:
    events = Events()
    async with EmbeddedServer(tmp_path / "store", sync="default", binary=nats_binary) as server:
        launcher = Launcher(
            [child("one", "import signal; signal.pause()")], server=server, on_event=events, backoff=PROMPT
        )
        url, pid = server.url, server.pid
        async with Running(launcher):
            await events.until("one", "started")
            assert launcher.pids()["nats"] == pid
            for times in (1, 2):
                os.kill(server.pid, signal.SIGKILL)
                await events.until("nats", "started", times=times)
            assert server.url == url
            assert launcher.pids()["nats"] == server.pid != pid
            assert "SIGKILL" in events.of("nats", "died")[0]
            await launcher.stop()
        assert server.running  # its owner stops it, after the children
        assert not events.of("one", "died")


async def test_a_server_that_cannot_come_back_is_tried_again(tmp_path: Path, nats_binary: ServerBinary) -> None:
    events = Events()
    async with EmbeddedServer(tmp_path / "store", sync="default", binary=nats_binary) as server:
        port = int(server.url.rpartition(":")[2])
        async with Running(Launcher([], server=server, on_event=events, backoff=PROMPT)):
            server.kill()
            await server.wait()
            with socket.create_server(("127.0.0.1", port)):
                assert str(port) in await events.until("nats", "failed")
            await events.until("nats", "started")


async def test_a_server_not_started_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="start"):
        Launcher([], server=EmbeddedServer(tmp_path))
