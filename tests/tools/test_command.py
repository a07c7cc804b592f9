"""A command of the model's own: bounded, kept apart, told as it ended, and nothing of it stays."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.sandbox import SandboxError, probed
from kokuban.agents.tools import Arguments, Invalid, Observation, Registry, ToolContext, execute
from kokuban.agents.tools.command import KEPT_OUTPUT_BYTES, RUN_COMMAND
from kokuban.agents.tools.output import READ_OUTPUT
from kokuban.blackboard.workspace import File, scan
from kokuban.schemas import digest

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]
needs_bubblewrap = pytest.mark.skipif(probed().kind != "bubblewrap", reason="bubblewrap does not work here")


@pytest.fixture(params=["preferred", "none"])
def here(request: pytest.FixtureRequest, context: Make, monkeypatch: pytest.MonkeyPatch) -> ToolContext:
    """With whatever isolation this machine has, and without any."""
    monkeypatch.setenv("KOKUBAN_ISOLATION", request.param)
    return context()


async def run(here: ToolContext, command: Any, **more: Any) -> Observation:
    judged = Registry([RUN_COMMAND]).validate("run_command", {"command": command, **more})
    assert isinstance(judged, Arguments), judged
    return await execute(judged, here)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat src/dos.txt", "one\ntwo\n=> exit code 0"),
        (["cat", "src/dos.txt"], "one\ntwo\n=> exit code 0"),
        (["echo", "$HOME; `id`"], "$HOME; `id`\n=> exit code 0"),
        ("echo out; echo err >&2; exit 3", "out\nerr\n=> exit code 3"),
        (["no-such-program"], "no-such-program: not found; no such command\n=> exit code 127"),
        ("kill -9 $$", "\n=> was killed by signal 9"),
        ("true", "(no output)\n=> exit code 0"),
    ],
)
async def test_what_is_said_is_how_it_ended(here: ToolContext, command: Any, said: str) -> None:
    seen = await run(here, command)
    assert seen.ok
    assert seen.text.replace("; not isolated", "").endswith(said)
    assert said.startswith("\n") or seen.text.startswith(said)


async def test_time_is_bounded_and_nothing_is_left_running(here: ToolContext) -> None:
    begun = time.monotonic()
    seen = await run(here, "sleep 60 | cat", timeout_seconds=1)
    assert "timed out after 1 s and was killed" in seen.text
    seen = await run(here, "sleep 60 & echo hi")
    assert seen.text.startswith("hi\n=> exit code 0; it left processes running")
    assert time.monotonic() - begun < 30


async def test_what_it_writes_is_named_and_not_kept(here: ToolContext) -> None:
    before = scan(here.checkout)
    seen = await run(here, "echo x > new.txt; rm README.md; echo y >> src/app.py; ln -s /etc/passwd tests/link")
    assert "not kept" in seen.text
    seen = await run(here, "echo x > new.txt; rm README.md; echo y >> src/app.py")
    assert seen.text.splitlines()[-1] == (
        "[not kept, write them with the file tools if you want them: README.md, new.txt, src/app.py]"
    )
    assert scan(here.checkout) == before
    assert [path for path in here.home.iterdir() if path.name.startswith("command-")] == []
    assert (await run(here, "ls new.txt; pwd")).text.startswith("ls: ")


async def test_long_output_is_kept_and_read_on_in(here: ToolContext) -> None:
    kept: dict[str, bytes] = {}

    async def keep(data: bytes) -> str:
        kept[digest(data)] = data
        return digest(data)

    async def give(name: str) -> bytes | None:
        return kept.get(name)

    here = dataclasses.replace(here, keep=keep, kept=give)
    seen = await run(here, "seq 1 20000; exit 7")
    assert len(seen.text.encode()) <= RUN_COMMAND.result_cap_bytes + 200
    assert "=> exit code 7" in seen.text
    (name,) = re.findall(r"digest (sha256:\S+)", seen.text)
    judged = Registry([READ_OUTPUT]).validate("read_output", {"digest": name, "offset": 50_000})
    assert isinstance(judged, Arguments)
    assert (await execute(judged, here)).text.startswith(kept[name][50_000:50_020].decode())
    assert kept[name].decode().splitlines()[:20_000] == [str(n) for n in range(1, 20_001)]
    seen = await run(here, "yes | head -c 20000000")
    assert max(map(len, kept.values())) < KEPT_OUTPUT_BYTES + 500


@needs_bubblewrap
async def test_isolated_it_reaches_no_network_and_no_other_folder(
    context: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOKUBAN_ISOLATION", "required")
    monkeypatch.setenv("KOKUBAN_API_KEY", "not-for-commands")
    here = context()
    (tmp_path / "secret").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        seen = await run(here, ["python3", "-c", probe])
        assert "exit code 1" in seen.text
        with pytest.raises(BlockingIOError):
            listening.accept()
    seen = await run(here, f"cat {tmp_path}/secret; echo x > {tmp_path}/new; ls {here.checkout}; env")
    assert "mine" not in seen.text
    assert "not-for-commands" not in seen.text
    assert "app.py" not in seen.text
    assert sorted(os.listdir(tmp_path)) == ["checkout", "home", "secret"]
    assert "not isolated" not in seen.text


async def test_where_isolation_is_required_and_not_there_nothing_runs(
    context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(asked: object = None) -> None:
        raise SandboxError("isolation is required and not there: test")

    monkeypatch.setattr("kokuban.agents.sandbox._run.isolation", refuse)
    seen = await run(context(), "echo ran")
    assert not seen.ok
    assert seen.known
    assert "was not run: isolation is required" in seen.text


async def test_a_cancelled_command_is_killed_and_its_copy_removed(here: ToolContext) -> None:
    running = asyncio.create_task(run(here, "touch begun; sleep 60"))
    begun = asyncio.create_task(_begun(here.home))
    await asyncio.wait_for(begun, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [path for path in here.home.iterdir() if path.name.startswith("command-")] == []


async def _begun(home: Path) -> None:
    while not [path for path in home.glob("command-*/workspace/begun") if path.exists()]:  # noqa: ASYNC110 - another process's file
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "values",
    [{}, {"command": ""}, {"command": []}, {"command": [1]}, {"command": "x", "timeout_seconds": 0},
     {"command": "x", "timeout_seconds": 601}, {"command": "x", "cwd": "/"}, {"command": "x" * 8_001}],
)  # fmt: skip
def test_what_is_no_command_is_refused(values: dict[str, Any]) -> None:
    assert isinstance(Registry([RUN_COMMAND]).validate("run_command", values), Invalid)


async def test_odd_files_and_nul_are_explained(context: Make) -> None:
    here = context({"a": File(b"x").content})
    assert "holds a NUL" in (await run(here, ["echo", "a\0b"])).text
    assert "empty or holds" in (await run(here, ["", "x"])).text
    os.mkfifo(here.checkout / "pipe")
    seen = await run(here, "cat pipe")
    assert not seen.ok
    assert "no command can be run on these files" in seen.text


def test_a_person_is_asked_and_it_is_never_made_again() -> None:
    assert (RUN_COMMAND.tier, RUN_COMMAND.effect, RUN_COMMAND.on_files) == ("consequential", "other", False)
