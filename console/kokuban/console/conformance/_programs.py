"""The program under examination, as processes whose connection goes through a proxy."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kokuban.blackboard.wire.embedded import die_with_parent
from kokuban.console.conformance._proxy import Proxy, Sent
from kokuban.schemas import subjects

_COMMITS = ("step.done", "step.failed", "step.waiting")


class Instance:
    """One process of the program. Its environment names the board (`KOKUBAN_NATS_URL`) and the role
    (`KOKUBAN_ROLE`), and its credential, if any (`KOKUBAN_CREDENTIALS`); what it says goes to `log`."""

    def __init__(
        self, command: Sequence[str], folder: Path, role: str, url: str, log: Path, secret: Path | None = None
    ) -> None:
        self.proxy = Proxy(url)
        self.log = log
        self._command = command
        self._folder = folder
        self._role = role
        self._secret = secret
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it. Raises `OSError` when there is no such program."""
        environment = os.environ | {"KOKUBAN_NATS_URL": await self.proxy.start(), "KOKUBAN_ROLE": self._role}
        environment.pop("KOKUBAN_CREDENTIALS", None)
        if self._secret is not None:
            environment["KOKUBAN_CREDENTIALS"] = str(self._secret)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=self._folder, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=die_with_parent(signal.SIGKILL),
            )  # fmt: skip

    @property
    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def terminate(self, seconds: float) -> int | None:
        """Ask it to end; its exit code, or None when it did not within that time."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        try:
            return await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return None

    async def stop(self) -> None:
        """End it and everything that it started, at once."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            await self._process.wait()
        await self.proxy.stop()

    def last_words(self) -> str:
        """The end of what it said."""
        try:
            return self.log.read_bytes()[-600:].decode("utf-8", "replace").strip()
        except OSError:
            return ""


def is_commit(sent: Sent) -> bool:
    """Whether this is a record that ends a step."""
    return _type(sent) in _COMMITS


def is_claim(sent: Sent) -> bool:
    """Whether this is the claim of a step."""
    return _type(sent) == "step.claimed"


def _type(sent: Sent) -> str:
    """The type of a record on a step register, '' for any other message."""
    address = subjects.parse(sent.subject)
    if address is None or address.kind != "step":
        return ""
    try:
        return str(msgspec.json.decode(sent.payload).get("type"))
    except (msgspec.DecodeError, AttributeError):
        return ""


def answers(sent: Sequence[Sent], order: int, *, delivered: int | None = None) -> list[str]:
    """How the delivery of the order at this sequence was answered; progress (`+WPI`) is no answer. `delivered`: of that
    delivery alone, counted from 1."""
    found = []
    for one in sent:
        tokens = one.subject.split(".")
        if one.subject.startswith("$JS.ACK.") and len(tokens) >= 9:
            times, seq = (tokens[6], tokens[7]) if len(tokens) > 9 else (tokens[4], tokens[5])
            said = one.payload.decode("utf-8", "replace").split(" ")[0] or "+ACK"
            if seq == str(order) and said != "+WPI" and delivered in (None, int(times)):
                found.append(said)
    return found
