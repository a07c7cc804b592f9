"""submit, watch, status and result on a real board, each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kokuban.blackboard import Client
from support.nats_server import NatsServer
from support.processes import gone

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def board(nats_server: NatsServer) -> dict[str, str]:
    """The environment that names a board on which nobody works."""
    return {"KOKUBAN_NATS_URL": nats_server.url}


@pytest.fixture
def submitted(nats_server: NatsServer) -> Callable[[str], str]:
    """Submits a goal from this process; gives the task's id."""

    async def submit(goal: str) -> str:
        async with await Client.connect(nats_server.url) as client:
            return await client.submit(goal)

    return lambda goal: asyncio.run(submit(goal))


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_submit_prints_the_id_alone_and_a_key_makes_it_the_same_task(kokuban: Run, board: dict[str, str]) -> None:
    first = kokuban("submit", "Count the words", "--key", "k", env=board)
    again = kokuban("submit", "Count the words", "--key", "k", env=board)
    other = kokuban("submit", "Count the words", env=board)
    assert [run.returncode for run in (first, again, other)] == [0, 0, 0]
    assert first.stdout == again.stdout != other.stdout
    assert first.stdout.startswith("t-")
    assert first.stdout.count("\n") == 1
    assert first.stderr == ""
    clash = kokuban("submit", "Count the lines", "--key", "k", env=board)
    assert (clash.returncode, clash.stdout) == (2, "")
    assert "another key" in clash.stderr
    listed = kokuban("status", "--json", env=board)
    assert {json.loads(line)["task"] for line in listed.stdout.splitlines()} == {
        first.stdout.strip(), other.stdout.strip(),
    }  # fmt: skip


def test_a_part_of_a_task_names_it(kokuban: Run, board: dict[str, str]) -> None:
    whole = kokuban("submit", "Write the book", env=board).stdout.strip()
    part = kokuban("submit", "Write a chapter", "--parent", whole, env=board).stdout.strip()
    assert json.loads(kokuban("status", part, "--json", env=board).stdout)["parent"] == whole
    orphan = kokuban("submit", "Write a page", "--parent", "t-missing", env=board)
    assert (orphan.returncode, orphan.stdout) == (2, "")
    assert "t-missing" in orphan.stderr


def test_a_task_that_nobody_works_on_is_open(kokuban: Run, board: dict[str, str], workspace: Path) -> None:
    goal = "Add [/red] and \x1b[31mred\x1b[0m"
    options = ("--workspace", workspace, "--check", "true", "--tokens", "0")
    task = kokuban("submit", goal, *options, env=board).stdout.strip()
    shown = kokuban("status", task, env=board | {"FORCE_COLOR": "1"})
    assert shown.returncode == 0
    assert "open" in shown.stdout
    assert "Add [/red] and [31mred[0m" in shown.stdout
    assert "\x1b" not in shown.stdout
    told = json.loads(kokuban("status", task, "--json", env=board | {"FORCE_COLOR": "1"}).stdout)
    assert (told["task"], told["state"], told["goal"], told["checks"]) == (task, "open", goal, ["true"])
    looked = kokuban("result", task, "--no-wait", env=board)
    waited = kokuban("result", task, "--timeout", "0.2", env=board)
    assert [(run.returncode, run.stdout) for run in (looked, waited)] == [(4, ""), (4, "")]
    assert task in looked.stderr


def test_watch_is_gapless_and_goes_on_where_it_stopped(
    kokuban: Run, submitted: Callable[[str], str], board: dict[str, str]
) -> None:
    tasks = [submitted(f"Task {n}") for n in range(3)]
    whole = kokuban("watch", "--json", "--no-follow", env=board)
    events = [json.loads(line) for line in whole.stdout.splitlines()]
    assert [event["task"] for event in events] == tasks
    assert [event["event"] for event in events] == ["submitted"] * 3
    assert [event["text"] for event in events] == ["Task 0", "Task 1", "Task 2"]
    later = kokuban("watch", "--json", "--no-follow", "--from", events[0]["seq"], env=board)
    assert later.stdout.splitlines() == whole.stdout.splitlines()[1:]
    people = kokuban("watch", "--no-follow", env=board)
    assert [f"#{event['seq']}" in line for event, line in zip(events, people.stdout.splitlines(), strict=True)]
    one = kokuban("watch", tasks[1], "--no-follow", "--json", env=board)
    assert [json.loads(line)["task"] for line in one.stdout.splitlines()] == [tasks[1]]
    nothing = kokuban("watch", "--no-follow", "--from", events[2]["seq"], env=board)
    assert (nothing.returncode, nothing.stdout) == (0, "")


def test_a_watch_lives_through_a_restart_of_the_server(
    submitted: Callable[[str], str], started: Start, nats_server: NatsServer, board: dict[str, str]
) -> None:
    first = submitted("Before")
    watch = started("watch", "--json", env=board)
    assert json.loads(read_line(watch))["task"] == first
    nats_server.kill()
    nats_server.restart()
    second = submitted("After")
    assert json.loads(read_line(watch))["task"] == second
    watch.terminate()


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_head_ends_a_watch_quietly(
    submitted: Callable[[str], str],
    started: Start,
    board: dict[str, str],
    unbuffered: dict[str, str],
    options: list[str],
) -> None:
    submitted("Nothing follows this one")
    watch = started("watch", *options, env=board | unbuffered)
    assert "Nothing follows" in read_line(watch)
    assert watch.stdout is not None
    watch.stdout.close()  # what `head -1` does; the board stays quiet, so no write would notice it
    assert gone(watch.pid)
    assert watch.wait() == 0
    assert watch.stderr is not None
    assert watch.stderr.read() == ""


def test_a_reader_that_goes_while_much_is_written_ends_it_quietly(
    submitted: Callable[[str], str], started: Start, board: dict[str, str]
) -> None:
    for name in ("a", "b", "c"):
        submitted(name * 60_000)
    watch = started("watch", "--json", "--no-follow", env=board)
    assert watch.stdout is not None
    watch.stdout.read(10)  # a pipe holds 64 KiB: the rest is being written when its reader goes
    watch.stdout.close()
    assert watch.wait(20) == 0
    assert watch.stderr is not None
    assert watch.stderr.read() == ""


def test_ctrl_c_ends_a_watch_with_130(submitted: Callable[[str], str], started: Start, board: dict[str, str]) -> None:
    submitted("Something")
    watch = started("watch", env=board)
    read_line(watch)
    watch.send_signal(signal.SIGINT)
    _, errors = watch.communicate(timeout=20)
    assert watch.returncode == 130
    assert errors.strip() == ""


def test_narrow_encodings_do_not_fail(kokuban: Run, submitted: Callable[[str], str], board: dict[str, str]) -> None:
    submitted("Prüfe 検査 ✔")
    for encoding, expected in (("latin-1", "Prüfe \\u691c\\u67fb"), ("ascii", "Pr")):
        shown = kokuban("watch", "--no-follow", env=board | {"PYTHONIOENCODING": encoding}, encoding="latin-1")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert expected in shown.stdout
