"""What a command with bubblewrap around it cannot do; and what is said where there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from kokuban.agents import sandbox
from kokuban.agents.sandbox import Finished, SandboxError, isolation, probed, run
from kokuban.agents.sandbox._isolation import _sizes_known

pytestmark = pytest.mark.anyio
boxed = pytest.mark.skipif(probed().kind != "bubblewrap", reason=str(probed()))


async def box(folder: Path, command: str | list[str], seconds: float = 20) -> Finished:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return await run(command, cwd=work, home=folder / "home", timeout_seconds=seconds, asked="required")


@boxed
async def test_there_is_no_network_not_even_the_boards(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        done = await box(tmp_path, [sys.executable, "-c", code])
        assert not done.ok
        assert "Connection refused" in done.output or "unreachable" in done.output
        open_ = await run(
            [sys.executable, "-c", code], cwd=tmp_path, home=tmp_path / "h", timeout_seconds=20, asked="required",
            network=True,
        )  # fmt: skip
        assert open_.ok, open_.output


@boxed
async def test_only_its_own_folders_can_be_written(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    for target in (beside / "x", Path("/usr/x"), Path("/etc/x"), Path(sys.prefix) / "x"):
        done = await box(tmp_path, f"echo no > '{target}'")
        assert not done.ok, target
        assert not target.exists()
    done = await box(tmp_path, 'echo yes > mine && echo yes > "$HOME/mine" && echo yes > "$TMPDIR/mine" && cat mine')
    assert done.output == "yes\n", done.output
    assert (tmp_path / "work" / "mine").read_text() == "yes\n"


@boxed
@pytest.mark.parametrize(("cwd", "home"), [("home/work", "home"), ("work", "work/home"), ("work", "home")])
async def test_its_own_folders_cannot_be_replaced_by_links(tmp_path: Path, cwd: str, home: str) -> None:
    """Whoever reads them afterwards reads nothing else."""
    (tmp_path / cwd).mkdir(parents=True)
    words = f"cd {tmp_path}; for f in {cwd} {home}; do mv $f $f.away; rm -rf $f; ln -sfn /etc $f; done; true"
    done = await run(words, cwd=tmp_path / cwd, home=tmp_path / home, timeout_seconds=20, asked="required")
    assert done.ok, done.output
    assert (tmp_path / cwd).is_dir()
    assert not (tmp_path / cwd).is_symlink()
    assert not (tmp_path / home).is_symlink()


@boxed
async def test_nobodys_home_and_no_other_process_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    done = await box(
        tmp_path, f"cat '{secret}'; ls -A ~root /home 2>&1; cat /proc/*/environ | tr '\\0' '\\n'; ls /proc"
    )
    assert "canary" not in done.output
    assert not any(line == str(os.getpid()) for line in done.output.splitlines())
    seen = {int(name) for name in done.output.split() if name.isdigit()}
    assert seen <= set(range(1, 40))


@boxed
async def test_of_a_folder_that_keeps_credentials_too_the_programs_alone_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    for name in (".cargo/bin", ".local/bin", ".tool"):
        (user / name).mkdir(parents=True)
        (user / name / f"says{name[:6]}").write_text("#!/bin/sh\necho here\n")
        (user / name / f"says{name[:6]}").chmod(0o755)
    for name in (".cargo/credentials", ".local/token", ".local/share/keyrings/it", ".tool/key", "notes"):
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text("canary-of-somebody")
    monkeypatch.chdir(user)
    monkeypatch.setenv("HOME", str(user))
    entries = [user / ".cargo/bin", user / ".local/bin", user / ".tool", "", ".", user]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, [*entries, os.environ["PATH"]])))
    seen = await box(tmp_path, f"says.cargo; says.local; says.tool; grep -rs canary {user}; true")
    assert seen.output == "here\nhere\nhere\n"
    monkeypatch.setenv("PATH", f"/:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", f"{user}/")
    assert (await box(tmp_path, f"grep -rs canary {user}")).output == ""


@boxed
async def test_a_virtual_environment_of_a_project_finds_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "project" / ".venv"
    venv.create(made)
    packages = next(made.glob("lib/python*/site-packages"))
    (packages / "its_own.py").write_text("print('found')\n")
    monkeypatch.setenv("PATH", f"{made / 'bin'}:{os.environ['PATH']}")
    assert (await box(tmp_path, "python -c 'import its_own'")).output == "found\n"


@boxed
async def test_an_entry_of_the_path_may_be_a_link_into_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tool" / "bin" / "says"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o755)
    (tmp_path / "tool" / "link").symlink_to("bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/tool/bin:{tmp_path}/tool/link:{os.environ['PATH']}")
    assert (await box(tmp_path, "says")).output == "here\n"


@boxed
async def test_it_cannot_become_more(tmp_path: Path) -> None:
    done = await box(tmp_path, "mount -t tmpfs none /mnt; chown 12345 . ; grep CapEff /proc/self/status")
    assert "CapEff:\t0000000000000000" in done.output


@pytest.mark.parametrize("asked", ["none", "required"])
async def test_memory_files_and_time_are_bounded(tmp_path: Path, asked: str) -> None:
    if asked == "required" and probed().kind != "bubblewrap":
        pytest.skip(str(probed()))
    work = tmp_path / "work"
    work.mkdir()
    for code, said in (
        ("x = bytearray(6 * 2**30)", "MemoryError"),
        ("open('big', 'wb').truncate(2 * 2**30)", "File too large"),
        ("import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])", "0"),
    ):
        done = await run(
            [sys.executable, "-c", code], cwd=work, home=tmp_path / "home", timeout_seconds=30,
            asked=asked,  # type: ignore[arg-type]
        )  # fmt: skip
        assert said in done.output or done.signal is not None, done
        assert done.isolation == ("group" if asked == "none" else "bubblewrap")


@boxed
async def test_exit_codes_and_signals_are_told_apart(tmp_path: Path) -> None:
    assert (await box(tmp_path, "exit 3")).exit_code == 3
    killed = await box(tmp_path, "kill -9 $$")
    assert (killed.exit_code, killed.signal) == (None, 9)
    assert (await box(tmp_path, ["no-such-program"])).exit_code == 127


@boxed
async def test_what_is_written_to_memory_is_bounded_and_nobody_elses(tmp_path: Path) -> None:
    """Files of /tmp and /dev/shm are memory, and a limit on each file is none on all of them."""
    if not _sizes_known():
        pytest.skip("this bubblewrap gives no size to a folder in memory")
    for folder in ("/tmp", "/dev/shm"):
        done = await box(tmp_path, f"for n in 1 2 3 4; do head -c 200M /dev/zero > {folder}/$n || exit 9; done")
        assert done.exit_code == 9, done.output
        assert "No space left" in done.output
    done = await box(tmp_path, "touch /dev/x || ls /tmp /dev/shm")
    assert [line for line in done.output.splitlines() if line[:1].isdigit()] == []


@boxed
async def test_a_program_can_lock_and_share_as_anywhere(tmp_path: Path) -> None:
    code = "import multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2])); open('/dev/null', 'w').write('x')"
    done = await box(tmp_path, [sys.executable, "-c", code])
    assert done.output.startswith("[1, 2]"), done.output


# What somebody without privileges runs: the whole of it, by a Python that everybody may read.
_AS_NOBODY = """
import asyncio, sys
from pathlib import Path
from kokuban.agents.sandbox import probed, run
here = Path(sys.argv[1])
async def say():
    done = await run("echo in > x && cat x; touch /usr/y; cat /etc/shadow; id -u; "
                     "grep CapEff /proc/self/status; sleep 60 & echo end", cwd=here, home=here / "home",
                     timeout_seconds=20, asked="required")
    print(done.isolation, done.exit_code, done.left_running)
    print(done.output)
    slow = await run("sleep 60 & sleep 61", cwd=here, home=here / "home", timeout_seconds=0.3, asked="required")
    print("timed out", slow.timed_out)
print(probed())
asyncio.run(say())
"""


@boxed
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become nobody")
def test_an_unprivileged_user_has_it_too() -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies in folders that only their owner may enter
        _as_nobody(Path(folder))


def _as_nobody(seen: Path) -> None:
    python = "/usr/bin/python3"
    known = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, check=False
    )
    if known.stdout.strip() != b"True":
        pytest.skip("needs a Python 3.11 that everybody may read")
    nobody = pwd.getpwnam("nobody")
    seen.chmod(0o755)
    own = seen / "own"
    shutil.copytree(Path(sandbox.__file__).parents[2], seen / "kokuban", ignore=shutil.ignore_patterns("__pycache__"))
    own.mkdir()
    os.chown(own, nobody.pw_uid, nobody.pw_gid)
    command = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", python, "-c"]
    done = subprocess.run(
        [*command, _AS_NOBODY, str(own)], capture_output=True, text=True, timeout=60, check=False, cwd=own,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(seen), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bubblewrap\nbubblewrap 0 True\nin\n"), done.stdout
    assert f"\n{nobody.pw_uid}\nCapEff:\t0000000000000000\nend\n" in done.stdout
    assert "shadow: No such file" in done.stdout
    assert "timed out True" in done.stdout


def test_what_is_required_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    probed.cache_clear()
    try:
        with pytest.raises(SandboxError, match=r"required and not there: bubblewrap \(bwrap\) is not installed"):
            isolation("required")
        assert str(isolation("preferred")) == "group (bubblewrap (bwrap) is not installed)"
    finally:
        probed.cache_clear()


def test_a_setting_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_ISOLATION", "yes")
    with pytest.raises(SandboxError, match="KOKUBAN_ISOLATION: 'yes' is none of"):
        isolation()
