"""Wrong input: one clear line, the right exit code, and nothing started, written or left behind."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import structlog

from kokuban.console.main import main
from support.nats_server import NatsServer

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Things to name wrongly."""
    (tmp_path / "file").write_text("text")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "out").symlink_to("/etc/hostname")
    (tmp_path / "there").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "notes.txt").write_text("text")
    return tmp_path


MODEL = ("--model", "scripted:script.json")
RUN = ("run", "Do it", *MODEL)

USAGE = {
    "no goal": (("run",), "Missing argument 'GOAL'"),
    "empty goal": (("run", "", *MODEL), "GOAL"),
    "blank goal": (("run", " \n\t", *MODEL), "say what is to be done"),
    "blank goal submitted": (("submit", "  "), "say what is to be done"),
    "goal too long": (("run", "x" * 70_000, *MODEL), "goal: "),
    "goal in no encoding": (("submit", os.fsdecode(b"\xff\xfe")), "not UTF-8"),
    "unknown command": (("rum",), "No such command 'rum'"),
    "unknown option": ((*RUN, "--chek", "x"), "--chek"),
    "no workspace there": ((*RUN, "--workspace", "missing"), "'missing' does not exist"),
    "workspace is a file": ((*RUN, "--workspace", "file"), "is not a folder"),
    "workspace is empty text": ((*RUN, "--workspace", ""), "it is empty"),
    "workspace leads out": ((*RUN, "--workspace", "links"), "a link that leads outside"),
    "submitted workspace leads out": (("submit", "Do it", "--workspace", "links"), "a link that leads outside"),
    "no source there": ((*RUN, "--source", "missing"), "source: missing"),
    "blank check": ((*RUN, "--check", " "), "'--check'"),
    "no such program": ((*RUN, "--check", "no-such-program --all"), "no-such-program"),
    "no such program of two": ((*RUN, "--check", "true", "--check", "no-such-program"), "no-such-program"),
    "no such path": ((*RUN, "--check", "/no/such/program"), "/no/such/program"),
    "no such file in the workspace": (
        (*RUN, "--workspace", "plain", "--check", "./check.sh"), "'./check.sh', which is not in the workspace",
    ),
    "too many attempts": ((*RUN, "--attempts", "11"), "--attempts"),
    "no attempt": ((*RUN, "--attempts", "0"), "--attempts"),
    "negative tokens": ((*RUN, "--tokens", "-1"), "--tokens"),
    "seconds in words": ((*RUN, "--seconds", "ten"), "--seconds"),
    "out exists": ((*RUN, "--out", "there"), "'there' exists already"),
    "out in no folder": ((*RUN, "--out", "missing/out"), "cannot be made"),
    "out of a result exists": (("result", "t-1", "--out", "there"), "exists already"),
    "no model": (("run", "Do it"), "--model openai-compatible:NAME --base-url URL"),
    "no model for up": (("up",), "No model is configured"),
    "no model for a worker": (("worker", "coder"), "No model is configured"),
    "no such kind of model": (("run", "Do it", "--model", "gpt-4"), "names no model"),
    "model without its key": (("run", "Do it", "--model", "openai:gpt-4.1-mini"), "OPENAI_API_KEY"),
    "model without its address": (("up", "--model", "openai-compatible:qwen"), "--base-url"),
    "no script there": (("run", "Do it", "--model", "scripted:missing.json"), "missing.json"),
    "no recording there": (("run", "Do it", "--model", "recorded:there"), "no recorded session"),
    "no such role": (("worker", "poet"), "planner"),
    "no such role for up": (("up", "--roles", "coder,poet"), "'poet'"),
    "no role for up": (("up", "--roles", ","), "name at least one"),
    "a budget of nothing known": ((*RUN, "--budget", "token=5"), "tokens, usd, steps, tool-calls, seconds"),
    "an empty budget": (("submit", "x", "--budget", ""), "is not NAME=NUMBER"),
    "a budget below nothing": (("submit", "x", "--budget", "tokens=-1"), "0 or more"),
    "a budget twice": (("submit", "x", "--budget", "usd=1,usd=2"), "usd is given twice"),
    "a budget too fine": (("submit", "x", "--budget", "usd=0.0000001"), "to the millionth"),
    "a budget in words": (("submit", "x", "--budget", "usd=nan"), "to the millionth"),
    "a budget beyond numbers": (("submit", "x", "--budget", "tokens=99999999999999999999"), "is too large"),
    "too much money": (("submit", "x", "--budget", "usd=99999999999"), "is too large; at most 9007199254"),
    "a wait of no number": (("cancel", "t-1", "--wait", "nan"), "no time in seconds"),
    "a wait without end": (("cancel", "t-1", "--wait", "inf"), "no time in seconds"),
    "a timeout of no number": (("result", "t-1", "--timeout", "nan"), "no time in seconds"),
    "a parent that is no name": (("submit", "x", "--parent", "a.b", "--nats", "nats://127.0.0.1:1"), "parent: "),
    "no credential there": (("status", "--credentials", "missing"), "there is no file or folder missing"),
    "nothing seen": (("approvals", "approve", "t-1/g", "--seen", ""), "'--seen'"),
    "an export to no folder": (("export", "--out", "missing/x"), "out: there is no folder missing"),
    "an export to a folder": (("export", "--out", "there"), "out: there is a folder"),
    "an audit of a folder": (("audit", "there"), "file: there cannot be read"),
    "a deadline in no unit": (("submit", "x", "--deadline", "2w"), "such as 90s, 30m, 2h or 7d"),
    "a deadline at once": (("submit", "x", "--deadline", "0"), "1 second to 365 days"),
    "a deadline too late": (("submit", "x", "--deadline", "366d"), "1 second to 365 days"),
    "a tenant that is no name": (("submit", "x", "--tenant", "A B"), "tenant: 'A B' is not a name"),
    "a task after none": (("submit", "x", "--after", "a.b"), "after: 'a.b' is not a name"),
    "a kind that is no name": (("submit", "x", "--approve", "*"), "approve: '*' is not a name"),
    "nobody to approve": (("submit", "x", "--votes", "0"), "--votes"),
    "too urgent": (("submit", "x", "--priority", "101"), "--priority"),
    "no such example": (("demo", "--example", "../.."), "fix-a-bug"),
}  # fmt: skip


@pytest.fixture
def in_process(
    folder: Path, clean_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs a command in this process, which is thirty times faster; gives its exit code, output and errors."""
    for name in os.environ.keys() - clean_env.keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    handlers = logging.getLogger().handlers[:]

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    yield run
    logging.getLogger().handlers[:] = handlers
    structlog.reset_defaults()


def things_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "nats-0" not in path.parts}  # the test's own server


@pytest.mark.parametrize(("arguments", "words"), USAGE.values(), ids=USAGE.keys())
def test_wrong_usage(
    in_process: Callable[..., tuple[int, str, str]], folder: Path, script: Callable[..., str],
    arguments: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    script()
    before = things_in(folder)
    code, out, error = in_process(*arguments)
    assert (code, out) == (2, "")
    assert error.startswith("kokuban: ")
    assert words in error
    assert "Traceback" not in error
    assert things_in(folder) == before


def test_wrong_usage_in_a_process_of_its_own(kokuban: Run, folder: Path, script: Callable[..., str]) -> None:
    script()
    before = things_in(folder)
    for name in ("blank goal", "workspace leads out", "no such program", "out exists", "no model"):
        arguments, words = USAGE[name]
        run = kokuban(*arguments)
        assert (run.returncode, run.stdout) == (2, "")
        assert words in run.stderr
    assert things_in(folder) == before


@pytest.mark.parametrize("task", ["t-*", "t-1.>", "a b", "", "T-1", "x" * 65])
def test_a_task_id_that_is_none(
    in_process: Callable[..., tuple[int, str, str]], nats_server: NatsServer, task: str
) -> None:
    for command in ("result", "status", "watch"):
        code, out, error = in_process(command, "--nats", nats_server.url, "--", task)
        assert (code, out) == (2, "")
        assert "is not a name" in error


def test_a_server_that_is_not_there(started: Callable[..., subprocess.Popen[str]]) -> None:
    commands = [("status",), ("submit", "x"), ("watch",), ("result", "t-1"), ("supervisor",), ("worker", "verifier")]
    url = "nats://me:s3cret@127.0.0.1:1"
    env = {"KOKUBAN_NATS_URL": url}
    runs = [started(*command, "--nats", url) for command in commands[1:]] + [started(*commands[0], env=env)]
    for run in runs:  # all at once: each of them tries for some seconds
        out, error = run.communicate(timeout=40)
        assert (run.returncode, out) == (3, "")
        assert "connection refused" in error
        assert "--nats" in error
        assert "s3cret" not in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "url",
    ["nats://", "http://127.0.0.1:1", "not a url", "nats://[::1", "nats://h:port", "nats://h:99999", "nats://h:s3\n@h"],
)
def test_an_address_that_is_none(in_process: Callable[..., tuple[int, str, str]], url: str) -> None:
    code, out, error = in_process("status", "--nats", url)
    assert (code, out) == (2, "")
    assert "nats://127.0.0.1:4222" in error
    assert "s3" not in error


@pytest.fixture
def old_server() -> Iterator[str]:
    """What speaks like a server of 2022, once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            client.sendall(
                b'INFO {"server_id":"OLD","version":"2.9.25","proto":1,"headers":true,"jetstream":true,'
                b'"max_payload":1048576}\r\n'
            )
            while data := client.recv(4_096):
                if b"PING" in data:
                    client.sendall(b"PONG\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    thread.join(10)


def test_an_old_server(kokuban: Run, old_server: str) -> None:
    run = kokuban("submit", "Do it", "--nats", old_server)
    assert (run.returncode, run.stdout) == (3, "")
    assert "2.9.25" in run.stderr
    assert "2.14" in run.stderr


def test_a_task_that_is_not_there(kokuban: Run, nats_server: NatsServer) -> None:
    for command in ("status", "result", "watch"):
        run = kokuban(command, "t-missing", "--nats", nats_server.url)
        assert (run.returncode, run.stdout) == (2, "")
        assert "t-missing" in run.stderr


def test_a_key_is_never_shown(in_process: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very secret")
    monkeypatch.setenv("KOKUBAN_API_KEY", "also secret\x07")
    for model in (["openai:x"], ["openai-compatible:x", "--base-url", "http://127.0.0.1:1/v1"]):
        code, out, error = in_process("run", "Do it", "--model", *model)
        assert (code, out) == (2, "")
        assert "_API_KEY" in error
        assert "secret" not in error


def test_output_that_cannot_be_written(kokuban: Run, nats_server: NatsServer) -> None:
    with open("/dev/full", "w") as full:
        run = kokuban(
            "submit", "x", "--nats", nats_server.url, capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert run.returncode == 3
    assert "No space left" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_debugging_shows_where(kokuban: Run) -> None:
    run = kokuban("run", "Do it", "--model", "gpt", env={"KOKUBAN_DEBUG": "1"})
    assert "Traceback" in run.stderr


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[list[str], click.Command, click.Context]]:
    """Every command below a group that is no group itself, with the words that name it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            with click.Context(command, info_name=name, parent=context) as below:
                for words, one, at in commands(command, below):
                    yield [name, *words], one, at
        else:
            yield [name], command, context


def test_help_has_an_example_that_parses(kokuban: Run) -> None:
    with click.Context(main, info_name="kokuban") as context:
        for words, command, at in commands(main, context):
            assert command.epilog is not None, words
            first, program, *arguments = shlex.split(command.epilog)
            assert (first, program, arguments[: len(words)]) == ("Example:", "kokuban", words)
            command.make_context(words[-1], arguments[len(words) :], parent=at)
    shown = kokuban("--help")
    assert shown.returncode == 0
    assert "Exit codes" in shown.stdout
