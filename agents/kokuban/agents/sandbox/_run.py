"""Run one command in a group of its own, bounded in time and output."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kokuban.agents.sandbox import _processes
from kokuban.agents.sandbox._environment import scrubbed
from kokuban.agents.sandbox._isolation import LEFT, Kind, Wish, isolation, limiter, wrapped
from kokuban.agents.sandbox._output import HeadTail
from kokuban.agents.sandbox._processes import SandboxError

DEFAULT_OUTPUT_CAP_BYTES = 64 * 2**10
"""Bytes of a command's output that are kept by default (64 KiB)."""

_GRACE_SECONDS = 0.5  # what children have to end and the pipe to close after the command itself ended
_POLL_SECONDS = 0.01
_READ_BYTES = 256 * 2**10
_SHELL_SIGNAL = 128
_SIGNALS = {int(number) for number in signal.Signals}


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a command.

    exit_code: its exit code; 127 when it does not exist, 126 when it cannot be executed; None when it was killed.
    signal: number of the signal that ended it, else None.
    timed_out: whether it was killed because its time was up.
    output: stdout and stderr as they came, decoded (U+FFFD for bad UTF-8); head and tail when there was too much.
    output_bytes_total: bytes it wrote, kept or not, until it was stopped.
    truncated: whether `output` leaves something out.
    left_running: whether it ended and left processes of its own behind; they have been killed.
    seconds: wall-clock time it took.
    isolation: what kept it apart: "bubblewrap", or "group" (see `Isolation`).
    """

    exit_code: int | None
    signal: int | None
    timed_out: bool
    output: str
    output_bytes_total: int
    truncated: bool
    left_running: bool
    seconds: float
    isolation: Kind = "group"

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


async def run(
    command: str | Sequence[str],
    *,
    cwd: Path,
    home: Path,
    timeout_seconds: float,
    output_cap_bytes: int = DEFAULT_OUTPUT_CAP_BYTES,
    env_extra: Mapping[str, str] | None = None,
    asked: Wish | None = None,
    network: bool = False,
    readable: Sequence[Path] = (),
) -> Finished:
    """Run a command (a string by `/bin/sh -c`, a sequence as it is) in `cwd` and wait for its end.

    It gets a scrubbed environment with `home` as its home (`env_extra` adds to it), an empty stdin, and a session of
    its own. On timeout, on cancellation and when it has ended, everything it started is killed; a child that keeps its
    output open after the end holds nothing up. What it can reach says `isolation(asked)`; `network` lets it reach what
    this machine does, `readable` are folders that it may read beside the system's. Raises `SandboxError` for misuse, or
    when no process can be started or isolation is required and not there.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not command or not argv[0] or any("\0" in word for word in argv):
        raise SandboxError("the command is empty or holds a NUL character; give a command line")
    if timeout_seconds <= 0:
        raise SandboxError("timeout_seconds must be above 0")
    if not cwd.is_dir():
        raise SandboxError(f"the working folder {cwd} of the command does not exist")
    mark = secrets.token_hex(8)
    environment = scrubbed(home, env_extra or {}, os.environ) | {_processes.MARK: mark, "PWD": str(cwd)}
    kept_apart = isolation(asked)
    boxed = kept_apart.kind == "bubblewrap"
    mark_of_others = Path(environment["TMPDIR"], LEFT)
    if boxed:
        _taken(mark_of_others)
        found = shutil.which(argv[0], path=environment["PATH"]) if "/" not in argv[0] else argv[0]
        if found is None or not os.path.exists(os.path.join(cwd, found)):
            return _not_started(127, f"{argv[0]}: not found; no such command", kept_apart.kind)
        if not os.access(os.path.join(cwd, found), os.X_OK):
            return _not_started(126, f"{argv[0]}: cannot be executed; permission denied", kept_apart.kind)
        argv = wrapped(argv, cwd=cwd, home=home, environment=environment, network=network, more=readable)
    limit = limiter(timeout_seconds)

    def in_child() -> None:
        limit()
        watcher.watch_me()

    loop = asyncio.get_running_loop()
    started = loop.time()
    async with _processes.Watcher() as watcher, _Output(output_cap_bytes) as output:
        try:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *argv,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output.write_end,
                    stderr=output.write_end,
                    start_new_session=True,
                    preexec_fn=in_child,
                )
            )
            process = await _started(starting, mark)
        except (FileNotFoundError, NotADirectoryError):
            return _not_started(127, f"{argv[0]}: not found; no such command", kept_apart.kind)
        except PermissionError:
            return _not_started(126, f"{argv[0]}: cannot be executed; permission denied", kept_apart.kind)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxError(f"the command could not be started: {type(error).__name__}") from error
        output.close_write_end()
        left_running = False
        try:
            timed_out = not await _ended(process, timeout_seconds)
            if not timed_out:
                left_running = not await _settled(process.pid, mark, output)
        finally:
            _processes.kill(process.pid, mark)
            await asyncio.shield(process.wait())
        output.drain()
        text, truncated = output.kept.text()
    code = process.returncode
    assert code is not None
    if boxed:
        left_running = (_taken(mark_of_others) and not timed_out) or left_running
        if code > _SHELL_SIGNAL and code - _SHELL_SIGNAL in _SIGNALS:  # as a shell says it
            code = _SHELL_SIGNAL - code
    return Finished(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        output=text,
        output_bytes_total=output.kept.total,
        truncated=truncated,
        left_running=left_running,
        seconds=loop.time() - started,
        isolation=kept_apart.kind,
    )


async def _started(starting: asyncio.Future[asyncio.subprocess.Process], mark: str) -> asyncio.subprocess.Process:
    """Wait for the process. Cancelled meanwhile, its start is awaited all the same, and what it started is killed."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(process, asyncio.subprocess.Process):
            _processes.kill(process.pid, mark)
            await process.wait()
        raise


def _taken(mark: Path) -> bool:
    """Remove a mark; whether it was there. The command may have put anything in its place, or in its folder's."""
    try:
        folder = os.open(mark.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.unlink(mark.name, dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _not_started(exit_code: int, text: str, kind: Kind) -> Finished:
    return Finished(exit_code, None, False, text + "\n", 0, False, False, 0.0, kind)


async def _ended(process: asyncio.subprocess.Process, timeout_seconds: float) -> bool:
    try:
        async with asyncio.timeout(timeout_seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


async def _settled(group: int, mark: str, output: _Output) -> bool:
    """Wait, but not long, until the ended command has no process left and its output is closed."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _GRACE_SECONDS
    while True:
        output.drain()
        if output.closed and not _processes.alive(group, mark):
            return True
        if loop.time() >= until:
            return False
        await asyncio.sleep(_POLL_SECONDS)


class _Output:
    """A pipe of our own for stdout and stderr. (asyncio's pipes would tie the end of the process to the end of the
    output, which a child left behind can hold open for ever.)"""

    def __init__(self, cap_bytes: int) -> None:
        self.kept = HeadTail(cap_bytes)
        self.closed = False

    async def __aenter__(self) -> _Output:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            try:  # a larger pipe means fewer turns of the event loop for a flood
                fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, 2**20)
            except OSError:
                pass  # the system's limit for pipes is reached; the small one serves as well
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        return self

    def close_write_end(self) -> None:
        """Close our copy, so that the pipe ends with the last process that writes to it."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def drain(self) -> None:
        """Take what is in the pipe now; not for ever, should somebody still be writing."""
        for _ in range(64):
            if self.closed or not self._read():
                return

    def _read(self) -> bool:
        try:
            chunk = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.closed = True
            asyncio.get_running_loop().remove_reader(self._read_end)
        self.kept.feed(chunk)
        return True

    async def __aexit__(self, *_: object) -> None:
        self.close_write_end()
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
