"""A coder at work over every wire: calls of a provider, calls as text, and a second model in place of the first."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.loop import Loop
from kokuban.agents.models import Meter, Price, Prices, open_model
from kokuban.agents.roles._coding import Coding
from kokuban.agents.roles._native import NativeActions
from kokuban.agents.tools import BUILT_IN_TOOLS, Registry
from kokuban.blackboard.wire import Bus
from models.chat_server import DONE, SSE_HEAD, Answer, answer, data, delta, serving, usage
from support.desk import Desk
from support.nats_server import NatsServer
from support.team import CHECK, FILES, FIX_ADD, FIX_DOUBLE

pytestmark = pytest.mark.anyio
STEPS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {"path": "calc.py"}),
    ("edit_file", {"path": "calc.py", "old": FIX_ADD[0], "new": FIX_ADD[1]}),
    ("edit_file", {"path": "calc.py", "old": FIX_DOUBLE[0], "new": FIX_DOUBLE[1]}),
    ("finish", {"summary": "it adds and doubles"}),
]


def openai(n: int, name: str, values: dict[str, Any]) -> bytes:
    call = {"index": 0, "id": f"c{n}", "function": {"name": name, "arguments": json.dumps(values)}}
    return SSE_HEAD + delta(calls=[call]) + delta(finish="tool_calls") + usage(100, 10) + DONE


def text(n: int, name: str, values: dict[str, Any]) -> bytes:
    said = f"Step {n}.\n<tool_call>\n{json.dumps({'name': name, 'arguments': values})}\n</tool_call>"
    return SSE_HEAD + delta(said) + delta(finish="stop") + usage(100, 10) + DONE


def anthropic(n: int, name: str, values: dict[str, Any]) -> bytes:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "c", "usage": {"input_tokens": 100, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": f"t{n}", "name": name}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": json.dumps(values)},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    return SSE_HEAD + b"".join(data(event) for event in events)


async def worked(meter: Meter, nats: NatsServer, home: Path) -> int:
    """Let a coder fix the files; what it cost in millionths of a dollar."""
    async with await Bus.connect(nats.url) as bus:
        desk = await Desk.open(bus, FILES, checks=(CHECK,))
        owner = await desk.claimed(await desk.order())
        work = await desk.work(owner, home, meter=meter, native_tools=True)
        coding = await Coding.begin(work)
        tools = Registry([tool for tool in BUILT_IN_TOOLS if tool.name in ("read_file", "edit_file", "run_checks")])
        await Loop(work, NativeActions(coding, tools), tools, coding.context).run()
        assert coding.now.passed
        return work.ledger.spent.micros


@pytest.mark.parametrize(
    ("kind", "write", "text_tools"),
    [("openai", openai, False), ("openai", text, True), ("anthropic", anthropic, False)],
)
async def test_a_coder_works_over_every_wire(
    kind: str, write: Any, text_tools: bool, nats_server: NatsServer, tmp_path: Path
) -> None:
    answers: list[Answer] = [write(n, name, values) for n, (name, values) in enumerate(STEPS)]
    async with serving(*answers) as server:
        model = open_model(f"{kind}-compatible:m", base_url=server.url, env={}, text_tools=text_tools)
        await worked(Meter(model), nats_server, tmp_path / "home")
        await model.aclose()
        assert len(server.bodies) == len(STEPS)
        assert "tools" not in server.bodies[0] if text_tools else server.bodies[0]["tools"]


async def test_a_second_model_finishes_what_the_first_could_not_and_is_paid_at_its_own_price(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    first = [openai(0, *STEPS[0]), answer(402, {"error": {"message": "nothing is paid"}})]
    second = [anthropic(n, *step) for n, step in enumerate(STEPS) if n]
    prices = Prices("1", {
        "openai-compatible:a": Price(Decimal(1), Decimal(1), Decimal(1)),
        "anthropic-compatible:b": Price(Decimal(10), Decimal(10), Decimal(10)),
    })  # fmt: skip
    async with serving(*first) as one, serving(*second) as two:
        models = [
            open_model("openai-compatible:a", base_url=one.url, env={}),
            open_model("anthropic-compatible:b", base_url=two.url, env={}),
        ]
        meter = Meter(models[0], prices=prices, fallbacks=[Meter(models[1], prices=prices)])
        assert await worked(meter, nats_server, tmp_path / "home") == 110 * 1 + 3 * 110 * 10
        await meter.aclose()
        assert (len(one.bodies), len(two.bodies)) == (2, 3)
        turns = two.bodies[0]["messages"]
        assert [block["type"] for block in turns[-1]["content"]] == ["tool_result"]
