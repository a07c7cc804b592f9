"""The launcher keeps processes alive: it restarts what dies and takes its children along when it dies itself.

It decides nothing about tasks; that is the supervisor's. POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from kokuban.blackboard.wire.embedded import EmbeddedServer, EmbeddedServerError, die_with_parent

__all__ = ["Backoff", "Child", "Launcher", "LauncherEvent", "OnEvent", "exit_with_parent", "stop_signals"]

PARENT_FD = "KOKUBAN_PARENT_FD"

LauncherEvent = Literal["started", "failed", "died", "waiting", "stopping", "killed", "stopped"]
"""What happened to a child. `failed`: it could not be started. `waiting`: the next try comes after the named delay.
`killed`: it did not end within the drain. `stopped`: it ended because it was asked to."""

OnEvent = Callable[[str, LauncherEvent, str], None]
"""Called with a child's name, the event and a detail for people, in the event loop: it must not block."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep alive."""

    name: str
    """Unique within a launcher; the embedded server is `nats`."""
    argv: Sequence[str]
    env: Mapping[str, str]
    """The whole environment: nothing is inherited. `KOKUBAN_PARENT_FD` is added."""
    log: Path
    """Takes its standard output and error, appended; its folder is made when missing."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays before restarts: `first_seconds`, doubled each time up to `most_seconds`; from the start again for what
    stayed up for `settled_seconds`."""

    first_seconds: float = 0.2
    most_seconds: float = 30.0
    settled_seconds: float = 10.0

    def after(self, delay_seconds: float, up_seconds: float) -> float:
        """The next delay: `delay_seconds` is the last one (0: there was none), `up_seconds` how long it stayed up."""
        if delay_seconds == 0 or up_seconds >= self.settled_seconds:
            return self.first_seconds
        return min(delay_seconds * 2, self.most_seconds)


class Launcher:
    """Keeps children running until it is stopped; gives up on none.

    Each child gets its own process group, no standard input, and a pipe (`KOKUBAN_PARENT_FD`) that closes when the
    launcher's process ends, even by kill -9: see `exit_with_parent`. On Linux a child that does not call that is then
    killed by the kernel, provided `run` was called in a thread that lives as long as the process.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        server: EmbeddedServer | None = None,
        on_event: OnEvent | None = None,
        drain_seconds: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            children: what to keep alive.
            server: an embedded server, started already, to be restarted like a child. Its owner stops it, after `run`.
            on_event: told what happens; what it raises is logged and changes nothing.
            drain_seconds: time from SIGTERM to SIGKILL when stopping.
            backoff: None is `Backoff()`.

        Raises:
            ValueError: two children of one name, or a server that was not started.
        """
        names = [child.name for child in children] + (["nats"] if server else [])
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"children need different names, but these come twice: {', '.join(sorted(twice))}")
        if server is not None and not server.running:
            raise ValueError("the embedded server is not running: start it first, its URL is what the children need")
        self._children = list(children)
        self._server = server
        self._on_event = on_event
        self._drain_seconds = drain_seconds
        self._backoff = backoff or Backoff()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def pids(self) -> dict[str, int]:
        """The process id of each child that runs now, by name; the server's as `nats`."""
        pids = {name: process.pid for name, process in self._running.items() if process.returncode is None}
        if self._server is not None and self._server.running:
            pids["nats"] = self._server.pid
        return pids

    async def run(self) -> None:
        """Start all and keep them alive; returns when all have ended after `stop` or a signal. Call it once.

        Takes over SIGINT, SIGTERM and SIGHUP when it runs in the main thread: the first drains, the next SIGINT or
        SIGTERM kills every child's group. Cancelling kills at once too.
        """
        parent_read, parent_write = os.pipe()  # the write end stays here alone: it closes when this process ends
        try:
            with stop_signals(self._stopping.set, self.kill):
                async with asyncio.TaskGroup() as outer:
                    # Kept through the drain: children hand their work back by way of the server.
                    keeper = outer.create_task(self._keep_server(self._server)) if self._server else None
                    async with asyncio.TaskGroup() as inner:
                        inner.create_task(self._stopping.wait())
                        for child in self._children:
                            inner.create_task(self._keep_child(child, parent_read))
                    if keeper is not None:
                        keeper.cancel()
        finally:
            os.close(parent_read)
            os.close(parent_write)
            self._ended.set()

    async def stop(self) -> None:
        """Have `run` drain its children (SIGTERM, then SIGKILL after `drain_seconds`); returns when `run` is over.

        Before `run` it waits for that, which then starts nothing.
        """
        self._stopping.set()
        await self._ended.wait()

    def kill(self) -> None:
        """Stop without a drain: SIGKILL to every child's group, now."""
        self._stopping.set()
        for process in self._running.values():
            _kill_group(process)

    async def _keep_child(self, child: Child, parent_fd: int) -> None:
        delay = 0.0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                process = await self._spawn(child, parent_fd)
            except OSError as error:
                self._tell(child.name, "failed", f"cannot start {child.argv[0]}: {error.strerror or error}")
            else:
                self._running[child.name] = process
                self._tell(child.name, "started", f"process {process.pid}")
                await self._until_end(child, process)
            if not self._stopping.is_set():
                delay = self._backoff.after(delay, time.monotonic() - started)
                self._tell(child.name, "waiting", f"next start in {delay:g} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)

    async def _spawn(self, child: Child, parent_fd: int) -> asyncio.subprocess.Process:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *child.argv,
                env={**child.env, PARENT_FD: str(parent_fd)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(parent_fd,),
                process_group=0,  # a terminal's Ctrl-C is for the launcher, who drains the children in its own way
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    async def _until_end(self, child: Child, process: asyncio.subprocess.Process) -> None:
        """Returns when the process has ended: by itself, or drained or killed because the launcher stops."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._tell(child.name, "stopping", f"has {self._drain_seconds:g} s to end")
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await asyncio.wait({ended}, timeout=self._drain_seconds)
                if not ended.done():
                    self._tell(child.name, "killed", f"did not end within {self._drain_seconds:g} s")
        finally:
            stopping.cancel()
            _kill_group(process)  # what is left of it: all of it when cancelled or late, else what it left behind
            code = await ended
            del self._running[child.name]
        if self._stopping.is_set():
            self._tell(child.name, "stopped", _how(code))
        else:
            self._tell(child.name, "died", f"{_how(code)}; see {child.log}")

    async def _keep_server(self, server: EmbeddedServer) -> None:
        """Runs until it is cancelled."""
        delay, started = 0.0, time.monotonic()
        while True:
            self._tell("nats", "died", f"{_how(await server.wait())}; see {server.log}")
            while not server.running:
                delay = self._backoff.after(delay, time.monotonic() - started)
                self._tell("nats", "waiting", f"next start in {delay:g} s")
                await asyncio.sleep(delay)
                started = time.monotonic()
                try:
                    await server.start()
                except EmbeddedServerError as error:
                    self._tell("nats", "failed", str(error))
                else:
                    self._tell("nats", "started", f"process {server.pid} at {server.url}")

    def _tell(self, name: str, event: LauncherEvent, detail: str) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(name, event, detail)
        except Exception:  # a display that fails must not end the processes
            _log.exception("the launcher's on_event failed on %s of %s", event, name)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    # Its number is not a stranger's yet: it stays taken while a member of the group lives, and when none does this is
    # called so soon after the end that process ids have not come round.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None], force: Callable[[], None]) -> Iterator[None]:
    """Within it SIGINT, SIGTERM and SIGHUP call `stop` in the running event loop, and raise nothing in any task.

    A further SIGINT or SIGTERM calls `force`, in the signal handler itself: so it comes through even while the loop is
    blocked by a synchronous call. `force` should only kill processes, or end its own with `os._exit`.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    asked = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            loop.call_soon_threadsafe(stop)
        elif signum != signal.SIGHUP:  # a closing terminal sends it more than once
            force()

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup: then it is to be outlived
        signals.append(signal.SIGHUP)
    before = {signum: signal.signal(signum, handle) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def exit_with_parent(drain: Callable[[], None], *, drain_seconds: float = 10.0) -> None:
    """For the main of a launcher's child: when the launcher's process ends, call `drain` in the running event loop,
    and `drain_seconds` later kill this process's own group if it still runs. Without a launcher it does nothing.

    Call it once, early, in the event loop, in the main thread: until then the kernel kills the child with its launcher
    (on Linux), from then on this does, after the drain.
    """
    number = os.environ.pop(PARENT_FD, "")  # not for this process's own children: the number means nothing there
    if not number.isdecimal():
        return
    parent_fd = int(number)
    try:
        if not stat.S_ISFIFO(os.fstat(parent_fd).st_mode):
            return
    except OSError:
        return
    os.set_inheritable(parent_fd, False)
    loop = asyncio.get_running_loop()

    def watch() -> None:
        os.read(parent_fd, 1)  # nobody writes: it returns at the end of the launcher's process
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending already
            loop.call_soon_threadsafe(drain)
        time.sleep(drain_seconds)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)  # started by hand within somebody else's group

    # A thread, so that the end is certain even while the event loop is blocked; a daemon, so that it never delays it.
    threading.Thread(target=watch, name="exit with parent", daemon=True).start()
    _outlive_parent()


def _outlive_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, 0, 0, 0, 0)
