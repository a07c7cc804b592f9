"""A supervisor and workers over a real server, with scripted models; and what any board must satisfy afterwards."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kokuban.agents import Worker
from kokuban.agents.models import Meter, Prices, open_model
from kokuban.agents.policy import default_policy
from kokuban.agents.roles import program_for
from kokuban.blackboard.core import Applied, Board, Stored, fold
from kokuban.blackboard.wire import Bus, Reader, ensure_board
from kokuban.schemas.contracts import Crew, builtin_crew
from kokuban.supervisor import Supervisor
from support.waiting import cancelled, running

CHECK = "sh check.sh"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a + a + 1\n",
    "check.sh": (
        "code=0\n"
        "grep -q 'return a + b' calc.py || { echo 'FAIL: add'; code=1; }\n"
        "grep -qx '    return a + a' calc.py || { echo 'FAIL: double'; code=1; }\n"
        "exit $code\n"
    ),
}
"""Two faults in one file, and a check that starts in a millisecond."""
FIX_ADD = ("    return a - b", "    return a + b")
FIX_DOUBLE = ("    return a + a + 1", "    return a + a")


def workspace(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    """A folder with these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def plan(*steps: tuple[str, str, tuple[str, ...]]) -> dict[str, Any]:
    """A planner's reply: id, role and needs of each step."""
    wanted = [
        {"id": i, "role": role, "goal": f"Do the part named {i}", "needs": list(needs)} for i, role, needs in steps
    ]
    return {"when": {"role": "planner"}, "reply": {"content": {"steps": wanted}}}


def act(step: str | None, tool: str, *, thought: str = "because of the check", **arguments: Any) -> dict[str, Any]:
    """A coder's reply: one action."""
    when = {"role": "coder", **({"step": step} if step else {})}
    return {"when": when, "reply": {"content": {"thought": thought, "tool": tool, "arguments": arguments}}, "times": 1}


def edit(step: str | None, change: tuple[str, str], path: str = "calc.py") -> dict[str, Any]:
    return act(step, "edit_file", path=path, old=change[0], new=change[1])


def finish(step: str | None) -> dict[str, Any]:
    return act(step, "finish", summary="it is done now")


def script(path: Path, *replies: Mapping[str, Any]) -> str:
    """A file for a scripted model; returns what `--model` takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"replies": replies}))
    return f"scripted:{path}"


@asynccontextmanager
async def team(
    url: str, model: str, home: Path, *, crew: Crew | None = None, supervisors: int = 1, workers: int = 1,
    native_tools: bool = False, base_url: str | None = None, roles: Sequence[str] | None = None,
    silence_seconds: float = 5.0, approve: Sequence[str] = (), prices: Prices | None = None,
) -> AsyncIterator[list[Supervisor]]:  # fmt: skip
    """Everything that works on a board, in this process, each over a connection of its own."""
    crew = crew or builtin_crew()
    buses: list[Bus] = []

    async def bus() -> Bus:
        buses.append(await Bus.connect(url))
        return buses[-1]

    leaders = [Supervisor(await bus(), crew=crew, silence_seconds=silence_seconds) for _ in range(supervisors)]
    members = []
    for role, contract in crew.items():
        if roles is not None and role not in roles:
            continue
        for n in range(workers):
            opened = open_model(model, base_url=base_url, env={}) if contract.model else None
            meter = Meter(opened, prices=prices) if opened is not None else None
            members.append(
                Worker(
                    await bus(), contract, program_for(role), home=home / f"{role}-{n}", meter=meter, concurrency=2,
                    native_tools=native_tools, policy=default_policy(approve),
                )
            )  # fmt: skip
    try:
        async with running(*(leader.run() for leader in leaders), *(member.run() for member in members)):
            yield leaders
    finally:
        for one in buses:
            await one.close()


async def records(url: str) -> list[Stored]:
    """Every record on the board."""
    found: list[Stored] = []

    async def keep(stored: Stored) -> None:
        found.append(stored)

    async with await Bus.connect(url) as bus:
        await ensure_board(bus)
        reader = Reader(bus, keep)
        reading = asyncio.create_task(reader.run())
        await asyncio.wait_for(reader.caught_up.wait(), 20)
        await cancelled(reading)
    return found


def audited(stored: Sequence[Stored]) -> tuple[Board, list[Applied]]:
    """Fold a board and check what must hold on every one: one owner at a time, in fence order; each `done` admitted or
    refused once; one end, after which nothing counts; no call settled twice. Returns the board and what each did."""
    board = Board()
    applied = []
    owner: dict[tuple[str, str], int] = {}
    fences: dict[tuple[str, str], int] = {}
    ends: Counter[str] = Counter()
    settled: Counter[tuple[str, str, int, int]] = Counter()
    assert [s.seq for s in stored] == sorted({s.seq for s in stored})
    for one in stored:
        did = fold(board, one)
        applied.append(did)
        if did.ignored or did.record is None or did.task is None:
            continue
        record = did.record
        step = (did.task.id, record.step or "")
        assert not ends[did.task.id], f"{record.type} at {one.seq} counts after the end"
        if record.type == "step.claimed":
            assert step not in owner, f"{step} has two owners"
            assert one.seq > fences.get(step, 0)
            owner[step] = fences[step] = one.seq
        elif record.type in ("step.journal", "step.done", "step.failed", "step.waiting", "artifact"):
            assert record.fence == owner.get(step), f"{record.type} at {one.seq} is not the owner's"
            call = json.loads(bytes(record.body)).get("settles")
            if call:
                settled[(*step, record.fence, call["call"])] += 1
        if record.type in ("step.done", "step.failed", "step.waiting", "step.released", "step.revoked"):
            owner.pop(step, None)
        elif record.type == "task.final":
            ends[did.task.id] += 1
    assert all(n == 1 for n in ends.values())
    assert all(n == 1 for n in settled.values()), "a call was settled twice"
    running_now = Counter(s.role for task in board.tasks.values() for s in task.steps.values() if s.running)
    assert +board.running == running_now
    return board, applied


def types(applied: Sequence[Applied]) -> Counter[str]:
    """How many records of each type counted."""
    return Counter(did.record.type for did in applied if did.record is not None and not did.ignored)
