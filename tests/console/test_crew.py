"""Parts of the command line that need no process: who gets which secret, when a run gives up, how logs look."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kokuban.blackboard import Event
from kokuban.console._crew import children, last_line
from kokuban.console._embedded import HOPELESS_DEATHS, _View
from kokuban.console._logging import configure_logging
from kokuban.console._models import ModelChoice, choose

pytestmark = pytest.mark.anyio


def test_keys_and_addresses_reach_only_who_needs_them_and_no_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("KOKUBAN_API_KEY", "other-secret")
    monkeypatch.setenv("KOKUBAN_MODEL", "openai:not-this-one")
    crew = children(
        ["planner", "coder", "verifier", "integrator"], url="nats://me:hidden@host:4222", folder=tmp_path,
        model=ModelChoice("openai-compatible:x", "http://h/v1", tmp_path / "record"), concurrency=3, drain_seconds=2,
    )  # fmt: skip
    assert [child.name for child in crew] == ["supervisor", "planner", "coder", "verifier", "integrator"]
    for child in crew:
        assert child.env["KOKUBAN_NATS_URL"] == "nats://me:hidden@host:4222"
        assert not any(secret in word for word in child.argv for secret in ("secret", "hidden"))
        asks = child.name in ("planner", "coder")
        assert ("OPENAI_API_KEY" in child.env, "KOKUBAN_API_KEY" in child.env) == (asks, asks)
        assert child.env.get("KOKUBAN_MODEL") == ("openai-compatible:x" if asks else None)
        assert child.env.get("KOKUBAN_BASE_URL") == ("http://h/v1" if asks else None)
        assert ("--record" in child.argv) == asks
        assert ("--concurrency" in child.argv) == (child.name != "supervisor")


def test_tools_that_want_a_person_reach_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_APPROVE_TOOLS", "delete_file")
    for given, told in (((), "delete_file"), (("write_file", "edit_file"), "write_file edit_file")):
        _, coder = children(
            ["coder"], url="nats://host", folder=tmp_path, model=None, drain_seconds=1, approve_tools=given
        )
        assert coder.env["KOKUBAN_APPROVE_TOOLS"] == told


def test_the_model_is_the_one_that_is_named_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("KOKUBAN_MODEL", "KOKUBAN_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert choose() is None
    monkeypatch.setenv("KOKUBAN_MODEL", "openai-compatible:small")
    monkeypatch.setenv("KOKUBAN_BASE_URL", "http://127.0.0.1:1/v1")
    assert choose() == ModelChoice("openai-compatible:small", "http://127.0.0.1:1/v1")
    assert choose(base_url="http://other/v1") == ModelChoice("openai-compatible:small", "http://other/v1")
    assert choose("openai:big") == ModelChoice("openai:big", native_tools=True)
    assert choose("openai:big", native_tools=False) == ModelChoice("openai:big")
    assert choose("scripted:a.json") == ModelChoice(f"scripted:{tmp_path / 'a.json'}")
    assert choose("recorded:a/b", record=Path("c")) == ModelChoice(f"recorded:{tmp_path / 'a/b'}", None, tmp_path / "c")
    monkeypatch.setenv("KOKUBAN_MODEL", "")
    assert choose() is None


async def test_a_run_is_given_up_only_when_a_process_keeps_ending_without_progress(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "coder.log"
    log.parent.mkdir()
    log.write_bytes(b"first\nkokuban: \x1b[31mno such thing\n\n")
    view = _View(tmp_path)
    for _ in range(HOPELESS_DEATHS - 1):
        view.process("coder", "died", "ended with code 3")
    view.event(Event(1, 0.0, "artifact", kind="plan", name="p"))
    for _ in range(HOPELESS_DEATHS - 1):
        view.process("coder", "died", "ended with code 3")
        view.process("planner", "waiting", "next start in 1 s")
    assert not view.hopeless.is_set()
    view.process("coder", "died", "ended with code 3")
    assert view.hopeless.is_set()
    assert view.why == "the coder's process keeps ending: kokuban: [31mno such thing"


async def test_a_display_that_fails_is_given_up_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = _View(tmp_path)
    broken = Event(1, float("nan"), "artifact", kind="plan", name="p")
    view.event(broken)
    view.event(Event(2, 0.0, "artifact", kind="plan", name="p"))
    assert capsys.readouterr().err == ""


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "missing") == ""
    (tmp_path / "empty").write_text("\n\n")
    assert last_line(tmp_path / "empty") == ""
    (tmp_path / "bytes").write_bytes(b"x\n" + b"\xff" * 10_000)
    assert set(last_line(tmp_path / "bytes")) == {"\ufffd"}


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def log_something() -> None:
    structlog.get_logger("ours").debug("too little")
    structlog.get_logger("ours").bind(task="t-1", step="fix", fence=7).info("claimed", text='a\n"b"\x1b[31m', none=None)
    logging.getLogger("theirs").warning("of %s", "a library")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("ours").exception("bug")


@pytest.mark.usefixtures("restored_logging")
def test_logs_are_lines_of_key_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "text")
    log_something()
    out, error = capsys.readouterr()
    assert out == ""
    lines = error.splitlines()
    assert len(lines) == 3
    assert " level=info event=claimed task=t-1 step=fix fence=7 " in lines[0]
    assert "\x1b" not in error
    assert 'level=warning logger=theirs event="of a library"' in lines[1]
    assert "ValueError: broken" in lines[2]


@pytest.mark.usefixtures("restored_logging")
def test_logs_are_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_LOG", "json")
    monkeypatch.setenv("KOKUBAN_LOG_LEVEL", "INFO")
    configure_logging()
    log_something()
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(entry["level"], entry["event"]) for entry in entries] == [
        ("info", "claimed"), ("warning", "of a library"), ("error", "bug"),
    ]  # fmt: skip
    assert (entries[0]["task"], entries[0]["step"], entries[0]["fence"]) == ("t-1", "fix", 7)


@pytest.mark.usefixtures("restored_logging")
def test_a_log_that_nobody_reads_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    stderr = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logging("info", "text")
    log_something()
    with pytest.raises(BrokenPipeError):
        stderr.close()
    log_something()
