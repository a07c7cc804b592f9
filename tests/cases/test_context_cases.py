"""Conversations that systems of this kind cut in the wrong place, could not make smaller, or asked again
after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents._work import StepFailed
from kokuban.agents.loop import Loop
from kokuban.agents.models import Message, Meter, ModelOverflow, Reply
from kokuban.agents.roles._acts import Acts, Given
from kokuban.agents.tools import Tool, ToolContext
from kokuban.blackboard.wire import Bus
from support.bench import OBJECT, Bench, Benches, Says, call, says
from support.desk import Desk
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio
GOAL = Message("user", "Goal: read on. Never touch check.sh.")
END = says(call("give_note", '{"path":"x"}'))


class Dies(BaseException): ...


class Windowed(Says):
    """A model with a window of its own."""

    context_tokens: int | None = None

    def __init__(self, window: int | None, *replies: Reply | BaseException) -> None:
        super().__init__(*replies)
        self.context_tokens = window


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


def reads(first: int, last: int) -> list[Reply]:
    """Turns that read one page each; the server says that nothing was used."""
    return [says(call("read", f'{{"path":"page-{n}"}}'), tokens=0) for n in range(first, last)]


async def talk(
    b: Bench, window: int | None, *replies: Reply | BaseException, goal: Message = GOAL
) -> tuple[Windowed, list[str]]:
    """Let a role without code work; the model, and the pages that were really read."""
    pages, model, given = list[str](), Windowed(window, *replies), Given()

    def read(context: ToolContext, values: Mapping[str, Any]) -> str:
        pages.append(values["path"])
        return f"{values['path']} says {'word ' * 300}"

    b.tools.add(Tool("read", "", OBJECT, read, "read", "read"))
    b.tools.add(given.tool("note", OBJECT))
    b.work.meter, b.work.max_output_tokens = Meter(model), 200
    try:
        await Loop(b.work, Acts(b.work, [goal], b.tools, given), b.tools, b.context).run()
    except Dies:
        pass
    return model, pages


MORE: dict[str, Any] = {"steps": 60, "tool_calls": 60, "tokens": 900_000}


async def test_g2_it_is_made_smaller_though_the_server_reports_nothing_used(bench: Benches) -> None:
    model, pages = await talk(await bench(**MORE), 4_000, *reads(0, 20), END)
    assert len(pages) == 20
    assert "earlier turns, left out" in model.requests[-1].messages[1].content
    assert all(asked.messages[0] == GOAL for asked in model.requests)
    assert len(model.requests[1].messages) == 3, "not from the first message on"


@pytest.mark.parametrize(
    ("window", "overflow"),
    [(4_000, []), (None, [ModelOverflow("9,000 of 8,192 tokens", spent=False)])],
    ids=["by its own estimate", "because the server says so"],
)
@pytest.mark.parametrize("after", [1, 4])
async def test_g1_who_takes_it_up_asks_the_same_and_buys_nothing_twice(
    bench: Benches, window: int | None, overflow: list[BaseException], after: int
) -> None:
    first, pages = await talk(
        await bench(**MORE), window, *reads(0, 8), *overflow, *reads(8, 8 + after), Dies(), goal=GOAL
    )
    assert len(pages) == 8 + after
    sizes = [len(asked.messages) for asked in first.requests]
    assert sizes != sorted(sizes), "it was made smaller on the way"
    second, more = await talk(await bench(resumes=True, **MORE), window, *reads(8 + after, 10 + after), END)
    assert second.requests[0] == first.requests[-1], "the one that was never answered"
    assert second.asked == 3
    assert more == [f"page-{n}" for n in range(8 + after, 10 + after)]


async def test_g2_what_no_shortening_makes_fit_ends_the_step_by_name(bench: Benches) -> None:
    with pytest.raises(StepFailed, match="does not fit the model") as caught:
        await talk(await bench(**MORE), 2_000, END, goal=Message("user", "word " * 4_000))
    assert caught.value.why == "tokens"
    overflows = [ModelOverflow("too large", spent=False)] * 2
    with pytest.raises(StepFailed, match="made smaller too") as caught:
        await talk(await bench(**MORE), None, *reads(0, 8), *overflows)
    assert caught.value.why == "tokens"
