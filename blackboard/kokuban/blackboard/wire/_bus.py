"""The connection: version check, requests with an outcome, reads of the stream, and no silent death.

`Bus` is the one user of nats-py's client. A request has its own reply token, so that thousands can be in flight over
one subscription without a waiter each.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from kokuban.blackboard.core.fold import Stored
from kokuban.schemas import subjects

MIN_SERVER = "2.14"
MIN_API_LEVEL = 4
_SCHEMES = ("nats", "tls", "ws", "wss")
MARGIN_BYTES = 4_096
"""Room kept below the server's `max_payload` for headers that are added on the way (trace, reply)."""

T = TypeVar("T")
log = structlog.get_logger("kokuban.bus")


class BusError(Exception):
    """Base of what can go wrong on the wire. `landed`: False, it did not; None, unknown; never True."""

    landed: bool | None = False


class CannotConnect(BusError):
    """No usable server at that URL: unreachable, too old, without JetStream, or refusing us. Nothing was written."""


class TooLarge(BusError):
    """Body and headers are above what the server takes; sending them would end the connection. Nothing was written."""


class NoAnswer(BusError):
    """The server did not answer in time, or the connection went. Whether a write landed is unknown: read back."""

    landed = None


class Unavailable(BusError):
    """Nobody serves this request right now (503): a restarting server, a missing stream or consumer. Not landed."""


class Refused(BusError):
    """The server answered no. `code` is its JetStream error code. Nothing was written."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


class Ack(NamedTuple):
    """The server's answer to a publish: `code` 0 and the stored sequence, or its error code and description."""

    seq: int
    duplicate: bool = False
    code: int = 0
    description: str = ""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""
    code: int = 0


class _PubAck(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_ack_decoder = msgspec.json.Decoder(_PubAck)


class Bus:
    """A connection to one server or cluster. Use `await Bus.connect(url)`, or `async with`."""

    def __init__(self, connection: Nats, url: str) -> None:
        self.url = url
        self.closed = asyncio.Event()
        self._nats = connection
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._tokens = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self._nobody_there = asyncio.Event()

    @classmethod
    async def connect(cls, url: str, *, name: str = "kokuban", timeout: float = 5.0) -> Bus:
        """Connect within `timeout` seconds and check the server. Raises `CannotConnect` with the way out."""
        _check_url(url)
        connection = Nats()
        bus = cls(connection, url)
        connecting = asyncio.ensure_future(
            connection.connect(
                url, name=name, max_reconnect_attempts=-1, ping_interval=5,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_outstanding_pings=2, allow_reconnect=True, error_cb=bus._failed, closed_cb=bus._gone,
                disconnected_cb=bus._disconnected, reconnected_cb=bus._reconnected, connect_timeout=2,
                pending_size=16 * 1024 * 1024,
            )
        )  # fmt: skip
        refused = asyncio.ensure_future(bus._nobody_there.wait())
        try:
            await asyncio.wait({connecting, refused}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise bus._last_error or TimeoutError(f"no answer in {timeout:g} s")
            connecting.result()
        except (TimeoutError, OSError, nats.errors.Error, ValueError, ImportError) as error:
            await _abandon(connection)
            raise CannotConnect(
                f"NATS: no connection to {_without_password(url)}: {_reason(error, bus)}. "
                "Start a server there (`kokuban up` runs one), or name another with --nats / KOKUBAN_NATS_URL"
            ) from error
        finally:
            connecting.cancel()
            refused.cancel()
        try:
            bus._check_server()
            await connection.subscribe(f"{bus._inbox}.*", cb=bus._answered)
        except BaseException:
            await _abandon(connection)
            raise
        return bus

    def _check_server(self) -> None:
        info: dict[str, Any] = self._nats._server_info
        version = info.get("version", "?")
        if int(info.get("api_lvl", 0)) < MIN_API_LEVEL:
            raise CannotConnect(
                f"NATS: the server at {_without_password(self.url)} is version {version}"
                + ("" if info.get("jetstream") else " without JetStream")
                + f"; Kokuban needs {MIN_SERVER} or newer with JetStream. Upgrade it, or let `kokuban up` run its own"
            )

    async def close(self) -> None:
        """Send what is buffered and close. Safe to call twice."""
        if not self._nats.is_closed:
            try:
                await asyncio.wait_for(self._nats.flush(), 1)
            except (TimeoutError, nats.errors.Error):
                log.debug("closed with unsent data")
            await _abandon(self._nats)
        self.closed.set()

    async def __aenter__(self) -> Bus:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def max_bytes(self) -> int:
        """Largest body plus headers that may be sent, in bytes."""
        return int(self._nats.max_payload) - MARGIN_BYTES

    @property
    def connected(self) -> bool:
        return bool(self._nats.is_connected)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Call back after every reconnection: what was outstanding on the old connection is gone."""
        self._on_reconnect.append(callback)

    def forget(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Undo `on_reconnect`."""
        if callback in self._on_reconnect:
            self._on_reconnect.remove(callback)

    # ------------------------------------------------------------------ requests

    async def request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout: float = 5.0
    ) -> Msg:
        """Send and wait for the answer, at most `timeout` seconds. Raises `TooLarge`, `NoAnswer`, `Unavailable`."""
        self._guard(data, headers)
        self._tokens += 1
        token = str(self._tokens)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        self._waiting[token] = answer
        alarm = loop.call_later(timeout, _expire, answer, subject)
        try:
            await self._send(subject, data, f"{self._inbox}.{token}", headers)
            message = await answer
        finally:
            alarm.cancel()
            self._waiting.pop(token, None)
        if not message.data and message.headers and message.headers.get("Status") == "503":
            raise Unavailable(f"{subject}: nobody serves this right now")
        return message

    async def api(self, call: str, body: Mapping[str, Any] | None = None, *, timeout: float = 5.0) -> dict[str, Any]:
        """A JetStream API call (`STREAM.INFO.BOARD` …). Raises `Refused`, `NoAnswer`, `Unavailable`."""
        message = await self.request(f"$JS.API.{call}", msgspec.json.encode(body or {}), timeout=timeout)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if "error" in answer:
            error = answer["error"]
            raise Refused(error.get("err_code", error.get("code", 0)), error.get("description", "refused"))
        return answer

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, timeout: float = 5.0
    ) -> Ack:
        """Publish to the stream and wait for its answer. A refusal is in the `Ack`, not an exception.
        Raises `TooLarge` (not sent), `NoAnswer` (unknown), `Unavailable` (not landed)."""
        message = await self.request(subject, data, headers=headers, timeout=timeout)
        ack = _ack_decoder.decode(message.data)
        if ack.error is not None:
            return Ack(0, False, ack.error.err_code or ack.error.code, ack.error.description)
        return Ack(ack.seq, ack.duplicate)

    async def hint(self, subject: str, data: bytes) -> None:
        """Publish on core NATS without an answer. May be lost; dropped while disconnected."""
        if len(data) + MARGIN_BYTES < self._nats.max_payload:
            await self.send(subject, data)

    async def send(self, subject: str, data: bytes, reply: str = "") -> None:
        """Publish without waiting, with a reply subject. Dropped while disconnected."""
        if not self._nats.is_connected:
            return
        try:
            await self._nats.publish(subject, data, reply=reply)
        except (OSError, nats.errors.Error) as error:
            log.debug("not sent", subject=subject, error=repr(error)[:200])

    def new_inbox(self) -> str:
        return str(self._nats.new_inbox())

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Any:
        """A plain core subscription; call `.unsubscribe()` on what it returns."""
        return await self._nats.subscribe(subject, cb=callback, pending_bytes_limit=0, pending_msgs_limit=0)

    # ------------------------------------------------------------------ reads

    async def read(self, seq: int) -> Stored | None:
        """The stored message at `seq`, None when it is gone."""
        return await self._direct({"seq": seq}, subjects.BOARD)

    async def last(self, subject: str, *, stream: str = subjects.BOARD, timeout: float = 5.0) -> Stored | None:
        """The last stored message on `subject`, None when there is none. A replica may lag: believe presence only."""
        return await self._direct({"last_by_subj": subject}, stream, timeout)

    async def history(self, subject: str, *, after: int = 0, stream: str = subjects.BOARD) -> list[Stored]:
        """Every stored message on `subject` after sequence `after`, in order. For short chains: one read each."""
        found: list[Stored] = []
        while True:
            stored = await self._direct({"seq": after + 1, "next_by_subj": subject}, stream)
            if stored is None:
                return found
            found.append(stored)
            after = stored.seq

    async def last_seq(self) -> int:
        """The stream's last sequence."""
        info = await self.api(f"STREAM.INFO.{subjects.BOARD}")
        return int(info["state"]["last_seq"])

    async def patiently(self, ask: Callable[[], Awaitable[T]], *, seconds: float = 60.0) -> T:
        """Ask what may be asked twice (a read, a publish with a message id) until there is an answer, for at most
        `seconds`: an outage is ridden out. Raises what `ask` raised last."""
        loop = asyncio.get_running_loop()
        give_up, pause = loop.time() + seconds, 0.01
        while True:
            try:
                return await ask()
            except (NoAnswer, Unavailable):
                if self.closed.is_set() or loop.time() > give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 2)

    async def _direct(self, wanted: Mapping[str, Any], stream: str, timeout: float = 5.0) -> Stored | None:
        body = msgspec.json.encode(wanted)
        message = await self.request(f"$JS.API.DIRECT.GET.{stream}", body, timeout=timeout)
        headers = message.headers or {}
        if "Nats-Sequence" not in headers:
            status = headers.get("Status", "?")
            if status == "404":
                return None
            raise Refused(int(status) if status.isdigit() else 0, headers.get("Description", "read refused"))
        return Stored(
            int(headers["Nats-Sequence"]), headers["Nats-Subject"], _seconds(headers["Nats-Time-Stamp"]), message.data
        )

    # ------------------------------------------------------------------ inside

    def _guard(self, data: bytes, headers: Mapping[str, str] | None) -> None:
        size = len(data) + sum(len(k) + len(v) + 4 for k, v in (headers or {}).items())
        if size > self.max_bytes:
            raise TooLarge(f"{size} bytes with headers is above the {self.max_bytes} that this server takes")

    async def _send(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        try:
            await self._nats.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except (OSError, nats.errors.Error) as error:
            raise NoAnswer(f"{subject}: not sent: {error}") from error

    async def _answered(self, message: Msg) -> None:
        waiter = self._waiting.get(message.subject.rsplit(".", 1)[1])
        if waiter is not None and not waiter.done():
            waiter.set_result(message)

    async def _reconnected(self) -> None:
        log.info("reconnected", url=_without_password(self.url))
        for callback in list(self._on_reconnect):
            await callback()

    async def _failed(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            self._nobody_there.set()  # no use in trying again while the first connection is made
        log.debug("connection error", error=repr(error)[:200])

    _last_error: Exception | None = None

    async def _disconnected(self) -> None:
        # An answer to what was sent before can no longer come: whoever waits may read back as soon as we are back.
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(NoAnswer("the connection went before the answer came"))

    async def _gone(self) -> None:
        self.closed.set()
        await self._disconnected()


def _expire(answer: asyncio.Future[Msg], subject: str) -> None:
    if not answer.done():
        answer.set_exception(NoAnswer(f"{subject}: no answer in time"))


async def _abandon(connection: Nats) -> None:
    try:
        await asyncio.wait_for(connection.close(), 2)
    except (TimeoutError, OSError, nats.errors.Error):
        log.debug("close did not finish")


def _seconds(stamp: str) -> float:
    """RFC 3339 with up to nanoseconds to seconds since 1970 (microseconds kept)."""
    import datetime

    head, _, fraction = stamp.rstrip("Z").partition(".")
    whole = datetime.datetime.fromisoformat(head).replace(tzinfo=datetime.UTC).timestamp()
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        sound = parts.scheme in _SCHEMES and bool(parts.hostname) and " " not in url and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        sound = False
    if not sound:
        raise CannotConnect(
            f"NATS: {_without_password(url)!r} is no server's URL; it looks like nats://127.0.0.1:4222 "
            "(name one with --nats / KOKUBAN_NATS_URL)"
        )


def _without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _reason(error: BaseException, bus: Bus) -> str:
    cause = bus._last_error or error
    text = str(cause).strip()
    if "Connect call failed" in text or isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    return text or type(cause).__name__.replace("Error", " error").lower()
