"""What a server refuses is said once, in one line."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer


def test_a_refusal_is_one_line(kokuban: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    async def refused() -> subprocess.CompletedProcess[str]:
        async with EmbeddedServer(tmp_path / "store", sync="default", protected=True) as server:
            async with await Bus.connect(server.url, credentials=server.credential("supervisor")) as bus:
                await ensure_board(bus)
            (tmp_path / "poem.json").write_text("{}")
            given = ("--nats", server.url, "--credentials", server.credential("client"))
            return await asyncio.to_thread(kokuban, "kinds", "add", "poem.json", *given)

    run = asyncio.run(refused())
    assert (run.returncode, run.stdout) == (3, "")
    assert "kb.ctl.kind.poem.1" in run.stderr
    assert len(run.stderr.splitlines()) == 1
