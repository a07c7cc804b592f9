"""Foreign text on a terminal, one JSON object a line, colours, and what becomes of exceptions."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from pathlib import Path

import click
import msgspec
import pytest

from kokuban.agents.models import ModelConfigError
from kokuban.blackboard import (
    CannotConnect,
    Event,
    InvalidRequest,
    InvalidTask,
    KeyInUse,
    NoAnswer,
    NoSuchGate,
    NoSuchTask,
    Refused,
    StoreFull,
    WorkspaceError,
)
from kokuban.blackboard.wire.embedded import EmbeddedServerError
from kokuban.console._errors import explain
from kokuban.console._live import event_line, summary
from kokuban.console._terminal import Paint, clean, json_line, one_line, when_unread
from kokuban.schemas import InvalidName

pytestmark = pytest.mark.anyio

MARKUP = ["{a}/{b}[/{c}]/read", "list[int]", "[/tmp/x]", "[bold]not bold[/bold]", "{not a field}", "%s %(x)s"]
CONTROL = ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x00", "\x7f", "\u202e", "\u2066", "\ud800", "\r"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", MARKUP)
def test_markup_is_only_text(text: str) -> None:
    assert clean(text) == text
    line = event_line(Event(7, 0.0, "failed", "t-1", "fix", "coder", 1, text=text), Paint(None))
    assert line.endswith(text)


@pytest.mark.parametrize("control", CONTROL)
def test_control_characters_never_reach_a_terminal(control: str) -> None:
    for shown in (clean(f"a{control}b"), one_line(f"a{control}b")):
        assert not set(control) & set(shown) - set("[31m]0;title2J")
        assert shown[0] + shown[-1] == "ab"
    hostile = Event(7, 0.0, "artifact", f"t{control}", f"s{control}", f"r{control}", kind="finding", name=control)
    line = event_line(hostile, Paint(None))
    assert line.isprintable()


def test_an_event_is_one_line_whatever_its_text_holds() -> None:
    for text in ("a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x0bb", "a" * 100_000):
        assert len(event_line(Event(1, 0.0, "failed", "t-1", text=text), Paint(None)).splitlines()) == 1
    assert clean("a\n\tb") == "a\n b"


def test_a_line_names_its_sequence_and_the_artifact() -> None:
    finding = (
        b'{"statement":"the fee is [/25]","citations":[{"source":"d.md","first":1,"last":1,"quote":"q","sha256":"%s"}]}'
    )
    content = msgspec.Raw(finding % (b"sha256:" + b"0" * 64))
    event = Event(
        42, 0.0, "artifact", "t-1", "facts", "researcher", 2, kind="finding", name="f", digest="sha256:12ab34cd56ef",
        content=content,
    )  # fmt: skip
    line = event_line(event, Paint(None))
    for part in ("#42", "t-1", "researcher/facts#2", "finding/f", "12ab34cd", "the fee is [/25] [d.md]"):
        assert part in line


def test_an_artifact_that_cannot_be_read_has_no_summary() -> None:
    for content in (b"{}", b"[]", b"{"):
        assert summary(Event(1, 0.0, "artifact", kind="plan", name="p", content=msgspec.Raw(content))) == ""
    assert summary(Event(1, 0.0, "artifact", kind="unheard-of", name="p", content=msgspec.Raw(b"{}"))) == ""


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "\x7f\x9b31m", "ü \\n \\u0007", '"', "\u202e"])
def test_json_is_one_line_and_says_the_same(text: str) -> None:
    pretty = json.dumps({"text": text, "nested": {"list": [1, 2]}}, indent=2, ensure_ascii=False).encode()
    line = json_line(msgspec.json.encode({"content": msgspec.Raw(pretty)}))
    assert len(line.splitlines()) == 1
    assert not {"\x7f", "\x9b", "\u2028", "\x85", "\u202e"} & set(line)
    assert json.loads(line) == {"content": {"text": text, "nested": {"list": [1, 2]}}}


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert Paint(Terminal())("x", "red") == "\x1b[31mx\x1b[0m"
    assert Paint(Terminal())("x") == "x"
    assert Paint(io.StringIO())("x", "red") == "x"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Paint(io.StringIO())("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Paint(Terminal())("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Paint(Terminal())("x", "red") == "x"


async def test_the_end_of_a_pipes_reader_is_noticed_without_writing() -> None:
    read, write = os.pipe()
    gone = asyncio.Event()
    with os.fdopen(write, "w") as stream:
        when_unread(stream, gone.set)
        assert not gone.is_set()
        os.close(read)
        await asyncio.wait_for(gone.wait(), 10)


async def test_a_file_has_no_reader_that_could_go(tmp_path: Path) -> None:
    threads = threading.active_count()
    with (tmp_path / "file").open("w") as file:
        when_unread(file, lambda: None)
    when_unread(io.StringIO(), lambda: None)
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InvalidTask("goal: it is empty"), 2, "goal: it is empty"),
        (KeyInUse("key: in use"), 2, "key: in use"),
        (WorkspaceError("the folder 'x' does not exist"), 2, "does not exist"),
        (ModelConfigError("needs a key"), 2, "needs a key"),
        (NoSuchTask("task: there is no 't'"), 2, "there is no"),
        (InvalidName("task: 'a.b' is not a name"), 2, "not a name"),
        (NoSuchGate("gate: there is no 'g'"), 2, "there is no"),
        (InvalidRequest("text: it is empty"), 2, "it is empty"),
        (StoreFull("store: it is full"), 3, "store: it is full"),
        (click.UsageError("no such option"), 2, "no such option"),
        (CannotConnect("NATS: no connection to nats://h:1"), 3, "no connection"),
        (Refused(10058, "name in use"), 3, "NATS: name in use (10058)"),
        (NoAnswer("kb.x: no answer"), 3, "unknown whether"),
        (EmbeddedServerError("the port is taken"), 3, "the port is taken"),
        (PermissionError(13, "Permission denied", "/x"), 3, "Permission denied"),
        (LookupError("artifact: its record is gone"), 3, "is gone"),
        (TimeoutError("not ended"), 4, "not ended"),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [CannotConnect("NATS: gone")])]), 3, "NATS: gone"),
        (KeyError("x"), 70, "KeyError"),
        (ValueError("bad"), 70, "KOKUBAN_DEBUG=1"),
        (InvalidTask("goal: \x1b[2J"), 2, "goal: [2J"),
    ],
)
def test_exceptions_become_codes_and_words(error: Exception, code: int, words: str) -> None:
    got, message = explain(error)
    assert got == code
    assert words in message
    assert "\x1b" not in message
