"""The connection: version check, requests with an outcome, reads of the stream, and no silent death.

`Bus` is the one user of nats-py's client. A request has its own reply token, so that thousands can be in flight over
one subscription without a waiter each.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from kokuban.blackboard.core.fold import Stored
from kokuban.blackboard.wire._acks import NOT_NOW, SAME_IN_PROCESS, read_ack
from kokuban.blackboard.wire._acks import Ack as Ack
from kokuban.blackboard.wire._address import is_address, is_unwelcome, reason, without_password
from kokuban.blackboard.wire._credentials import Credential, CredentialError, load_credential
from kokuban.blackboard.wire._errors import BusError as BusError
from kokuban.blackboard.wire._errors import CannotConnect as CannotConnect
from kokuban.blackboard.wire._errors import Forbidden as Forbidden
from kokuban.blackboard.wire._errors import NoAnswer as NoAnswer
from kokuban.blackboard.wire._errors import Refused as Refused
from kokuban.blackboard.wire._errors import TooLarge as TooLarge
from kokuban.blackboard.wire._errors import Unavailable as Unavailable
from kokuban.blackboard.wire._find import of_leader, seconds_of
from kokuban.blackboard.wire._refusals import refusal_in
from kokuban.schemas import subjects

MIN_SERVER = "2.14"
MIN_API_LEVEL = 4
MARGIN_BYTES = 4_096
"""Room kept below the server's `max_payload` for headers that are added on the way (trace, reply)."""

T = TypeVar("T")
log = structlog.get_logger("kokuban.bus")


class Bus:
    """A connection to one server or cluster. Use `await Bus.connect(url)`, or `async with`."""

    def __init__(self, connection: Nats, url: str, credential: Credential | None = None) -> None:
        self.url = url
        self.user = credential.user if credential else ""
        self.person = credential.person if credential else None
        self.closed = asyncio.Event()
        self._nats = connection
        self._credential = credential
        self._inbox = f"{credential.inbox if credential else '_INBOX'}.{secrets.token_hex(11)}"
        self._tokens = 0
        self._waiting: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._refused: set[str] = set()
        self._on_refusal: dict[str, list[tuple[str, Callable[[Forbidden], None]]]] = {}
        self._on_reconnect: list[Callable[[], Awaitable[None]]] = []
        self._nobody_there = asyncio.Event()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The server that was named, and those of its cluster that it has told of by now."""
        return tuple(dict.fromkeys((self.url, *(server.geturl() for server in self._nats.servers))))

    @classmethod
    async def connect(
        cls, url: str, *, name: str = "kokuban", timeout: float = 5.0, credentials: Path | None = None
    ) -> Bus:
        """Connect within `timeout` seconds and check the server. `credentials` is a file that `kokuban auth` wrote; a
        server without accounts needs none. Raises `CannotConnect` with the way out."""
        _check_url(url)
        try:
            credential = load_credential(credentials) if credentials is not None else None
        except CredentialError as error:
            raise CannotConnect(f"NATS: {error}") from error
        connection = Nats()
        bus = cls(connection, url, credential)
        connecting = asyncio.ensure_future(
            connection.connect(
                url, name=name, max_reconnect_attempts=-1, ping_interval=5,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_outstanding_pings=2, allow_reconnect=True, error_cb=bus._failed, closed_cb=bus._gone,
                disconnected_cb=bus._disconnected, reconnected_cb=bus._reconnected, connect_timeout=2,
                pending_size=16 * 1024 * 1024, nkeys_seed_str=credential.seed if credential else None,
                inbox_prefix=credential.inbox if credential else "_INBOX",
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
            raise bus._cannot_connect(error) from error
        finally:
            connecting.cancel()
            refused.cancel()
        try:
            bus._check_server()
            await bus._subscribe(f"{bus._inbox}.*", bus._answered)
        except BaseException:
            await _abandon(connection)
            raise
        return bus

    def _cannot_connect(self, error: BaseException) -> CannotConnect:
        where = without_password(self.url)
        if is_unwelcome(self._last_error) or is_unwelcome(error):
            who = f"does not know the user of {self._credential.path}" if self._credential else "asks for a credential"
            return CannotConnect(
                f"NATS: the server at {where} {who}; name a file that it knows with --credentials / "
                "KOKUBAN_CREDENTIALS (`kokuban up` says where its own are; `kokuban auth init` writes others)"
            )
        return CannotConnect(
            f"NATS: no connection to {where}: {reason(error, self._last_error)}. "
            "Start a server there (`kokuban up` runs one), or name another with --nats / KOKUBAN_NATS_URL"
        )

    def _check_server(self) -> None:
        info: dict[str, Any] = self._nats._server_info
        version = info.get("version", "?")
        if int(info.get("api_lvl", 0)) < MIN_API_LEVEL:
            raise CannotConnect(
                f"NATS: the server at {without_password(self.url)} is version {version}"
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
    def may_set_up(self) -> bool:
        """Whether streams and durable consumers are this user's to make: not a team member's, where there are teams."""
        return self._credential is None or not self._credential.is_member

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

    def on_refusal(self, subject: str, callback: Callable[[Forbidden], None]) -> None:
        """Call back when the server refuses what `send` published on `subject`: nobody else would hear of it."""
        self._on_refusal.setdefault(subject.lower(), []).append((subject, callback))

    def forget_refusal(self, subject: str, callback: Callable[[Forbidden], None]) -> None:
        """Undo `on_refusal`."""
        left = [one for one in self._on_refusal.pop(subject.lower(), []) if one[1] != callback]
        if left:
            self._on_refusal[subject.lower()] = left

    # ------------------------------------------------------------------ requests

    async def request(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout: float = 5.0
    ) -> Msg:
        """Send and wait for the answer, at most `timeout` seconds. Raises `TooLarge`, `NoAnswer`, `Unavailable`,
        `Forbidden`."""
        self._guard(data, headers)
        self._tokens += 1
        token = str(self._tokens)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        self._waiting[token] = (subject, answer)
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
        """A JetStream API call (`STREAM.INFO.BOARD` …). Raises `Refused`, `Forbidden`, `NoAnswer`, `Unavailable`."""
        message = await self.request(self.api_subject(call), msgspec.json.encode(body or {}), timeout=timeout)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if "error" in answer:
            error = answer["error"]
            code = error.get("err_code", error.get("code", 0))
            if code in NOT_NOW:
                raise Unavailable(f"{call}: {error.get('description')}")
            raise Refused(code, error.get("description", "refused"))
        return answer

    def api_subject(self, call: str) -> str:
        """Where this user makes a JetStream API call."""
        if self.user and subjects.CONTROL in call.split("."):
            return f"{subjects.CONTROL_API}.{call}"
        return f"{subjects.SERVER_API if self.may_set_up else subjects.MEMBERS_API}.{call}"

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, timeout: float = 5.0
    ) -> Ack:
        """Publish to the stream and wait for its answer. A refusal is in the `Ack`, not an exception.
        Raises `TooLarge` (not sent), `NoAnswer` (unknown), `Unavailable` and `Forbidden` (not landed)."""
        message = await self.request(subject, data, headers=headers, timeout=timeout)
        ack = read_ack(message.data)
        if ack.code in NOT_NOW:
            raise Unavailable(f"{subject}: {ack.description}")
        if ack.code == SAME_IN_PROCESS:
            raise NoAnswer(f"{subject}: {ack.description}")
        return ack

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
        """A plain core subscription; call `.unsubscribe()` on what it returns. Raises `Forbidden`."""
        return await self._subscribe(subject, callback, pending_bytes_limit=0, pending_msgs_limit=0)

    async def _subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]], **limits: Any) -> Any:
        if self._credential is None:
            return await self._nats.subscribe(subject, cb=callback, **limits)
        self._refused.discard(subject.lower())
        subscription = await self._nats.subscribe(subject, cb=callback, **limits)
        await self._round_trip(subject)  # a refusal comes before its end
        if subject.lower() in self._refused:
            raise Forbidden(subject, self.user, publish=False)
        return subscription

    async def _round_trip(self, subject: str) -> None:
        """Until the server has handled what was sent. Raises `NoAnswer`."""
        # In a task of its own, which is never cancelled: nats-py swallows a cancellation while it flushes, and a ping
        # that was given up ends its reading for good when the answer comes.
        asking = asyncio.create_task(self._ping())
        await asyncio.wait({asking})
        if not asking.result():
            raise NoAnswer(f"{subject}: subscribed, but the server does not answer")

    async def _ping(self) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            await self._nats._flush_pending(force_flush=True)  # else the ping overtakes what is pending
            await self._nats._send_ping(answer)
        except (OSError, nats.errors.Error) as error:
            log.debug("no ping", error=repr(error)[:200])
            return False
        await asyncio.wait({answer}, timeout=5)
        return answer.done()

    # ------------------------------------------------------------------ reads

    async def read(self, seq: int) -> Stored | None:
        """The stored message at `seq`, None when it is gone."""
        return await self._surely({"seq": seq}, subjects.BOARD)

    async def last(self, subject: str, *, stream: str = subjects.BOARD, timeout: float = 5.0) -> Stored | None:
        """The last stored message on `subject`, None when there is none. A replica may lag: believe presence only."""
        return await self._direct({"last_by_subj": subject}, stream, timeout)

    async def find(self, subject: str, *, stream: str = subjects.BOARD) -> Stored | None:
        """As `last`, but absence may be believed too: the stream's leader was asked."""
        return await self._surely({"last_by_subj": subject}, stream)

    async def _surely(self, wanted: Mapping[str, Any], stream: str) -> Stored | None:
        stored = await self._direct(wanted, stream)
        return stored if stored is not None else await of_leader(self.api, stream, wanted)

    async def history(self, subject: str, *, after: int = 0, stream: str = subjects.BOARD) -> list[Stored]:
        """Every stored message on `subject` after sequence `after`, in order. For short chains: one read each."""
        found: list[Stored] = []
        while True:
            stored = await self._surely({"seq": after + 1, "next_by_subj": subject}, stream)
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
        message = await self.request(self.api_subject(f"DIRECT.GET.{stream}"), body, timeout=timeout)
        headers = message.headers or {}
        if "Nats-Sequence" not in headers:
            status = headers.get("Status", "?")
            if status == "404":
                return None
            raise Refused(int(status) if status.isdigit() else 0, headers.get("Description", "read refused"))
        return Stored(
            int(headers["Nats-Sequence"]), headers["Nats-Subject"], seconds_of(headers["Nats-Time-Stamp"]), message.data
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
        if waiter is not None and not waiter[1].done():
            waiter[1].set_result(message)

    async def _reconnected(self) -> None:
        log.info("reconnected", url=without_password(self.url))
        for callback in list(self._on_reconnect):
            await callback()

    async def _failed(self, error: Exception) -> None:
        if not is_unwelcome(self._last_error):  # the server then also cuts the connection, which says less
            self._last_error = error
        if isinstance(error, ConnectionRefusedError | socket.gaierror) or is_unwelcome(error):
            self._nobody_there.set()  # no use in trying again while the first connection is made
        refusal = refusal_in(error)
        if refusal is None:
            log.debug("connection error", error=repr(error)[:200])
            return
        # info: a process that runs for long logs it; a command says it once, as its error
        log.info("not permitted", user=self.user, subject=refusal.subject, publish=refusal.is_publish)
        if not refusal.is_publish:
            self._refused.add(refusal.subject)
            return
        for subject, waiter in self._waiting.values():
            if subject.lower() == refusal.subject and not waiter.done():
                waiter.set_exception(Forbidden(subject, self.user))
        for subject, callback in list(self._on_refusal.get(refusal.subject, ())):
            callback(Forbidden(subject, self.user))

    _last_error: Exception | None = None

    async def _disconnected(self) -> None:
        # An answer to what was sent before can no longer come: whoever waits may read back as soon as we are back.
        for _, waiter in self._waiting.values():
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


def _check_url(url: str) -> None:
    if not is_address(url):
        raise CannotConnect(
            f"NATS: {without_password(url)!r} is no server's URL; it looks like nats://127.0.0.1:4222 "
            "(name one with --nats / KOKUBAN_NATS_URL)"
        )
