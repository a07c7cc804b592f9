"""Playing a whole task with scripted models, and telling how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kokuban.blackboard import Client, Event, Outcome
from kokuban.blackboard.core import Board
from support.team import (
    CHECK,
    FILES,
    audited,
    records,
    script,
    team,
    workspace,
)


class Played:
    """How a task went."""

    def __init__(self, task: str, outcome: Outcome, events: list[Event], board: Board) -> None:
        self.task, self.outcome, self.events, self.board = task, outcome, events, board

    def artifacts(self, kind: str, step: str | None = None) -> list[Any]:
        return [e.artifact() for e in self.events if e.kind == kind and step in (None, e.step)]

    def happened(self, event: str, step: str) -> list[Event]:
        return [e for e in self.events if (e.event, e.step) == (event, step)]


async def play(
    url: str, home: Path, *replies: dict[str, Any], files: dict[str, str] = FILES, docs: dict[str, str] | None = None,
    checks: Sequence[str] = (CHECK,), native: bool = False, **spec: Any,
) -> Played:  # fmt: skip
    model = script(home / "script.json", *replies)
    sources = [workspace(home / "docs", docs)] if docs else []
    async with team(url, model, home / "team", native_tools=native), await Client.connect(url) as board:
        async with asyncio.timeout(60):
            task = await board.submit(
                "Make adding and doubling pass the checks",
                workspace=workspace(home / "ws", files),
                sources=sources,
                checks=checks,
                **spec,
            )
            events = [event async for event in board.watch(task)]
            outcome = await board.result(task)
    folded, applied = audited(await records(url))
    assert [did.ignored for did in applied if did.ignored] == []
    return Played(task, outcome, events, folded)


def find(source: str, quote: str, statement: str = "That is what it says") -> dict[str, Any]:
    content = {"findings": [{"source": source, "quote": quote, "statement": statement}]}
    return {"when": {"role": "researcher"}, "reply": {"content": content}, "times": 1}
