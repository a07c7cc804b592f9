"""The export: records as lines of JSON, each chained to the one before by a hash, so that none can be changed, left out
or put in between without the last hash telling.

First line: `{"kokuban": "export", "version": 1, "scope": "task" | "board", "task": …, "position": …}`, where `position`
is the stream's last sequence when the export was taken. Then one line a record:
`{"seq", "subject", "time", "data", "chain"}`; `data` is text, or under `base64` when it is not UTF-8. Last line:
`{"records": n, "chain": …}`.

`chain` is sha256, in hex, over the chain before it and the line's content (sequence, subject and time a line each, then
the data's bytes); the first one is over the first line as it stands.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

VERSION = 1


class BadExport(ValueError):
    """A file that is no export, or one that was changed: the message says in which line."""


@dataclass(frozen=True)
class Message:
    """A stored message: `time` is the server's, in seconds since 1970."""

    seq: int
    subject: str
    time: float
    data: bytes


@dataclass
class Export:
    """What a file holds. `scope` is `board` when every record of the stream is in it, `task` when only those of one
    task and of those below it, with the board's own (`kb.ctl.>`); `head` is the last hash, that of the whole."""

    scope: str = "board"
    task: str = ""
    position: int = 0
    messages: list[Message] = field(default_factory=list)
    head: str = ""
    about: dict[str, Any] = field(default_factory=dict)


def write_lines(messages: Iterable[Message], about: dict[str, Any]) -> Iterator[str]:
    """The lines of an export, without their ends. `about` is what the first line says beside its own marks."""
    first = json.dumps({"kokuban": "export", "version": VERSION, **about}, ensure_ascii=False, sort_keys=True)
    yield first
    chain, count = hashlib.sha256(first.encode()).hexdigest(), 0
    for message in messages:
        chain, count = _next(chain, message), count + 1
        line: dict[str, Any] = {"seq": message.seq, "subject": message.subject, "time": message.time}
        try:
            line["data"] = message.data.decode()
        except UnicodeDecodeError:
            line["base64"] = base64.b64encode(message.data).decode()
        yield json.dumps({**line, "chain": chain}, ensure_ascii=False)
    yield json.dumps({"records": count, "chain": chain})


def read_lines(lines: Iterable[str | bytes]) -> Export:
    """Read an export and check its chain; lines of a file are best read as bytes. Raises `BadExport`."""
    numbered = ((n, _text(line, n).rstrip("\r\n")) for n, line in enumerate(lines, 1))
    number, first = next(numbered, (0, ""))
    about = _object(first, 1)
    if about.get("kokuban") != "export" or about.get("version") != VERSION:
        raise BadExport(f"line 1: no export of version {VERSION}")
    export = Export(
        str(about.get("scope", "board")), str(about.get("task") or ""), int(about.get("position", 0)), about=about
    )
    chain, ended = hashlib.sha256(first.encode()).hexdigest(), False
    for number, text in numbered:
        line = _object(text, number)
        if ended:
            raise BadExport(f"line {number}: something follows the last line")
        if "records" in line:
            ended = True
            if (line["records"], line.get("chain")) != (len(export.messages), chain):
                raise BadExport(f"line {number}: it tells of {line['records']} records with another last hash")
            continue
        message = _message(line, number)
        chain = _next(chain, message)
        if line.get("chain") != chain:
            raise BadExport(f"line {number}: its hash does not follow from the line before: changed, missing or moved")
        if export.messages and message.seq <= export.messages[-1].seq:
            raise BadExport(f"line {number}: sequence {message.seq} does not follow {export.messages[-1].seq}")
        export.messages.append(message)
    if not ended:
        raise BadExport(f"line {number}: the last line is missing: the file was cut off")
    export.head = chain
    return export


def _next(chain: str, message: Message) -> str:
    head = f"{chain}\n{message.seq}\n{message.subject}\n{message.time!r}\n".encode()
    return hashlib.sha256(head + message.data).hexdigest()


def _text(line: str | bytes, number: int) -> str:
    try:
        return line if isinstance(line, str) else line.decode()
    except UnicodeDecodeError as error:
        raise BadExport(f"line {number}: not UTF-8: {error}") from error


def _object(text: str, number: int) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadExport(f"line {number}: no JSON: {error}") from error
    if not isinstance(line, dict):
        raise BadExport(f"line {number}: no JSON object")
    return line


def _message(line: dict[str, Any], number: int) -> Message:
    try:
        data = base64.b64decode(line["base64"], validate=True) if "base64" in line else line["data"].encode()
        return Message(int(line["seq"]), str(line["subject"]), float(line["time"]), data)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise BadExport(f"line {number}: no record: {error!r}") from error
