"""`kokuban export` and `kokuban audit` on a real board, and on the file alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kokuban.blackboard import Client
from support.nats_server import NatsServer
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, edit, plan, script, team, workspace

pytestmark = pytest.mark.anyio


async def kokuban(folder: Path, *arguments: object, url: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
    command = [sys.executable, "-m", "kokuban.console.main", *map(str, arguments)]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=folder, timeout=60,
        env=environment | ({"KOKUBAN_NATS_URL": url} if url else {"KOKUBAN_NATS_URL": "nats://127.0.0.1:9"}),
    )  # fmt: skip


async def test_a_real_task_is_exported_and_proven(nats_server: NatsServer, tmp_path: Path) -> None:
    url = nats_server.url
    edits = [edit("fix", change) for change in (FIX_ADD, FIX_DOUBLE)]
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), *edits)
    async with team(url, model, tmp_path / "team"), await Client.connect(url) as board:
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        assert (await board.result(task, timeout=40)).state == "done"
        other = await board.submit("Fix it too", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        await board.result(other, timeout=40)  # nobody tells the model what to say to this one: it fails

    saved = await kokuban(tmp_path, "export", task, "--out", "task.jsonl", url=url)
    assert saved.returncode == 0, saved.stderr
    head = saved.stderr.rsplit("last hash ", 1)[1].strip()
    lines = (tmp_path / "task.jsonl").read_text("utf-8").splitlines()
    assert head == json.loads(lines[-1])["chain"]
    assert not any(f".{other}." in line for line in lines)
    assert any("kb.ctl.epoch." in line for line in lines)

    alone = await kokuban(tmp_path, "audit", "task.jsonl")  # there is no server at that address
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert head in alone.stdout
    assert "what was delivered is covered by a passing verdict" in alone.stdout
    assert "limits and budgets across tasks" in alone.stdout.partition("Not proved by this:")[2]
    there = await kokuban(tmp_path, "audit", task, "--json", url=url)
    assert there.returncode == 0, there.stdout + there.stderr
    assert json.loads(there.stdout)["counts"]["ends: done"] == 1

    whole = await kokuban(tmp_path, "export", "--out", "-", url=url)
    assert json.loads(whole.stdout.splitlines()[0])["scope"] == "board"
    assert f".{other}." in whole.stdout

    changed = [line.replace('"state\\":\\"done', '"state\\":\\"fail', 1) for line in lines]
    assert changed != lines
    (tmp_path / "task.jsonl").write_text("\n".join(changed) + "\n", "utf-8")
    broken = await kokuban(tmp_path, "audit", "task.jsonl")
    assert broken.returncode == 1
    assert "changed, missing or moved" in broken.stderr


async def test_what_is_not_there_is_named(nats_server: NatsServer, tmp_path: Path) -> None:
    async with await Client.connect(nats_server.url):
        pass  # the board is made
    for arguments, said in (
        (("audit", "t-none"), "t-none"),
        (("export", "t-none", "--out", "x"), "t-none"),
        (("audit", "no/such.jsonl"), "no/such.jsonl"),
        (("audit", "--settings", "nothing", "x.jsonl"), "x.jsonl"),
    ):
        ended = await kokuban(tmp_path, *arguments, url=nats_server.url)
        assert ended.returncode == 2, ended.stderr
        assert said in ended.stderr
    assert list(tmp_path.glob("x*")) == []
