"""kokuban auth, and the commands that need a credential: in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kokuban.blackboard.wire._permissions import PLAIN, permissions, user_of
from kokuban.console._crew import children
from kokuban.schemas.contracts import builtin_crew
from support.nats_server import NatsServer
from support.processes import KILL_SECONDS

COMMAND = [sys.executable, "-m", "kokuban.console.main"]
SEED = re.compile(r"SU[A-Z2-7]{56}")
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}


@pytest.fixture
def kokuban(tmp_path: Path, env: dict[str, str]) -> Run:
    """Runs a command to its end."""

    def run(*args: object, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, args)], cwd=tmp_path, env=env | more, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def start(tmp_path: Path, env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command; what still runs is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*args: object, **more: str) -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                [*COMMAND, *map(str, args)], cwd=tmp_path, env=env | more, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )
        )  # fmt: skip
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate(timeout=KILL_SECONDS)


def test_init_writes_what_a_server_takes_and_says_it(tmp_path: Path, kokuban: Run) -> None:
    done = kokuban("auth", "init", "board", "--tenant", "red", "--tenant", "blue", "--approver", "ann")
    assert done.returncode == 0, done.stderr
    listed = [line.partition(":")[0] for line in done.stdout.splitlines()]
    there = {str(path.relative_to(tmp_path)) for path in (tmp_path / "board").rglob("*") if path.is_file()}
    assert set(listed) == there - {"board/accounts.conf"}
    assert "nats-server -c server.conf" in done.stderr
    assert "--credentials board/red" in done.stderr
    assert not SEED.search(done.stdout + done.stderr)
    program = Path(sys.executable).with_name("nats-server")
    checked = subprocess.run(
        [program, "-t", "-c", "server.conf"], cwd=tmp_path / "board", capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    before = {path: path.read_bytes() for path in (tmp_path / "board").rglob("*") if path.is_file()}
    again = kokuban("auth", "init", "board")
    assert (again.returncode, "auth add" in again.stderr) == (2, True)
    assert {path: path.read_bytes() for path in before} == before
    more = kokuban("auth", "add", "board", "--approver", "bob")
    assert [line.partition(":")[0] for line in more.stdout.splitlines()] == [
        "board/blue/approver-bob.nk", "board/red/approver-bob.nk",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "x", "--tenant", "A b"), ("init", "x", "--approver", "../ann"), ("init", "x", "--role", "none.toml"),
        ("add", "x", "--approver", "ann"), ("show", "role-juggler"), ("show", "nobody"), ("init", ""),
    ],
)  # fmt: skip
def test_wrong_input_writes_nothing(tmp_path: Path, kokuban: Run, arguments: tuple[str, ...]) -> None:
    done = kokuban("auth", *arguments)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_show_is_what_the_server_is_told(kokuban: Run) -> None:
    shown = [json.loads(line) for line in kokuban("auth", "show", "--json").stdout.splitlines()]
    crew = builtin_crew()
    users = {one["user"]: one for one in shown}
    assert set(users) == {*(one.id for one in PLAIN), *(f"role-{role}" for role in crew), "approver-ann"}
    for user, one in users.items():
        assert tuple(one["publish"]) == permissions(user_of(user), crew).publish


def test_a_process_of_the_crew_is_told_its_own_secret_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_CREDENTIALS", "/somebody/elses.nk")
    crew = children(
        ["coder", "verifier"], url="nats://h:4222", folder=tmp_path, model=None, drain_seconds=1,
        credentials=tmp_path / "red",
    )  # fmt: skip
    told = {child.name: child.env["KOKUBAN_CREDENTIALS"] for child in crew}
    assert told == {
        "supervisor": f"{tmp_path}/red/supervisor.nk", "coder": f"{tmp_path}/red/role-coder.nk",
        "verifier": f"{tmp_path}/red/role-verifier.nk",
    }  # fmt: skip
    assert not any("red" in word for child in crew for word in child.argv)
    bare = children(["coder"], url="nats://h:4222", folder=tmp_path, model=None, drain_seconds=1)
    assert all("KOKUBAN_CREDENTIALS" not in child.env for child in bare)


@pytest.mark.parametrize(
    ("command", "user", "needed"),
    [
        (("worker", "verifier"), "role-integrator", "role-verifier"),
        (("supervisor",), "client", "supervisor"),
        (("submit", "Do it"), "watcher", "client"),
    ],
)
def test_the_wrong_credential_ends_the_command_and_names_the_right_one(
    guarded: NatsServer, kokuban: Run, start: Callable[..., subprocess.Popen[str]], command: tuple[str, ...], user: str,
    needed: str,
) -> None:  # fmt: skip
    folder = guarded.store / "credentials" / "red"
    start("supervisor", "--nats", guarded.url, "--credentials", folder)
    assert eventually_there(kokuban, guarded.url, folder)
    done = kokuban(*command, "--nats", guarded.url, KOKUBAN_CREDENTIALS=str(folder / f"{user}.nk"))
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"the user {user} may not" in last
    assert needed in last.partition("that is for")[2]
    assert not SEED.search(done.stderr)


def eventually_there(kokuban: Run, url: str, folder: Path) -> bool:
    """Whether the board is made within some tries, each of which waits a process's start."""
    return any(kokuban("status", "--nats", url, "--credentials", folder).returncode == 0 for _ in range(20))


def test_without_a_credential_the_way_out_is_said(guarded: NatsServer, kokuban: Run) -> None:
    done = kokuban("status", "--nats", guarded.url)
    assert done.returncode == 3
    assert "--credentials" in done.stderr
    done = kokuban("status", "--nats", guarded.url, "--credentials", "missing.nk")
    assert (done.returncode, "missing.nk" in done.stderr) == (2, True)


def test_a_crew_on_a_server_with_accounts(
    tmp_path: Path, guarded: NatsServer, kokuban: Run, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Each process with its own secret; a task from its submission to its end; another tenant sees nothing of it."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.txt").write_text("old")
    model = tmp_path / "script.json"
    plan = {"steps": [{"id": "fix", "role": "coder", "goal": "Write new", "needs": []}]}
    edit = {"thought": "write", "tool": "write_file", "arguments": {"path": "a.txt", "content": "new"}}
    model.write_text(
        json.dumps(
            {
                "replies": [
                    {"when": {"role": "planner"}, "reply": {"content": plan}},
                    {"when": {"role": "coder"}, "reply": {"content": edit}},
                ]
            }
        )
    )
    red, blue = (guarded.store / "credentials" / tenant for tenant in ("red", "blue"))
    up = start("up", "--nats", guarded.url, "--credentials", red, "--store", "logs", "--model", f"scripted:{model}")
    assert up.stdout is not None
    assert "up" in up.stdout.readline()
    at = ("--nats", guarded.url, "--credentials", red)
    task = kokuban("submit", "Write new", "--workspace", "w", "--check", "grep new a.txt", *at).stdout.strip()
    result = kokuban("result", task, "--timeout", "40", *at)
    assert result.returncode == 0, result.stderr + result.stdout
    start("supervisor", "--nats", guarded.url, "--credentials", blue)
    assert eventually_there(kokuban, guarded.url, blue)
    assert kokuban("status", task, "--nats", guarded.url, "--credentials", blue).returncode == 2
    watcher = kokuban("watch", task, "--json", "--nats", guarded.url, KOKUBAN_CREDENTIALS=str(red / "watcher.nk"))
    assert json.loads(watcher.stdout.splitlines()[-1])["event"] == "ended"
    up.send_signal(signal.SIGINT)
    said = "".join(up.communicate(timeout=40))
    logs = "".join(path.read_text() for path in (tmp_path / "logs" / "logs").iterdir())
    assert not SEED.search(said + logs)
    assert "not permitted" not in logs


def test_a_store_is_opened_from_its_folder_and_an_approver_added_while_it_runs(
    tmp_path: Path, kokuban: Run, start: Callable[..., subprocess.Popen[str]], env: dict[str, str]
) -> None:
    up = start("up", "--port", "0", "--roles", "verifier")
    assert up.stdout is not None
    url = up.stdout.readline().removeprefix("Kokuban is up at ").strip()
    assert kokuban("status", "--nats", url).returncode == 0  # the store is the one of this folder
    code = (
        "import asyncio; from kokuban.blackboard import Client\n"
        f"async def main():\n  async with await Client.connect({url!r}) as board: print(len(await board.tasks()))\n"
        "asyncio.run(main())"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == "0", found.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    asked = [*COMMAND, "status", "--nats", url]
    assert subprocess.run(asked, cwd=elsewhere, env=env, capture_output=True, timeout=60).returncode == 3
    secrets = tmp_path / ".kokuban" / "credentials"
    named = [*asked, "--credentials", str(secrets / "default" / "client.nk")]
    assert subprocess.run(named, cwd=elsewhere, env=env, capture_output=True, timeout=60).returncode == 0
    assert kokuban("auth", "add", secrets, "--approver", "ann").returncode == 0
    ann = secrets / "default" / "approver-ann.nk"
    assert any(kokuban("status", "--nats", url, "--credentials", ann).returncode == 0 for _ in range(10))
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=40)
