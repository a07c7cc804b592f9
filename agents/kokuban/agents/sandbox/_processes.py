"""Finding and killing everything that a command started, and making it die with the worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Self

MARK = "SANDBOX_ID"
"""Environment variable that marks a command's processes, whatever session they move to."""

_WATCH = 'read -r group && read -r _; kill -9 "-$group"'


class SandboxError(Exception):
    """The command could not be run as asked, through no fault of its own: bad arguments, or the system refused to start
    a process. Nothing of it is running."""


class Watcher:
    """A tiny process beside a command that kills the command's group when this process ends in any way, even by
    SIGKILL: it waits on a pipe that nobody else holds open."""

    async def __aenter__(self) -> Self:
        read_end, self._write_end = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                _WATCH,
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal must not end it before its work is done
                env={},
            )
        except BaseException as error:
            os.close(self._write_end)
            if isinstance(error, OSError):
                raise SandboxError(f"no process can be started ({error.strerror})") from error
            raise
        finally:
            os.close(read_end)
        return self

    def watch_me(self) -> None:
        """To be called in the child, between fork and exec: have its group killed when the worker ends. From here on
        there is no moment at which the worker can die and leave the command behind."""
        os.write(self._write_end, b"%d\n" % os.getpid())

    async def __aexit__(self, *_: object) -> None:
        # Killed before its pipe closes: by then the number of the group may be another's.
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        try:
            await self._process.wait()
        finally:
            os.close(self._write_end)


def alive(group: int, mark: str) -> bool:
    """Whether a process of the group, or one that carries the mark, is running."""
    return any(True for _ in _members(group, mark))


def kill(group: int, mark: str) -> None:
    """Kill the group and every process that carries the mark, also those that fork while this looks."""
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        rest = list(_members(group, mark))
        if not rest:
            return
        for process in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def _members(group: int, mark: str) -> Iterator[int]:
    try:
        entries = os.listdir("/proc") if sys.platform == "linux" else None
    except OSError:
        entries = None
    if entries is None:  # no /proc: the group is all that can be asked about
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            yield group
        return
    wanted = f"{MARK}={mark}".encode()
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # The command's name, in brackets, may hold anything; the fields follow its last bracket.
                state, _, process_group = stat.read().rpartition(b")")[2].split()[:3]
            if state in b"ZX":
                continue  # dead, only waiting to be collected
            if int(process_group) != group:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if wanted not in environ.read().split(b"\0"):
                        continue
        except OSError:
            continue  # gone meanwhile, or somebody else's
        yield int(entry)
