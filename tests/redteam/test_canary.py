"""Credentials in the mouths of everybody who could say them: none is found in anything that was written."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kokuban.blackboard import Client
from kokuban.blackboard.registered import register_kind, register_role
from kokuban.blackboard.wire import Bus, ensure_board
from models.chat_server import DONE, SSE_HEAD, answer, delta, serving, usage
from support.nats_server import NatsServer
from support.processes import Process, child
from support.team import records

pytestmark = pytest.mark.anyio

KEY, TILL, OTHER = 'sk-canary-"K3y\\/9', "till-canary-7Ü+x", "ghp_canary0000000000"
CANARIES = {"model": KEY, "tool": TILL, "environment": OTHER}
HOW = ("plain", "json", "basic", "long", "error", "bug")
CONTRACT = """
role = "clerk"
summary = "Says things."
when = "planned"
consumes = ["task"]
produces = ["note"]
tools = ["say", "write_file"]
model = true
shape = "react"

[limits]
steps = 20
tool_calls = 12
tokens = 400000
seconds = 60
"""
NOTE = {
    "type": "object", "required": ["text"], "additionalProperties": False,
    "properties": {"text": {"type": "string", "maxLength": 60_000}},
}  # fmt: skip


def forms(value: str) -> Iterator[bytes]:
    """The ways in which a value is looked for."""
    yield value.encode()
    yield json.dumps(value)[1:-1].encode()
    yield quote(value, safe="").encode()
    for before in range(3):
        whole = base64.b64encode(b"?" * before + value.encode())
        yield whole[4 if before else 0 : -4]


def found(data: bytes) -> list[str]:
    return [name for name, value in CANARIES.items() for form in forms(value) if form in data]


class Mouthy:
    """A model server that says the key it was sent: in plans, arguments, prose, names of calls and errors."""

    def __init__(self) -> None:
        self.turns = 0
        self.asked: list[bytes] = []

    def reply(self, head: str, body: dict[str, Any]) -> bytes:
        (key,) = (line.split("Bearer ")[1] for line in head.split("\r\n") if line.lower().startswith("authorization"))
        self.asked.append(json.dumps(body).encode())
        self.turns += 1
        if self.turns in (1, 3):
            return answer(503, {"error": {"message": f"overloaded; your key {key} is fine", "code": key}})
        if self.turns == 2:
            step = {"id": "talk", "role": "clerk", "goal": f"Talk about {key}", "needs": []}
            return self._says(json.dumps({"steps": [step]}), key)
        turn = self.turns - 4
        if turn < len(HOW):
            return self._calls("say", {"how": HOW[turn]}, key)
        if turn == len(HOW):
            return self._calls("write_file", {"path": "key.txt", "content": f"key = {key}"}, key)
        if turn == len(HOW) + 1:
            return self._calls(f"say {key}", {}, key)  # there is no such tool
        return self._calls("give_note", {"text": f"the key is {key}, the other {os.environ['SOME_TOKEN']}"}, key)

    def _says(self, text: str, key: str) -> bytes:
        pieces = [delta(text[n : n + 3]) for n in range(0, len(text), 3)]  # no piece holds the key
        return SSE_HEAD + b"".join([*pieces, delta("", finish="stop"), usage(10, 10), DONE])

    def _calls(self, name: str, arguments: dict[str, Any], key: str) -> bytes:
        call = {"index": 0, "id": f"call-{self.turns}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        parts = [delta(f"I know {key[:7]}"), delta(key[7:]), delta(calls=[call]), delta(finish="tool_calls")]
        return SSE_HEAD + b"".join([*parts, usage(10, 10), DONE])


async def test_no_credential_is_in_anything_that_was_written(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", OTHER)
    here = Path(__file__).parent
    (tmp_path / "tools.toml").write_text('python = ["canary_tools"]\n\n[secret.TILL]\ntenants = ["default"]\n')
    (tmp_path / "prompt.md").write_text("--- system\nTalk.\n--- user\n{{task}}\n")
    written = tmp_path / "written"
    (written / "recorded").mkdir(parents=True)
    mouthy = Mouthy()

    async def speak(writer: asyncio.StreamWriter) -> None:
        writer.write(mouthy.reply(chat.heads[-1], chat.bodies[-1]))
        await writer.drain()

    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await register_kind(bus, "note", json.dumps(NOTE).encode())
        await register_role(bus, CONTRACT)
    async with serving(speak) as chat, AsyncExitStack() as stack:
        env = {
            "KOKUBAN_NATS_URL": nats_server.url, "KOKUBAN_API_KEY": KEY, "KOKUBAN_SECRET_TILL": TILL,
            "KOKUBAN_LOG": "json", "KOKUBAN_LOG_LEVEL": "debug", "PYTHONPATH": str(here),
        }  # fmt: skip
        model = ("--model", "openai-compatible:m", "--base-url", chat.url, "--native-tools")
        model += ("--record", str(written / "recorded"))
        clerk = ("clerk", "--prompt", str(tmp_path / "prompt.md"), "--tools", str(tmp_path / "tools.toml"), *model)

        async def start(name: str, *words: str) -> Process:
            log = written / f"{name}.log"
            return await stack.enter_async_context(child("-m", "kokuban.console.main", *words, env=env, log=log))

        await start("supervisor", "supervisor")
        for role in (("planner", *model), clerk, ("verifier",), ("integrator",)):
            await start(role[0], "worker", *role, "--home", str(written / "homes" / role[0]))
        async with await Client.connect(nats_server.url) as board:
            task = await board.submit("Talk to each other")
            watch = await start("watch", "watch", task, "--json")
            result = await board.result(task, timeout=60)
        assert result.state == "done", result.reason
        for process in (watch, await start("export", "export", task, "--out", str(written / "task.jsonl"))):
            assert await asyncio.wait_for(process.wait(), 20) == 0
        stored = await records(nats_server.url)
    assert mouthy.turns == len(HOW) + 6  # it said all that it was to say
    for one in stored:
        assert found(one.data) == [], one.subject
    for folder in (written, nats_server.store):
        for file in folder.rglob("*"):
            assert not file.is_file() or found(file.read_bytes()) == [], file
    for request in mouthy.asked:  # nor was a model ever told of a tool's credential
        assert found(request) == []
    everything = b"".join(one.data for one in stored)
    for name in ("KOKUBAN_API_KEY", "KOKUBAN_SECRET_TILL", "SOME_TOKEN"):  # and who said it is told what was taken out
        assert f"[secret {name}]".encode() in everything


def test_what_is_looked_for_is_found() -> None:
    for name, value in CANARIES.items():
        for text in (value, json.dumps({"a": value}), quote(value, safe=""), base64.b64encode(f"u:{value}!".encode())):
            data = text if isinstance(text, bytes) else text.encode()
            assert name in found(data)
