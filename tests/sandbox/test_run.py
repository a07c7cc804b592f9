"""Commands that hang, flood, fork, hide and die: real processes only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.sandbox import Finished, SandboxError, probed, run

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True, params=["none", "required"])
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything below holds with bubblewrap and without."""
    if request.param == "required" and probed().kind != "bubblewrap":
        pytest.skip(str(probed()))
    monkeypatch.setenv("KOKUBAN_ISOLATION", request.param)
    return str(request.param)


async def sh(folder: Path, command: str | list[str], **options: Any) -> Finished:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return await run(command, cwd=work, home=folder / "home", **{"timeout_seconds": 20, **options})


def running_in(folder: Path) -> bool:
    """Whether a process works in a folder; by that, for inside its namespace its number is another."""
    if not sys.platform.startswith("linux"):
        return bool(subprocess.run(["pgrep", "-f", "sleep 6[01]"], capture_output=True, check=False).stdout)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(str(folder)):
                    return True
            except OSError:
                continue  # gone, a zombie, or somebody else's
    return False


def gone(folder: Path) -> bool:
    """Wait, within bounds, for the end of everything in a folder that has been killed."""
    until = time.monotonic() + 10
    while running_in(folder):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def pid_in(file: Path) -> int:
    """The process id that a command writes to a file, as soon as it is whole."""
    until = time.monotonic() + 10
    while not file.exists() or not file.read_text().endswith("\n"):
        assert time.monotonic() < until, f"{file} was not written"
        time.sleep(0.005)
    return int(file.read_text())


async def test_output_and_exit_code(tmp_path: Path) -> None:
    done = await sh(tmp_path, "echo out; echo err >&2; exit 3")
    assert (done.output, done.exit_code, done.signal) == ("out\nerr\n", 3, None)
    assert (done.output_bytes_total, done.truncated, done.timed_out, done.left_running) == (8, False, False, False)
    assert not done.ok
    assert (await sh(tmp_path, ["echo", "a  b; c"])).output == "a  b; c\n"


async def test_a_command_that_does_not_exist_is_a_result(tmp_path: Path) -> None:
    for command in ("no-such-command --x", ["no-such-command"], ["./no/such"]):
        done = await sh(tmp_path, command)
        assert done.exit_code == 127
        assert "not found" in done.output
    assert (await sh(tmp_path, ["/etc/passwd"])).exit_code == 126


async def test_misuse_is_an_exception(tmp_path: Path) -> None:
    for command in ("", [], [""], "a\0b"):
        with pytest.raises(SandboxError, match="empty or holds a NUL"):
            await sh(tmp_path, command)
    with pytest.raises(SandboxError, match="timeout_seconds"):
        await sh(tmp_path, "true", timeout_seconds=0)
    with pytest.raises(SandboxError, match="does not exist"):
        await run("true", cwd=tmp_path / "nowhere", home=tmp_path / "home", timeout_seconds=5)
    with pytest.raises(SandboxError, match="could not be started"):
        await sh(tmp_path, ["echo", "x" * 10_000_000])


async def test_a_signal_is_told_from_an_exit_code(tmp_path: Path) -> None:
    done = await sh(tmp_path, "kill -SEGV $$")
    assert (done.exit_code, done.signal, done.ok) == (None, signal.SIGSEGV, False)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60 & echo hi",
        "(sleep 60 >/dev/null 2>&1 &) ; echo hi",
        "nohup sleep 60 & echo hi",
        "(trap '' HUP TERM INT; sleep 60) & echo hi",
        pytest.param(
            "setsid sleep 60 & sleep 0.1; echo hi", marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc")
        ),
        "while true; do sleep 0.01; done & echo hi",
    ],
)
async def test_a_child_left_behind_holds_nothing_up_and_is_killed(tmp_path: Path, command: str) -> None:
    done = await sh(tmp_path, command)
    assert "hi\n" in done.output
    assert done.exit_code == 0
    assert done.left_running
    assert done.seconds < 10


async def test_the_child_left_behind_is_really_dead(tmp_path: Path) -> None:
    done = await sh(tmp_path, "sleep 60 & true")
    assert done.left_running
    assert gone(tmp_path)


async def test_a_child_that_ends_by_itself_soon_is_not_left_running(tmp_path: Path) -> None:
    done = await sh(tmp_path, "(sleep 0.05; echo late) & echo hi")
    assert done.output == "hi\nlate\n"
    assert not done.left_running


@pytest.mark.parametrize("command", ["sleep 60", "sleep 60 | cat", "trap '' TERM INT HUP; while :; do sleep 60; done"])
async def test_a_timeout_kills_the_whole_group(tmp_path: Path, command: str) -> None:
    done = await sh(tmp_path, f"sleep 61 & {command}", timeout_seconds=0.3)
    assert (done.timed_out, done.exit_code, done.signal) == (True, None, signal.SIGKILL)
    assert done.seconds < 10
    assert gone(tmp_path)


async def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    running = asyncio.create_task(sh(tmp_path, "sleep 60 & echo $! > child; wait"))
    await asyncio.to_thread(pid_in, tmp_path / "work" / "child")
    assert running_in(tmp_path)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_killed_worker_takes_its_command_along(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from kokuban.agents.sandbox import run
        here = Path(sys.argv[1])
        asyncio.run(run("sleep 60 & echo $! > child; wait; true", cwd=here, home=here / "home", timeout_seconds=60))
    """)
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as worker:
        pid_in(tmp_path / "child")
        assert running_in(tmp_path)
        worker.kill()
    assert gone(tmp_path)


async def test_a_flood_keeps_memory_flat_and_keeps_head_and_tail(tmp_path: Path) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        done = await sh(tmp_path, "echo first; yes | head -c 200M; echo last", output_cap_bytes=10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done.exit_code == 0
    assert done.truncated
    assert done.output_bytes_total == 200 * 2**20 + len("first\nlast\n")
    assert done.output.startswith("first\ny\n")
    assert done.output.endswith("y\nlast\n")
    assert len(done.output.encode()) < 10_200
    assert peak < 4 * 2**20


async def test_a_flood_without_end_is_stopped_by_the_clock(tmp_path: Path) -> None:
    done = await sh(tmp_path, "yes", timeout_seconds=0.3, output_cap_bytes=100)
    assert done.timed_out
    assert done.truncated


async def test_bad_utf8_is_shown_and_does_not_break(tmp_path: Path) -> None:
    done = await sh(tmp_path, r"printf 'a\377b\303'")
    assert done.output == "a\ufffdb\ufffd"
    assert not done.truncated


async def test_there_is_no_input_to_wait_for(tmp_path: Path) -> None:
    assert (await sh(tmp_path, "cat; echo end")).output == "end\n"


async def test_the_environment_is_a_short_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "KOKUBAN_API_KEY",
        "KOKUBAN_NATS_URL",
        "NATS_URL",
        "AWS_SECRET_ACCESS_KEY",
        "LD_PRELOAD_X",
    ):
        monkeypatch.setenv(name, "a-secret")
    done = await sh(tmp_path, "env; echo home=$HOME; echo tmp=$TMPDIR; pwd", env_extra={"EXTRA": "1"})
    assert "a-secret" not in done.output
    names = {line.partition("=")[0] for line in done.output.splitlines()}
    assert not any(name.startswith(("KOKUBAN", "NATS")) for name in names)
    assert {"PATH", "HOME", "TMPDIR", "LANG", "EXTRA"} <= names
    assert f"home={tmp_path}/home\n" in done.output
    assert (tmp_path / "home" / "tmp").is_dir()
    assert done.output.endswith(f"{tmp_path}/work\n")


@pytest.mark.parametrize("instead", ["touch $TMPDIR", "ln -s $TMPDIR $TMPDIR", "ln -s $OTHER $TMPDIR", "true"])
async def test_what_it_puts_in_the_place_of_its_temporary_folder_is_left_alone(tmp_path: Path, instead: str) -> None:
    """A file, a circle, or another folder with a file that is named as the runtime's mark."""
    other = tmp_path / "other"
    other.mkdir()
    (other / ".left-running").touch()
    done = await sh(tmp_path, f"rm -r $TMPDIR && {instead} && echo done", env_extra={"OTHER": str(other)})
    assert (done.output, done.ok, done.left_running) == ("done\n", True, False)
    assert (other / ".left-running").exists()


async def test_the_running_python_can_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert (await sh(tmp_path, "python -c 'print(1)'")).output == "1\n"


async def test_the_command_has_a_session_of_its_own(tmp_path: Path, isolated: str) -> None:
    code = "import os, sys; print(os.getsid(0) == int(sys.argv[1]), os.getsid(0) == os.getpgrp() == os.getpid())"
    done = await sh(tmp_path, [sys.executable, "-c", code, str(os.getsid(0))])
    leads = isolated == "none"  # with bubblewrap it is bubblewrap that leads the session
    assert done.output == f"False {leads}\n"
    assert not (await sh(tmp_path, [sys.executable, "-c", "open('/dev/tty')"])).ok  # nor a terminal


@contextlib.contextmanager
def open_files_unchanged() -> Iterator[None]:
    count = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == count


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_commands_run_at_once_without_mixing_and_leave_no_handles(tmp_path: Path) -> None:
    await sh(tmp_path, "true")
    with open_files_unchanged():
        done = await asyncio.gather(
            *(sh(tmp_path, f"sleep 0.05; echo {n}") for n in range(8)), sh(tmp_path, ["no-such"])
        )
    assert [d.output for d in done[:8]] == [f"{n}\n" for n in range(8)]
    assert not any(d.left_running for d in done)
