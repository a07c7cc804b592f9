"""The model server of one step: both wires, its own token, and every call reserved, journalled and paid once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kokuban.agents._asking import Asking
from kokuban.agents.gateway import Gateway
from kokuban.agents.gateway._requests import Refusal, of_anthropic, of_openai
from kokuban.agents.models import Call, Meter, Reply, Request, Usage
from kokuban.blackboard.wire import Bus
from support.bench import Bench, Benches, Says
from support.desk import Desk
from support.nats_server import NatsServer
from support.waiting import cancelled, eventually

pytestmark = pytest.mark.anyio
HI = Reply(content="hi", usage=Usage(10, 5), model="m-1")
CALLS = Reply(content="", usage=Usage(10, 5), model="m-1", calls=(Call("c1", "look", '{"path": "a"}'),))
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}


@pytest.fixture
async def bench(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Benches]:
    async with await Bus.connect(nats_server.url) as bus:
        yield Benches(await Desk.open(bus), tmp_path)


@asynccontextmanager
async def serving(bench: Bench, *replies: Reply) -> AsyncIterator[tuple[Gateway, Says]]:
    model = Says(*replies)
    bench.work.meter = Meter(model)
    async with Gateway(Asking(bench.work)).serving() as gateway:
        yield gateway, model


async def ask(gateway: Gateway, path: str, body: Any, token: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {gateway.token if token is None else token}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(trust_env=False, base_url=gateway.url, timeout=20) as client:
        return await client.post(path, content=content, headers=headers)


def openai(text: str = "go", **fields: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}


async def test_openais_wire_whole_and_streamed(bench: Benches) -> None:
    async with serving(await bench(), HI, CALLS, HI, CALLS) as (gateway, _):
        whole = (await ask(gateway, "/v1/chat/completions", openai())).json()
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
        assert whole["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        wanted = openai(tools=[{"type": "function", "function": LOOK}])
        calls = (await ask(gateway, "/v1/chat/completions", wanted)).json()["choices"][0]
        assert calls["finish_reason"] == "tool_calls"
        assert calls["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"path": "a"}'}
        streamed = await ask(gateway, "/v1/chat/completions", openai("again", stream=True))
        events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        deltas = [json.loads(e)["choices"] for e in events[:-1]]
        assert "".join(c[0]["delta"].get("content", "") for c in deltas if c) == "hi"


async def test_anthropics_wire_whole_and_streamed(bench: Benches) -> None:
    async with serving(await bench(), CALLS, HI) as (gateway, _):
        asked = {"model": "any", "max_tokens": 50, "system": "S", "messages": [{"role": "user", "content": "go"}]}
        whole = (await ask(gateway, "/v1/messages", asked)).json()
        assert whole["content"] == [{"type": "tool_use", "id": "c1", "name": "look", "input": {"path": "a"}}]
        assert (whole["stop_reason"], whole["usage"]) == ("tool_use", {"input_tokens": 10, "output_tokens": 5})
        streamed = await ask(gateway, "/v1/messages", {**asked, "stream": True, "max_tokens": 51})
        kinds = [line.removeprefix("event: ") for line in streamed.text.splitlines() if line.startswith("event: ")]
        assert kinds == [
            "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
            "message_stop",
        ]  # fmt: skip


async def test_without_this_steps_token_nothing_is_served(bench: Benches) -> None:
    async with serving(await bench(), HI) as (gateway, model):
        for token in ("x", "sk-other", gateway.token[:-1]):
            answer = await ask(gateway, "/v1/chat/completions", openai(), token)
            assert answer.status_code == 401
            assert gateway.token not in answer.text
        assert model.asked == 0


async def test_every_call_is_paid_from_the_steps_budget(bench: Benches) -> None:
    b = await bench(steps=1)
    async with serving(b, HI, HI) as (gateway, model):
        assert (await ask(gateway, "/v1/chat/completions", openai())).status_code == 200
        refused = await ask(gateway, "/v1/chat/completions", openai("more"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert refused.headers["x-should-retry"] == "false"
        assert gateway.failure is not None
        assert gateway.failure.why == "steps"
        assert gateway.over.is_set()
        assert (await ask(gateway, "/v1/chat/completions", openai("more"))).status_code == 429
    assert model.asked == 1


async def test_whoever_takes_the_step_up_is_answered_from_the_journal(bench: Benches) -> None:
    async with serving(await bench(), HI, CALLS) as (gateway, first):
        for text in ("one", "two"):
            await ask(gateway, "/v1/chat/completions", openai(text))
        assert first.asked == 2
    async with serving(await bench(resumes=True), HI) as (gateway, second):
        one = await ask(gateway, "/v1/chat/completions", openai("one"))
        assert one.json()["choices"][0]["message"]["content"] == "hi"
        assert second.asked == 0, "it was bought before"
        await ask(gateway, "/v1/chat/completions", openai("another"))
        assert second.asked == 1


async def test_calls_at_once_take_their_turns(bench: Benches) -> None:
    async with serving(await bench(), HI, HI, HI) as (gateway, _):
        answers = await asyncio.gather(*(ask(gateway, "/v1/chat/completions", openai(f"{n}")) for n in range(3)))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert sorted(answer.json()["id"] for answer in answers) == ["chatcmpl-1", "chatcmpl-2", "chatcmpl-3"]


class Endless(Says):
    """A model that never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def call(self, *_: Any, **__: Any) -> Reply:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_program_that_ends_while_a_call_is_under_way_is_no_cancelled_step(bench: Benches) -> None:
    b = await bench()
    model = Endless()
    b.work.meter = Meter(model)
    gateway = Gateway(Asking(b.work))
    async with asyncio.timeout(10):
        async with gateway.serving():
            asking = asyncio.create_task(ask(gateway, "/v1/chat/completions", openai()))
            await model.begun.wait()
        assert (await asking).status_code == 503
    assert gateway.broken is None
    assert gateway.failure is None


class Waiting(Says):
    """A model that answers when it may."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(*replies)
        self.begun, self.may = asyncio.Event(), asyncio.Event()

    async def call(self, *args: Any) -> Reply:
        self.begun.set()
        await self.may.wait()
        return await super().call(*args)


@pytest.mark.parametrize("before", [True, False], ids=["asked again before the reply", "asked again after it"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_gave_up_and_asks_again_pays_once(bench: Benches, before: bool, stream: bool) -> None:
    b = await bench()
    model = Waiting(HI)
    b.work.meter = Meter(model)
    body = openai(stream=stream)
    async with asyncio.timeout(20), Gateway(Asking(b.work)).serving() as gateway:
        gives_up = asyncio.create_task(ask(gateway, "/v1/chat/completions", body))
        await model.begun.wait()
        await cancelled(gives_up)
        if before:
            first = gateway._bought[0].asker
            again = asyncio.create_task(ask(gateway, "/v1/chat/completions", body))
            await eventually(lambda: gateway._bought[0].asker is not first)
            model.may.set()
        else:
            model.may.set()
            await eventually(lambda: gateway.calls == 1)
            again = asyncio.create_task(ask(gateway, "/v1/chat/completions", body))
        assert "hi" in (await again).text
        assert model.asked == 1
        assert "hi" in (await ask(gateway, "/v1/chat/completions", body)).text
        assert model.asked == 2, "it asks for another"


async def test_two_that_ask_the_same_at_once_both_pay(bench: Benches) -> None:
    async with serving(await bench(), HI) as (gateway, model):
        await asyncio.gather(*(ask(gateway, "/v1/chat/completions", openai()) for _ in range(2)))
        assert model.asked == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_half_a_pair_is_passed_on_as_the_mark_for_it(bench: Benches, path: str) -> None:
    async with serving(await bench(), HI) as (gateway, model):
        body = rb'{"max_tokens": 9, "messages": [{"role": "user", "content": "a\ud800b \ud83d\ude00"}]}'
        assert (await ask(gateway, path, body)).status_code == 200
    assert model.requests[0].messages[0].content == "a\ufffdb \U0001f600"


async def test_what_comes_after_a_stop_word_is_thrown_away(bench: Benches) -> None:
    said = Reply(content="Thought: a\nObservation: made up", usage=Usage(10, 5), model="m-1")
    async with serving(await bench(), said, said) as (gateway, _):
        one = await ask(gateway, "/v1/chat/completions", openai(stop=["Never", "\nObservation:"]))
        assert one.json()["choices"][0]["message"]["content"] == "Thought: a"
        other = {"max_tokens": 9, "messages": [{"role": "user", "content": "go"}], "stop_sequences": ["made"]}
        assert (await ask(gateway, "/v1/messages", other)).json()["content"][0]["text"] == "Thought: a\nObservation: "


async def test_models_and_tokens_can_be_asked(bench: Benches) -> None:
    async with serving(await bench()) as (gateway, model):
        counted = await ask(
            gateway, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a" * 300}]}
        )
        assert counted.json()["input_tokens"] >= 100
        headers = {"x-api-key": gateway.token}
        async with httpx.AsyncClient(trust_env=False, base_url=gateway.url, timeout=20) as client:
            assert (await client.get("/v1/models", headers=headers)).json()["data"][0]["id"] == "kokuban"
            assert (await client.get("/v1/models")).status_code == 401
        assert model.asked == 0


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("auto", ["look", "go"]), ("required", ["look", "go"]), ("none", []), ({"type": "none"}, []),
        ({"type": "function", "function": {"name": "go"}}, ["go"]), ({"type": "tool", "name": "look"}, ["look"]),
    ],
)  # fmt: skip
def test_a_choice_of_tools_leaves_those(choice: Any, left: list[str]) -> None:
    tools = [{"type": "function", "function": {**LOOK, "name": name}} for name in ("look", "go")]
    assert [t.name for t in of_openai(openai(tools=tools, tool_choice=choice)).tools] == left


BAD: list[tuple[Any, str]] = [
    (b"{", "not JSON"), (b"[" * 100_000, "not JSON"), ([], "a JSON object"), ({}, "messages"),
    (openai(n=2), "n:"), (openai(functions=[{}]), "functions"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
    ({"messages": "hello"}, "messages"), (openai(tools=[{"type": "function", "function": {}}]), "name"),
    (openai(tools=[{"type": "function", "function": {"name": "f", "parameters": "x"}}]), "parameters: an object"),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool_calls: a list"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "text is expected"),
    (openai(max_tokens=True), "max_tokens: a whole number"), (openai(max_tokens="9"), "max_tokens"),
    (openai(max_tokens=0), "max_tokens"), (openai(max_completion_tokens=-1), "max_completion_tokens"),
    (openai(temperature="hot"), "temperature"), (openai(seed=2**64), "seed"), (openai(response_format=3), "format"),
    (openai(response_format={"type": "json_schema", "json_schema": "x"}), "json_schema: an object"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "named"), BAD)
async def test_what_cannot_be_served_is_named(bench: Benches, body: Any, named: str) -> None:
    async with serving(await bench(), HI) as (gateway, model):
        answer = await ask(gateway, "/v1/chat/completions", body)
        assert answer.status_code == 400
        assert named in answer.json()["error"]["message"]
        assert model.asked == 0


def test_conversations_are_read_in_both_words() -> None:
    one: Request = of_openai({
        "messages": [
            {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "seen"},
        ],
    })  # fmt: skip
    other = of_anthropic({
        "system": [{"type": "text", "text": "S"}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
                                              {"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "seen"}]},
        ],
    })  # fmt: skip
    assert one.messages == other.messages
    with pytest.raises(Refusal):
        of_anthropic({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})
