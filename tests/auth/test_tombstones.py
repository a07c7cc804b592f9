"""Nobody but the leader buries a task: the server refuses it, and what a client may write proves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kokuban.blackboard import Client, Told
from kokuban.blackboard.core import Board, fold
from kokuban.blackboard.wire import Bus, Fence, Forbidden, Written, write
from kokuban.schemas import Tombstone, open_record, seal, subjects
from kokuban.supervisor import Retention, Supervisor
from support.auth_users import Enter
from support.nats_server import NatsServer
from support.waiting import eventually, running

pytestmark = pytest.mark.anyio


async def status_of(task: str, server: NatsServer, home: Path) -> dict[str, Any]:
    """What `kokuban status TASK --json` prints for a client of the tenant red."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
    secret = server.store / "credentials" / "red" / "client.nk"
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kokuban.console.main", "status", task, "--json", "--nats", server.url, cwd=home,
        env=kept | {"KOKUBAN_CREDENTIALS": str(secret)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(command.communicate(), 30)
    assert command.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


async def forge(bus: Bus, task: str) -> bytes:
    """The tombstone that the leader would write, as far as a client can know it."""
    epoch = await bus.last(subjects.epoch(subjects.shard(task)))
    spec = await bus.last(subjects.spec(task))
    assert epoch is not None
    assert spec is not None
    stone = Tombstone("done", "so I say", spec.seq, spec.seq + 1, "default", "once")
    worker = open_record(epoch.data).worker
    return seal(stone, id="forged", type="task.tombstone", task=task, fence=epoch.seq, worker=worker)


async def test_a_forged_tombstone_of_a_running_task_changes_nothing(
    owner: Bus, enter: Enter, guarded: NatsServer, tmp_path: Path
) -> None:
    bus, home = await enter("client"), tmp_path / "home"
    home.mkdir()
    supervisor, board = Supervisor(owner, retention=Retention(finished=timedelta(0))), Client(bus)
    async with running(supervisor.run()):
        task = await board.submit("Mend it", key="once")
        await eventually(lambda: task in supervisor.board.tasks and supervisor.board.tasks[task].steps)
        before = await status_of(task, guarded, home)
        assert before["state"] == "open"
        forged, subject = await forge(bus, task), subjects.buried(task)
        with pytest.raises(Forbidden, match=subject.replace(".", r"\.")):
            await write(bus, subject, forged, op="forged", fence=Fence(subject, 0))
        subject = subjects.spec(task)
        spec = await bus.last(subject)
        assert spec is not None
        stored = await write(bus, subject, forged, op="forged", fence=Fence(subject, spec.seq))
        assert isinstance(stored, Written)  # the server lets it, and it counts for nothing:
        at = stored.seq
        await eventually(lambda: supervisor.board.last_seq >= at)
        whole = Board()
        for record in await bus.history(subjects.BOARD_SUBJECTS):
            fold(whole, record)
        for seen in (supervisor.board.tasks[task], whole.tasks[task], await board.status(task), *await board.tasks()):
            assert (seen.id, seen.final, seen.tombstone) == (task, None, None)
        assert await status_of(task, guarded, home) == before
        assert await board.submit("Mend it", key="once") == task
        with pytest.raises(TimeoutError):
            await board.result(task, timeout=0)
        told = [event.event async for event in board.watch(task, follow=False)]
        assert told[0] == "submitted"
        assert told[-1] == "ignored"
        assert "ended" not in told
        assert "archived" not in told

        assert isinstance(await board.cancel(task, "enough"), Told)
        assert (await board.result(task, timeout=20)).state == "cancelled"

        async def buried() -> bool:
            found = await bus.history(subjects.task_records(task))
            return [one.subject for one in found] == [subjects.buried(task), subjects.spec(task)]

        await eventually(buried)
        ended = await status_of(task, guarded, home)
        assert (ended["state"], ended["archived"]) == ("cancelled", True)
        assert await board.submit("Mend it", key="once") == task
