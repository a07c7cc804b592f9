"""The launcher in a process of its own: signals, a second Ctrl-C, kill -9, and no child left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kokuban.console.launcher import exit_with_parent, stop_signals
from support.processes import DRAINS, IGNORES_SIGTERM, gone, linux_only, said

pytestmark = pytest.mark.anyio


async def test_the_first_signal_sets_an_event_and_only_the_second_forces() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    forced: list[str] = []
    stopped = asyncio.Event()
    with stop_signals(stopped.set, lambda: forced.append("forced")):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stopped.wait(), 10)
        signal.raise_signal(signal.SIGHUP)
        assert forced == []
        signal.raise_signal(signal.SIGINT)  # no await in between: it works while the loop is blocked
        assert forced == ["forced"]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


async def test_a_signal_raises_nothing_in_a_task() -> None:
    stopped = asyncio.Event()

    async def work() -> str:
        for _ in range(10_000):
            signal.raise_signal(signal.SIGINT) if not stopped.is_set() else None
            await asyncio.sleep(0)
            if stopped.is_set():
                return "whole"
        return "never asked"

    with stop_signals(stopped.set, lambda: None):
        assert await asyncio.create_task(work()) == "whole"


async def test_a_hangup_ignored_by_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(lambda: None, lambda: None):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


LAUNCHER = """
    import asyncio, sys
    from pathlib import Path
    from kokuban.console.launcher import Child, Launcher
    folder = Path(sys.argv[1])
    def child(name, code):
        return Child(name, [sys.executable, "-c", code], {}, folder / f"{name}.log")
    def show(name, event, detail):
        print(name, event, detail, flush=True)
    children = [child(path.stem, path.read_text()) for path in sorted(folder.glob("*.py"))]
    asyncio.run(Launcher(children, on_event=show, drain_seconds=3600).run())
"""
DRAINS_WITH_PARENT = """
    import asyncio, os
    from kokuban.console.launcher import exit_with_parent
    async def main():
        over = asyncio.Event()
        exit_with_parent(over.set, drain_seconds=3600)
        assert "KOKUBAN_PARENT_FD" not in os.environ
        print("ready", flush=True)
        await over.wait()
        print("drained", flush=True)
    asyncio.run(main())
"""
BLOCKED = """
    import asyncio, os, signal, time
    from kokuban.console.launcher import exit_with_parent
    async def main():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        exit_with_parent(lambda: None, drain_seconds=0.05)
        child = os.fork()
        signal.alarm(60)  # nobody else ends the two when a test fails
        if child == 0: signal.pause()
        print("ready", "child", child, flush=True)
        time.sleep(3600)
    asyncio.run(main())
"""


class LauncherProcess:
    """A launcher in a process of its own; its events are lines on its standard output."""

    def __init__(self, folder: Path, **children: str) -> None:
        for name, code in children.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(code))
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # else under nohup it is ignored here, too
        )
        self.pids: list[int] = []
        while len(self.pids) < len(children):
            self.pids.append(int(self.until("started").split()[-1]))

    def until(self, event: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.split()[1] == event:
                return line
        raise AssertionError(f"the launcher ended before it told {event!r}")


@pytest.fixture
def launcher_process(tmp_path: Path) -> Iterator[Callable[..., LauncherProcess]]:
    """Starts launchers in processes of their own."""
    started: list[LauncherProcess] = []

    def start(**children: str) -> LauncherProcess:
        started.append(LauncherProcess(tmp_path, **children))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        launcher.process.communicate()


def log_of(tmp_path: Path, name: str) -> Path:
    return tmp_path / f"{name}.log"


@linux_only
async def test_children_die_with_a_killed_launcher(
    tmp_path: Path, launcher_process: Callable[..., LauncherProcess]
) -> None:
    launcher = launcher_process(
        aware=DRAINS_WITH_PARENT, deaf=IGNORES_SIGTERM, blocked=BLOCKED, plain="import time; time.sleep(3600)"
    )
    for name in ("aware", "deaf", "blocked"):
        ready = await said(log_of(tmp_path, name), "ready")
    launcher.process.kill()
    for pid in launcher.pids:
        assert gone(pid)
    await said(log_of(tmp_path, "aware"), "drained")
    assert gone(int(ready.split()[-1]))  # the blocked one took its group along
    grandchild = int((await said(log_of(tmp_path, "deaf"), "grandchild")).split()[1])
    os.kill(grandchild, signal.SIGKILL)  # a grandchild is its own parent's to end; this one's parent did not


@linux_only
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_drains_the_children_and_ends_the_launcher(
    tmp_path: Path, launcher_process: Callable[..., LauncherProcess], signum: signal.Signals
) -> None:
    launcher = launcher_process(polite=DRAINS)
    await said(log_of(tmp_path, "polite"), "ready")
    launcher.process.send_signal(signum)
    assert "code 0" in launcher.until("stopped")
    assert launcher.process.wait(10) == 0
    await said(log_of(tmp_path, "polite"), "drained")


@linux_only
async def test_a_second_signal_kills_what_drains_for_too_long(
    tmp_path: Path, launcher_process: Callable[..., LauncherProcess]
) -> None:
    launcher = launcher_process(deaf=IGNORES_SIGTERM)
    await said(log_of(tmp_path, "deaf"), "ready")
    grandchild = int((await said(log_of(tmp_path, "deaf"), "grandchild")).split()[1])
    launcher.process.send_signal(signal.SIGINT)
    launcher.until("stopping")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(10) == 0
    assert gone(launcher.pids[0])
    assert gone(grandchild)


async def test_without_a_launcher_there_is_no_parent_to_exit_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("drained without a launcher")

    monkeypatch.delenv("KOKUBAN_PARENT_FD", raising=False)
    exit_with_parent(never)
    not_a_pipe = os.open(os.devnull, os.O_RDONLY)
    try:
        for leaked in ("", "x", "-1", "99999", str(not_a_pipe)):
            monkeypatch.setenv("KOKUBAN_PARENT_FD", leaked)
            exit_with_parent(never)
            assert "KOKUBAN_PARENT_FD" not in os.environ
    finally:
        os.close(not_a_pipe)
