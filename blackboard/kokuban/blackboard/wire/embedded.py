"""The embedded NATS server: a real `nats-server` on loopback, its store in one folder, no older than its keeper.

POSIX only. It listens on 127.0.0.1. Unless it is `protected`, every user of this machine can do everything there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from kokuban.blackboard.wire._credentials import (
    ACCOUNTS,
    CREDENTIALS,
    DEFAULT_TENANT,
    SUFFIX,
    Credential,
    CredentialError,
)
from kokuban.blackboard.wire._protect import jetstream_answers, protect
from kokuban.blackboard.wire._server_binary import EmbeddedServerError, ServerBinary, find_server

if TYPE_CHECKING:
    from kokuban.schemas.contracts import Crew

__all__ = [
    "EmbeddedServer",
    "EmbeddedServerError",
    "RunningServer",
    "ServerBinary",
    "die_with_parent",
    "find_server",
    "running_server",
    "store_credential",
]

_HOST = "127.0.0.1"
_CONFIG = "server.conf"
_LOG = "server.log"
_LOCK = "server.lock"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Who holds a store. Both fields are None while that server is still starting."""

    pid: int | None
    url: str | None


class EmbeddedServer:
    """One `nats-server` with JetStream on one store folder.

    The folder gets `server.conf`, `server.log`, `server.lock` and JetStream's own `jetstream/`; it can be moved
    while no server runs. The lock is held as long as the server or its keeper lives, so a store never has two
    servers, and a kill -9 of either leaves nothing to clean up.

    On Linux the server is killed when the thread that called `start` ends, so also when its process is killed.
    Elsewhere that is up to `stop`: after a kill -9 of its keeper the server goes on, and the next `start` on the
    store says which process to end.
    """

    def __init__(
        self,
        store: Path,
        *,
        port: int | None = None,
        sync: Literal["always", "default"] = "always",
        max_store_bytes: int | None = None,
        binary: ServerBinary | None = None,
        ready_seconds: float = 30.0,
        protected: bool = False,
        crew: Crew | None = None,
    ) -> None:
        """Nothing is started or written yet.

        Args:
            store: the folder; made when missing.
            port: TCP port on 127.0.0.1. None: the first `start` takes a free one and later ones keep to it.
            sync: `always` writes each record to disk before it is acknowledged (safe through a power loss);
                `default` leaves that to the server, every two minutes (safe through kill -9 only, but much faster).
            max_store_bytes: limit of all streams together. None: the server's own, three quarters of the free disk.
            binary: the program to run. None: what `find_server` finds with this process's environment.
            ready_seconds: how long `start` waits for the server to answer; a large store takes a while to load.
            protected: only who holds a credential of this store may connect, and may do only what it is for. The
                secrets are made at the first start and kept in the store's `credentials/`; see `credential`.
            crew: the roles that get a credential (default: the built-in ones).
        """
        self._store = store
        self._port = port
        self._sync = sync
        self._max_store_bytes = max_store_bytes
        self._binary = binary
        self._ready_seconds = ready_seconds
        self._protected = protected
        self._crew = crew
        self._keeper: Credential | None = None
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def store(self) -> Path:
        """The store folder."""
        return self._store

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._store / _LOG

    @property
    def url(self) -> str:
        """Where clients connect, such as `nats://127.0.0.1:4222`. Raises EmbeddedServerError before the first start."""
        if self._port is None:
            raise EmbeddedServerError("the embedded server has no URL before it is started: call start() first")
        return f"nats://{_HOST}:{self._port}"

    @property
    def credentials(self) -> Path | None:
        """The folder of this store's credentials; None unless it is protected."""
        return self._store / CREDENTIALS / DEFAULT_TENANT if self._protected else None

    def credential(self, user: str) -> Path | None:
        """The credential's file of `client`, `supervisor`, `role-coder` …; None unless it is protected."""
        return self.credentials / f"{user}{SUFFIX}" if self.credentials else None

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The server's process id. Raises EmbeddedServerError when it does not run."""
        if self._process is None or self._process.returncode is not None:
            raise EmbeddedServerError("the embedded server has no process id while it is not running")
        return self._process.pid

    async def start(self) -> Self:
        """Start the server, also again after it died or was stopped; returns when JetStream answers.

        Raises:
            EmbeddedServerError: no program, folder unusable or in use, port taken, no answer in time. None runs then.
        """
        if os.name != "posix":
            raise EmbeddedServerError(
                "the embedded server needs Linux or macOS; run a nats-server, name it with --nats"
            )
        if self.running:
            raise EmbeddedServerError(f"this embedded server already runs, with process id {self.pid}")
        if self._binary is None:
            self._binary = await asyncio.to_thread(find_server, os.environ)
        try:
            self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = await _take_lock(self._store)
            if self._protected:
                self._keeper = await asyncio.to_thread(protect, self._store, self._crew)
            await self._launch(self._binary, self._lock)
        except CredentialError as error:
            await self.stop(grace_seconds=0)
            raise EmbeddedServerError(f"the store folder {self._store}: {error}") from error
        except OSError as error:
            await self.stop(grace_seconds=0)
            raise EmbeddedServerError(
                f"the store folder {self._store} cannot be used: {error.strerror or error}; choose another folder"
            ) from error
        except BaseException:
            await self.stop(grace_seconds=0)
            raise
        return self

    async def wait(self) -> int:
        """Wait until the server's process ends, for whatever reason; its exit code, or minus the signal's number."""
        if self._process is None:
            raise EmbeddedServerError("the embedded server was never started: there is nothing to wait for")
        return await self._process.wait()

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """End the server and free the store: asks first, kills after `grace_seconds` (0: at once). Safe to repeat."""
        process = self._process
        if process is not None and process.returncode is None:
            try:
                if grace_seconds > 0:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), grace_seconds)
            finally:
                self.kill()
            await process.wait()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def kill(self) -> None:
        """Kill the server at once, without waiting for its end. No record it acknowledged is lost."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _launch(self, binary: ServerBinary, lock: int) -> None:
        os.ftruncate(lock, 0)
        for stale in self._store.glob("*.ports"):
            stale.unlink()
        (self._store / _CONFIG).write_text(self._config(), encoding="utf-8")
        with self.log.open("ab") as log:
            log_start = log.tell()
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    binary.path,
                    "-c",
                    _CONFIG,
                    cwd=self._store,
                    # Model keys are none of the server's business; Go's own settings (GOMAXPROCS, GOMEMLIMIT) are.
                    env={name: value for name, value in os.environ.items() if name.startswith("GO")},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    process_group=0,  # a terminal's Ctrl-C is for the keeper, who stops the server last
                    preexec_fn=die_with_parent(signal.SIGKILL),
                )
            except OSError as error:
                raise EmbeddedServerError(f"{binary.path} cannot be run: {error.strerror or error}") from error
        try:
            async with asyncio.timeout(self._ready_seconds):
                self._port = await self._ready_port(process)
        except TimeoutError as error:
            raise EmbeddedServerError(
                f"nats-server did not answer within {self._ready_seconds:g} s; see {self.log}, and allow it more time"
            ) from error
        except ConnectionResetError as error:
            raise self._start_failure(log_start) from error
        os.pwrite(lock, json.dumps({"pid": process.pid, "url": self.url}).encode(), 0)

    def _config(self) -> str:
        # Paths are relative to the store, the server's working directory: nothing to quote, and the store can be moved.
        jetstream = ['store_dir: "."']
        if self._sync == "always":
            jetstream.append("sync_interval: always")
        if self._max_store_bytes is not None:
            jetstream.append(f"max_file_store: {self._max_store_bytes}")
        return (
            "# Written by Kokuban at every start: changes made here are lost.\n"
            f'listen: "{_HOST}:{-1 if self._port is None else self._port}"\n'
            "server_name: kokuban\n"
            f"jetstream {{ {', '.join(jetstream)} }}\n"
            'ports_file_dir: "."\n'
            f'log_file: "{_LOG}"\n'
            "logtime_utc: true\n"
            "logfile_size_limit: 10MB\n" + (f"include ./{CREDENTIALS}/{ACCOUNTS}\n" if self._protected else "")
        )

    async def _ready_port(self, process: asyncio.subprocess.Process) -> int:
        """The port, once JetStream answers there. Raises ConnectionResetError when the process ends before."""
        ended = asyncio.create_task(process.wait())
        try:
            while not ended.done():
                # The server itself takes a free port and tells it in a file: one chosen by us could be lost to another.
                for ports_file in self._store.glob("*.ports"):
                    with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                        port = int(json.loads(ports_file.read_bytes())["nats"][0].rpartition(":")[2])
                        if await jetstream_answers(_HOST, port, self._keeper):
                            return port
                await asyncio.wait({ended}, timeout=0.005)
            raise ConnectionResetError(f"nats-server ended with code {ended.result()}")
        finally:
            ended.cancel()

    def _start_failure(self, log_start: int) -> EmbeddedServerError:
        said = self.log.read_bytes()[log_start:].decode(errors="replace")
        if self._port is not None and "address already in use" in said:
            return EmbeddedServerError(
                f"port {self._port} on {_HOST} is taken by another program; choose another port, or none for a free one"
            )
        reasons = re.findall(r"(?:\[FTL\]|nats-server:) (.*)", said)
        reason = " / ".join(reasons) or "no reason given"
        return EmbeddedServerError(f"nats-server did not start: {reason}; see {self.log}")


def running_server(store: Path) -> RunningServer | None:
    """The embedded server that holds the store folder now, of whatever process; None when there is none."""
    import fcntl

    try:
        fd = os.open(store / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_lock(fd)
    finally:
        os.close(fd)
    return None


def store_credential(url: str, user: str, store: Path = Path(".kokuban")) -> Path | None:
    """The file of `user`'s credential in `store`, if it is the server of that store, on this machine, that is asked at
    `url`; else None. So what runs in the folder of a store needs no name for it."""
    own = store / CREDENTIALS / DEFAULT_TENANT / f"{user}{SUFFIX}"
    if not own.is_file():
        return None
    server = running_server(store)
    asked = url.replace("localhost", _HOST).rstrip("/")
    return own.absolute() if server is not None and server.url == asked else None


async def _take_lock(store: Path) -> int:
    import fcntl

    fd = os.open(store / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A second's patience: `running_server` holds the lock for an instant, and so does a killed, dying server.
        deadline = time.monotonic() + 1.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(_in_use(store, _read_lock(fd))) from error
                await asyncio.sleep(0.02)
            else:
                return fd
    except BaseException:
        os.close(fd)
        raise


def _read_lock(fd: int) -> RunningServer:
    try:
        content: dict[str, Any] = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return RunningServer(None, None)
    return RunningServer(content.get("pid"), content.get("url"))


def _in_use(store: Path, holder: RunningServer) -> str:
    if holder.pid is None:
        return f"the store folder {store} is in use: another server is starting on it; choose another folder, or wait"
    return (
        f"the store folder {store} is in use by the nats-server with process id {holder.pid} at {holder.url}; "
        f"use that one with --nats {holder.url}, stop it, or choose another folder"
    )


def die_with_parent(signum: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` that has Linux send `signum` to the child when the thread that started it ends; elsewhere None.

    The child's own children are not reached.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    # Everything is looked up before the fork: in the child only the two system calls remain.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    set_parent_death_signal, number, parent = 1, int(signum), os.getpid()

    def in_child() -> None:
        prctl(set_parent_death_signal, number, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return in_child
