"""The client: what is accepted is stored, what is watched is gapless, what is refused is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kokuban.blackboard import Client, InvalidTask, KeyInUse, NoSuchTask
from kokuban.blackboard.client import read_sources
from kokuban.blackboard.wire import Bus, BusError, CannotConnect
from kokuban.blackboard.workspace import WorkspaceError, unpack
from kokuban.schemas import TaskSpec, open_record, subjects
from kokuban.schemas.kinds import decode_artifact
from support.nats_server import NatsServer
from support.team import CHECK, FIX_ADD, FIX_DOUBLE, edit, plan, script, team, workspace
from support.waiting import cancelled, eventually

pytestmark = pytest.mark.anyio


async def stored_records(url: str) -> int:
    async with await Bus.connect(url) as bus:
        return await bus.last_seq()


async def test_when_submit_returns_the_task_is_stored(nats_server: NatsServer, tmp_path: Path) -> None:
    files, docs = {"a.py": "x = 1\n", "b/c.txt": "y"}, {"d.md": "# D\n"}
    async with await Client.connect(nats_server.url) as board:
        task = await board.submit(
            "Do it", workspace=workspace(tmp_path / "ws", files), sources=[workspace(tmp_path / "docs", docs)],
            checks=["true"], attempts=2, check_seconds=7, steps=3, tool_calls=0, tokens=500, seconds=9,
        )  # fmt: skip
    nats_server.kill()
    nats_server.restart()
    async with await Bus.connect(nats_server.url) as bus, await Client.connect(nats_server.url) as board:
        record = await bus.last(subjects.spec(task))
        assert record is not None
        spec = decode_artifact("task", open_record(record.data).body)
        assert isinstance(spec, TaskSpec)
        assert (spec.attempts, spec.check_seconds, spec.steps, spec.tool_calls) == (2, 7, 3, 0)
        assert (spec.tokens, spec.seconds, spec.checks) == (500, 9, ("true",))
        tree = unpack(await board._payloads.get(spec.workspace))
        assert {path: file.content.decode() for path, file in tree.items()} == files
        assert (await board.status(task)).spec.goal == "Do it"
        assert [t.id for t in await board.tasks()] == [task]


async def test_one_key_is_one_task(nats_server: NatsServer, tmp_path: Path) -> None:
    ws = workspace(tmp_path / "ws")
    async with await Client.connect(nats_server.url) as board, await Client.connect(nats_server.url) as other:
        names = await asyncio.gather(
            *(client.submit("Do it", workspace=ws, key="k") for client in (board, other) for _ in range(5))
        )
        assert len(set(names)) == 1
        assert len(await board.tasks()) == 1
        for change in ({"goal": "Do another"}, {"checks": ["true"]}, {"workspace": None}):
            with pytest.raises(KeyInUse, match="'k'"):
                await board.submit(**{"goal": "Do it", "workspace": ws, "key": "k", **change})  # type: ignore[arg-type]
        assert await board.submit("Do it", workspace=ws, key="k2") != names[0]
        assert await board.submit("Do it", workspace=ws) != await board.submit("Do it", workspace=ws)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"goal": ""}, "goal"), ({"goal": " \n\t"}, "goal"), ({"goal": "x" * 70_000}, "goal"),
        ({"checks": [""]}, "check"), ({"checks": ["true", "  "]}, "check"), ({"checks": ["x" * 5_000]}, "checks"),
        ({"checks": ["true"] * 33}, "checks"), ({"attempts": 0}, "attempts"), ({"attempts": 11}, "attempts"),
        ({"check_seconds": 0}, "check_seconds"), ({"steps": 0}, "steps"), ({"tokens": -1}, "tokens"),
        ({"seconds": 0}, "seconds"), ({"key": "k" * 300}, "key"),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_task_is_named_and_not_stored(
    nats_server: NatsServer, wrong: dict[str, object], field: str
) -> None:
    async with await Client.connect(nats_server.url) as board:
        with pytest.raises(InvalidTask, match=field):
            await board.submit(**{"goal": "Do it", **wrong})  # type: ignore[arg-type]
        assert await board.tasks() == []
    assert await stored_records(nats_server.url) == 0


async def test_a_workspace_or_source_that_cannot_be_read_stores_nothing(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    twice = [workspace(tmp_path / name, {"same.md": name}) for name in ("one", "two")]
    async with await Client.connect(nats_server.url) as board:
        for path in (tmp_path / "missing", tmp_path / "file"):
            with pytest.raises(WorkspaceError):
                await board.submit("Do it", workspace=path)
        for sources in ([tmp_path / "missing"], twice):
            with pytest.raises(InvalidTask, match="source"):
                await board.submit("Do it", sources=sources)
        assert list(read_sources([tmp_path / "file", tmp_path / "one"])) == ["file", "same.md"]
    assert await stored_records(nats_server.url) == 0


async def test_who_is_not_there(nats_server: NatsServer, free_port: Callable[[], int]) -> None:
    async with await Client.connect(nats_server.url) as board:
        for ask in (board.status, board.result, lambda task: anext(aiter(board.watch(task)))):
            with pytest.raises(NoSuchTask, match="t-nobody"):
                await ask("t-nobody")
        for name in ("a.b", "*", ">", "", "A", "x" * 65):
            with pytest.raises(ValueError, match="task"):
                await board.status(name)
        task = await board.submit("Do it")
        for timeout in (0, 0.05):
            with pytest.raises(TimeoutError):
                await board.result(task, timeout=timeout)


async def test_the_url_comes_from_the_environment(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_NATS_URL", nats_server.url)
    async with await Client.connect() as board:
        assert board.url == nats_server.url
    monkeypatch.setenv("KOKUBAN_NATS_URL", "http://nowhere")
    with pytest.raises(CannotConnect):
        await Client.connect()


async def test_a_watch_is_gapless_resumable_and_ends_with_its_task(nats_server: NatsServer, tmp_path: Path) -> None:
    model = script(tmp_path / "s.json", plan(("fix", "coder", ())), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE))
    async with team(nats_server.url, model, tmp_path / "team"), await Client.connect(nats_server.url) as board:
        task = await board.submit("Fix it", workspace=workspace(tmp_path / "ws"), checks=[CHECK])
        live = [event async for event in board.watch(task)]
        outcome = await board.result(task)
        assert outcome.state == "done"
        again = [event async for event in board.watch(task)]
        assert live == again
        assert live[-1].event == "ended"
        assert {e.task for e in live} == {task}
        for event in live[::5]:
            rest = [e async for e in board.watch(task, after=event.seq)]
            assert rest == [e for e in live if e.seq > event.seq]
        other = await board.submit("Somebody else's")
        everything = [event async for event in board.watch(follow=False)]
        assert [e for e in everything if e.task == task] == live
        assert {e.task for e in everything if e.task} == {task, other}
        assert [e.seq for e in everything] == sorted(e.seq for e in everything)
        folder = outcome.as_folder()
        assert list(folder) == ["changes.diff", "files/calc.py", "manifest.json", "report.md"]
        manifest = json.loads(folder["manifest.json"].content)
        assert [part["path"] for part in manifest["parts"]] == ["calc.py"]
        assert manifest["checked"] is True
        assert (await board.status(task)).final is not None


async def test_a_watch_goes_on_through_an_outage(nats_server: NatsServer) -> None:
    async with await Client.connect(nats_server.url) as board, await Client.connect(nats_server.url) as other:
        seen: list[str] = []

        async def watch() -> None:
            async for event in board.watch():
                seen.append(event.text)

        watching = asyncio.create_task(watch())
        await other.submit("before")
        await eventually(lambda: seen == ["before"])
        nats_server.kill()
        during = asyncio.create_task(other.submit("during"))
        nats_server.restart()
        await asyncio.wait_for(during, 15)
        await other.submit("after")
        await eventually(lambda: seen == ["before", "during", "after"], seconds=5)
        await cancelled(watching)


async def test_a_watch_raises_when_the_connection_is_closed_for_good(nats_server: NatsServer) -> None:
    board = await Client.connect(nats_server.url)
    watching = asyncio.create_task(anext(aiter(board.watch())))
    await asyncio.sleep(0)
    await board.close()
    await board.close()
    with pytest.raises(BusError):
        await asyncio.wait_for(watching, 10)


async def test_absence_that_a_replica_behind_the_leader_reports_is_not_believed(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Client.connect(nats_server.url) as board:
        task = await board.submit("before")

        async def knows_nothing(*_: object) -> None:
            return None

        monkeypatch.setattr(Bus, "_direct", knows_nothing)  # every direct read is answered by such a replica
        part = await board.submit("a part of it", parent=task, after=[task], tenant="default")
        assert (await board.cancel(task)).task == task
        assert [event.event async for event in board.watch(part, follow=False)] == ["submitted"]
        with pytest.raises(InvalidTask, match="there is no task 't-none'"):
            await board.submit("of nothing", after=["t-none"])
        with pytest.raises(NoSuchTask):
            await board.cancel("t-none")
