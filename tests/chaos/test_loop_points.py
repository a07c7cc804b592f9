"""A worker killed at every named point of the loop: no settled call is bought twice, and no effect is doubled.

Each chain of points has a task and a role of its own. The task's first attempt leads nowhere; the second begins with a
critique, reads something that is busy at first, posts (keyed), wires (an effect without a key, which can be looked up),
and is then told that its request is too large. A process is killed at each point of the chain, one after the other; one
that lives finishes.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.roles import BUILT_IN
from kokuban.blackboard import Client
from kokuban.blackboard.audit import Message, Settings, audit
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from support import run_clerk
from support.nats_server import NatsServer
from support.processes import child, linux_only
from support.team import audited, records, script, team

pytestmark = [pytest.mark.anyio, linux_only, pytest.mark.timeout(240)]

CHAINS: dict[str, tuple[str, ...]] = {
    "failed-before": ("failed:before",),
    "failed-after": ("failed:after",),
    "reflect-before": ("reflect:before",),
    "reflect-after": ("reflect:after",),
    "read-before": ("tool:before#3",),
    "retry-before": ("retry:before",),
    "retry-after": ("retry:after", "retry:after"),
    "keyed-before": ("tool:before#6",),
    "keyed-after": ("tool:after#6",),
    "other-before": ("tool:before#7", "reconcile:before", "reconcile:after"),
    "other-after": ("tool:after#7", "reconcile:after", "tool:after"),
    "settled": ("journal:after#13",),
    "unsettled": ("journal:before#13",),
    "compact-before": ("compact:before",),
    "compact-after": ("compact:after", "compact:after"),
    "given": ("done:before", "done:after"),
}
"""Name to the points at which one process after the other is killed. The numbers count the tool calls of one life: two
of `note`, three tries of `ask`, `post`, `wire`."""
OPEN = Counter({"failed-before": 1, "unsettled": 1, "compact-before": 1, "compact-after": 2})
"""Chains whose processes were killed between a model's reply and the line that settles it: these calls alone are made
again, once for each kill. What was too large for the model was refused, and is refused again."""
GOAL = "Do it, clerk"


class World:
    """The model, and the other side of the tools. What it answers depends on what it is sent alone."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.requests: list[tuple[str, str, str]] = []  # tool, task, key
        self.log: list[dict[str, Any]] = []
        self.overflowed: Counter[str] = Counter()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head.split("\r\n")[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            path = head.split()[1]
            if path.endswith("/chat/completions"):
                status, answer = self.model(json.loads(body))
            else:
                status, answer = self.tool(path.removeprefix("/"), headers["task"], headers["key"])
            data = answer.encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                f"Connection: close\r\n\r\n".encode()
                + data
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # its client was killed
        finally:
            writer.close()

    def tool(self, name: str, task: str, key: str) -> tuple[int, str]:
        before = [(t, k) for tool, t, k in self.requests if tool == name and t == task]
        self.requests.append((name, task, key))
        if name == "wired":
            return 200, "wired before" if ("wire", task, key) in self.requests else ""
        if name == "ask" and len(before) < 2:
            return 503, ""
        if name in ("post", "wire"):
            applied = name == "wire" or (task, key) not in before
            self.log.append({"key": key, "time": time.time(), "applied": applied, "honours": name == "post"})
        return 200, {"note": "noted", "ask": f"a long text {'words ' * 500}"}.get(name, f"{name} is done")

    def model(self, body: dict[str, Any]) -> tuple[int, str]:
        messages = body["messages"]
        text = "\n".join(str(m.get("content") or "") for m in messages)
        self.asked[json.dumps(body, sort_keys=True)] += 1
        results = [m for m in messages if m["role"] == "tool"]
        if "You judge one attempt" in text:
            return 200, completion("Notes lead nowhere. Ask, post, wire, then give the answer.")
        if "Critiques of earlier attempts" not in text:
            return 200, completion(call=("note", "{}"))
        if len(text) > 2_500 and len(results) >= 3:
            return 400, json.dumps({"error": {"message": "maximum context length", "code": "context_length_exceeded"}})
        if len(results) < 3 and "wired before" not in text and "wire is done" not in text:
            return 200, completion(call=(("ask", "post", "wire")[len(results)], "{}"))
        return 200, completion(call=("give_answer", '{"text": "done"}'))


def completion(content: str = "", call: tuple[str, str] | None = None) -> str:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if call is not None:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call-{call[0]}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
    return json.dumps(
        {"id": "x", "model": "m", "choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 5}}
    )


async def test_killed_at_every_point_of_the_loop(nats_server: NatsServer, tmp_path: Path) -> None:
    world, url = World(), nats_server.url
    server = await asyncio.start_server(world.handle, "127.0.0.1", 0)
    there = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    plans = [
        {
            "when": {"role": "planner", "contains": f"{GOAL}-{name}."},
            "reply": {"content": {"steps": [
                {"id": "do", "role": f"clerk-{name}", "goal": f"Do it as {name}", "needs": []}
            ]}},
        }
        for name in CHAINS
    ]  # fmt: skip
    async with await Bus.connect(url) as bus:
        await ensure_board(bus)
        await register_kind(bus, "answer", json.dumps(run_clerk.ANSWER).encode())
        for name in CHAINS:
            await register_role(bus, run_clerk.contract(f"clerk-{name}"))
    at_once = asyncio.Semaphore(4)

    async def one(name: str, board: Client) -> str:
        """A chain's task, its processes that die, and one that lives; the task."""
        async with at_once:
            task = await board.submit(f"{GOAL}-{name}.", attempts=2)
            arguments = (f"clerk-{name}", url, str(tmp_path / name), f"{there}/v1", there)
            for point in CHAINS[name]:
                async with child(str(run_clerk.__file__), *arguments, crash_at=point) as process:
                    code = await asyncio.wait_for(process.wait(), 40)
                    assert code == -signal.SIGKILL, f"{name}: {point} was not reached: it ended with {code}"
            async with child(str(run_clerk.__file__), *arguments):
                outcome = await board.result(task, timeout=60)
            assert outcome.state == "done", f"{name}: {outcome.reason}"
            return task

    model = script(tmp_path / "s.json", *plans)
    try:
        async with (
            team(url, model, tmp_path / "team", roles=BUILT_IN, silence_seconds=2.5),
            await Client.connect(url) as board,
        ):
            tasks = dict(zip(CHAINS, await asyncio.gather(*(one(name, board) for name in CHAINS)), strict=True))
    finally:
        server.close()
        await server.wait_closed()

    stored = await records(url)
    _, applied = audited(stored)
    for name, task in tasks.items():
        assert [a.ref.kind for did in applied for a in did.admitted if did.task and did.task.id == task] == [
            "plan", "answer", "deliverable", "verdict"
        ]  # fmt: skip
        keys = {tool: [key for t, at, key in world.requests if (t, at) == (tool, task)] for tool in ("post", "wire")}
        assert len(keys["wire"]) == 1, f"{name}: wired {len(keys['wire'])} times"
        assert len(set(keys["post"])) == 1, f"{name}: posted under the keys {keys['post']}"
        assert len(keys["post"]) == (2 if name.startswith("keyed-after") else 1), name
    settings = Settings(effects={"post": "keyed", "wire": "other"})
    report = audit([Message(s.seq, s.subject, s.time, s.data) for s in stored], settings, effects=world.log)
    assert report.violations == ()
    assert report.counts["effects exactly once"] == 2 * len(CHAINS)
    assert report.counts["effects reconciled"] >= 2
    again: Counter[str] = Counter()
    for body, n in world.asked.items():
        found = re.search("|".join(rf"(?:clerk-|Do it as ){name}\b" for name in CHAINS), body)
        again[found[0].removeprefix("clerk-").removeprefix("Do it as ") if found else body[:200]] += n - 1
    print("model calls:", world.asked.total(), "made again, as they were open:", dict(+again))
    assert +again == OPEN, "these and nothing else were asked for again"
