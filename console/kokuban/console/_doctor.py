"""doctor: what this machine offers, and what stands in the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

from kokuban.console._options import credentials_of, json_option, nats_option
from kokuban.console._terminal import json_line, put

_CONNECT_SECONDS = 5


class Finding(NamedTuple):
    """`state` is ok, note (it works, with less) or broken (something that is needed does not)."""

    what: str
    state: str
    says: str


@click.command(epilog="Example: kokuban doctor --nats nats://127.0.0.1:4222")
@json_option
@nats_option
def doctor(as_json: bool, nats: str | None) -> int:
    """Show how commands are isolated here, which server and model are configured, and whether they answer.

    Exit code 0: nothing that is needed is broken; 1: something is.
    """
    import asyncio

    import msgspec

    from kokuban.console._logging import configure_logging

    configure_logging("error")
    found = asyncio.run(_examine(nats))
    if as_json:
        for finding in found:
            put(json_line(msgspec.json.encode(finding._asdict())))
    else:
        width = max(len(finding.what) for finding in found)
        for finding in found:
            put(f"{finding.state:6} {finding.what:{width}}  {finding.says}")
    return 1 if any(finding.state == "broken" for finding in found) else 0


async def _examine(nats: str | None) -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    return [
        Finding("python", "ok", f"{version} ({sys.executable})"),
        _isolation(), _server_program(), await _board(nats), await _model(), _search(), _disk(),
    ]  # fmt: skip


def _isolation() -> Finding:
    import os

    from kokuban.agents.sandbox import SandboxError, isolation

    try:
        found = isolation()
    except SandboxError as error:
        return Finding("isolation", "broken", str(error))
    if found.kind == "bubblewrap":
        says = "bubblewrap: no network, read-only system, only the checkout can be written"
        if os.geteuid() == 0:  # the kernel exempts root from that limit
            return Finding("isolation", "note", f"{says}; but root's commands may start any number of processes")
        return Finding("isolation", "ok", says)
    return Finding(
        "isolation", "note", f"none but a process group and limits: {found.why}; commands can reach what you can"
    )


def _server_program() -> Finding:
    import os

    from kokuban.blackboard.wire.embedded import EmbeddedServerError, find_server

    try:
        server = find_server(os.environ)
        return Finding("nats-server", "ok", f"{server.version} ({server.path})")
    except EmbeddedServerError as error:
        return Finding("nats-server", "note", f"{error} (needed by run, demo and up only)")


async def _board(nats: str | None) -> Finding:
    import os

    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus, BusError, Refused
    from kokuban.blackboard.wire._address import without_password
    from kokuban.blackboard.wire._setup import STREAM_MISSING

    url = nats or DEFAULT_URL
    asked = nats is not None or "KOKUBAN_NATS_URL" in os.environ
    try:
        secret = credentials_of("client", nats)
        async with await Bus.connect(url, name="kokuban doctor", credentials=secret) as bus:
            who = bus.user or "nobody in particular (the server asks for no credentials)"
            try:
                holds = f"records up to {await bus.last_seq()}"
            except Refused as error:
                if error.code != STREAM_MISSING:
                    raise
                holds = "no board yet, which the first supervisor or client makes"
            return Finding("board", "ok", f"{without_password(url)}: {holds}; you are {who}")
    except (BusError, ValueError, OSError) as error:
        return Finding("board", "broken" if asked else "note", f"{without_password(url)}: {error}")


async def _model() -> Finding:
    import asyncio
    from urllib.parse import urlsplit

    from kokuban.agents.models import ModelError
    from kokuban.console._models import choose

    choice = choose()
    if choice is None:
        return Finding("model", "note", "none is configured (KOKUBAN_MODEL, or --model)")
    try:
        await choice.validate()
        meter = choice.meter()
        await meter.aclose()
    except ModelError as error:
        return Finding("model", "broken", str(error))
    for address in meter.addresses:  # whether somebody listens: a call would cost
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
        except OSError as error:
            why = error.strerror or "no answer"
            return Finding("model", "broken", f"{choice.spec}: no connection to {parts.hostname}:{port} ({why})")
    return Finding("model", "ok", f"{choice.spec} (endpoint {choice.endpoint_name})")


def _search() -> Finding:
    import sqlite3

    try:
        with sqlite3.connect(":memory:") as found:
            found.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
    except sqlite3.Error as error:
        return Finding("full-text search", "note", f"SQLite has no FTS5 here ({error}): memory is searched by words")
    return Finding("full-text search", "ok", f"SQLite {sqlite3.sqlite_version} with FTS5")


def _disk() -> Finding:
    import shutil

    free = shutil.disk_usage(Path.cwd()).free
    return Finding("disk", "ok" if free > 2**30 else "note", f"{free / 2**30:.1f} GiB free here")


__all__ = ["doctor"]
