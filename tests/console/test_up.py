"""up in one terminal, the other commands in others: real processes, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.nats_server import NatsServer
from support.processes import gone, linux_only

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]
CHECK = "python3 -m unittest -q"

pytestmark = pytest.mark.timeout(180)  # a dozen processes start one after the other, and each wait has its own bound
CREW = {"supervisor", "planner", "researcher", "coder", "verifier", "integrator"}


def url_of(up: subprocess.Popen[str]) -> str:
    assert up.stdout is not None
    return up.stdout.readline().removeprefix("Kokuban is up at ").strip()


def pids_of(up: subprocess.Popen[str], names: set[str]) -> dict[str, int]:
    assert up.stderr is not None
    pids: dict[str, int] = {}
    for line in up.stderr:
        words = line.split()
        if words[1:2] == ["started:"]:
            pids[words[0]] = int(words[-1])
        if pids.keys() >= names:
            return pids
    raise AssertionError("it ended before all had started")


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@linux_only
def test_from_one_up_to_the_next(
    tmp_path: Path, kokuban: Run, started: Start, workspace: Path, script: Callable[..., str]
) -> None:
    model = ("--model", script())

    # A crew of one, which no model needs: what is submitted waits.
    up = started("up", "--port", "0", "--roles", "verifier")
    board = {"KOKUBAN_NATS_URL": url_of(up)}
    pids = pids_of(up, {"supervisor", "verifier"})
    submitted = kokuban(
        "submit", "Fix add", "--workspace", workspace, "--check", CHECK, "--key", "k", env=board
    )  # fmt: skip
    task = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    assert kokuban("result", task, "--no-wait", env=board).returncode == 4

    # The store and the port are taken.
    again = kokuban("up", "--port", "0", *model)
    assert again.returncode == 3
    assert board["KOKUBAN_NATS_URL"] in again.stderr
    assert "--store" in again.stderr
    taken = kokuban("up", "--port", board["KOKUBAN_NATS_URL"].rpartition(":")[2], "--store", "other", *model)
    assert taken.returncode == 3
    assert "--port" in taken.stderr
    assert not (tmp_path / "other").exists()

    # Ctrl-C drains.
    up.send_signal(signal.SIGINT)
    _, told = up.communicate(timeout=40)
    assert up.returncode == 0
    assert "verifier stopped: ended with code 0" in told
    assert all(gone(pid) for pid in pids.values())

    # The next one goes on with the task; what dies is started again.
    up = started("up", "--port", "0", *model)
    board = {"KOKUBAN_NATS_URL": url_of(up)}
    pids = pids_of(up, CREW)
    assert all(name in command_of(pid) for name, pid in pids.items())
    os.kill(pids["coder"], signal.SIGKILL)
    result = kokuban("result", task, "--timeout", "40", "--out", "out", env=board)
    assert result.returncode == 0, result.stderr + result.stdout
    assert "python3 -m unittest -q  passed" in result.stdout
    assert "a + b" in (tmp_path / "out" / "files" / "calc.py").read_text()
    homes = {os.readlink(f"/proc/{pid}/cwd") for name, pid in pids.items() if name not in ("supervisor", "coder")}
    assert len(homes) == 4
    assert all(home.startswith(str(tmp_path / ".kokuban" / "homes")) for home in homes)
    same = kokuban("submit", "Fix add", "--workspace", workspace, "--check", CHECK, "--key", "k", env=board)
    assert same.stdout.strip() == task
    events = [json.loads(line) for line in kokuban("watch", task, "--json", env=board).stdout.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("submitted", "ended")
    assert {event["role"] for event in events if event.get("role")} == {"planner", "coder", "verifier", "integrator"}

    # kill -9 of the launcher leaves nobody behind.
    pids |= pids_of(up, {"coder"})
    up.kill()
    assert all(gone(pid, within_seconds=15) for pid in pids.values())
    assert kokuban("status", "--nats", board["KOKUBAN_NATS_URL"]).returncode == 3


@linux_only
def test_the_same_crew_as_processes_that_share_nothing_but_the_url(
    tmp_path: Path, kokuban: Run, started: Start, nats_server: NatsServer, workspace: Path, script: Callable[..., str]
) -> None:
    """What compose.yaml starts, without containers."""
    board = {"KOKUBAN_NATS_URL": nats_server.url}
    asks = board | {"KOKUBAN_MODEL": script(), "KOKUBAN_LOG": "json"}
    crew = {"supervisor": started("supervisor", cwd="/", env=board | {"KOKUBAN_LOG": "json"})}
    for role in sorted(CREW - {"supervisor"}):
        crew[role] = started("worker", role, cwd="/", env=asks)
    submitted = kokuban("submit", "Fix add", "--workspace", workspace, "--check", CHECK, env=board)
    task = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    result = kokuban("result", task, "--timeout", "40", "--json", env=board)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["checks"] == [{"command": CHECK, "exit_code": 0, "timed_out": False}]
    shown = json.loads(kokuban("status", task, "--json", env=board).stdout)
    assert (shown["state"], {step["status"] for step in shown["steps"]}) == ("done", {"done"})
    assert all(process.poll() is None for process in crew.values())
    for process in crew.values():
        process.terminate()
    logs = {name: process.communicate(timeout=30) for name, process in crew.items()}
    assert {name: process.returncode for name, process in crew.items()} == dict.fromkeys(crew, 0)
    for name, (out, log) in logs.items():
        assert out == "", name
        entries = [json.loads(line) for line in log.splitlines()]
        about = [entry for entry in entries if entry["event"] == "done"]
        assert all({"task", "step", "worker", "fence"} <= entry.keys() for entry in about), name
        assert bool(about) == (name in {"planner", "coder", "verifier", "integrator"}), name
    assert os.listdir(tmp_path / "temporary") == []


@linux_only
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_drains_and_hands_over_what_does_not_end_in_time(
    tmp_path: Path, kokuban: Run, started: Start, nats_server: NatsServer, workspace: Path, script: Callable[..., str],
    signum: signal.Signals,
) -> None:  # fmt: skip
    board = {"KOKUBAN_NATS_URL": nats_server.url}
    started("supervisor", env=board)
    started("worker", "planner", "--model", script(), env=board)
    slow = started(
        "worker", "coder", "--model", script(delay_seconds=600), "--drain-seconds", "0.3", "--home", "home", env=board
    )  # fmt: skip
    kokuban("submit", "Fix add", "--workspace", workspace, env=board)
    assert slow.stderr is not None
    assert any("event=claimed" in line for line in slow.stderr)
    slow.send_signal(signum)
    _, log = slow.communicate(timeout=20)
    assert slow.returncode == 0, log
    assert os.listdir(tmp_path / "home") == []


@linux_only
def test_a_second_signal_ends_a_worker_at_once(
    kokuban: Run, started: Start, nats_server: NatsServer, workspace: Path, script: Callable[..., str]
) -> None:
    board = {"KOKUBAN_NATS_URL": nats_server.url}
    started("supervisor", env=board)
    started("worker", "planner", "--model", script(), env=board)
    slow = started("worker", "coder", "--model", script(delay_seconds=600), "--drain-seconds", "600", env=board)
    kokuban("submit", "Fix add", "--workspace", workspace, env=board)
    assert slow.stderr is not None
    assert any("event=claimed" in line for line in slow.stderr)
    slow.terminate()
    while slow.poll() is None:
        slow.terminate()
    assert slow.returncode == 130
