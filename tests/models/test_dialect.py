"""What the provider sends, and how it learns what a server takes (A7 and C10 of the wire cases, structured output)."""

import asyncio
import json

import pytest

from kokuban.agents.models import Call, Message, ModelRefused, Progress, Reply, Request, ToolSpec
from kokuban.agents.models._openai import ChatCompletionsModel
from models.chat_server import CONTEXT, DONE, answer, data, delta, request, serving, stream, usage

pytestmark = pytest.mark.anyio
GOOD = stream(delta("ok", finish="stop"), usage(5, 1), DONE)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def ask(model: ChatCompletionsModel, asked: Request) -> Reply:
    try:
        return await model.call(asked, CONTEXT, Progress())
    finally:
        await model.aclose()


async def test_the_request_is_written_the_way_servers_take_it() -> None:
    tool = ToolSpec("read_file", "Reads.", {"type": "object"})
    calls = (
        Call("c1", "read_file", '{"path": "a"}'),
        Call("c2", "read_file", '{"path":"a","content":"lor', "cut"),
        Call("c3", "no such tool!", ""),
        Call("c4", "", '"{\\"a\\":1}"'),
    )
    messages = (
        Message("system", "be good"),
        Message("user", "do it \ud83d"),
        Message("assistant", "", calls),
        Message("tool", "", call_id="c1"),
        Message("assistant", "  "),
        Message("assistant", "done", extra={"reasoning_content": "secret"}),
    )
    async with serving(GOOD) as server:
        asked = Request(messages=messages, tools=(tool,), max_output_tokens=7, seed=3)
        await ask(server.model(key="sk-1"), asked)
        (sent,) = server.bodies
        assert "authorization: bearer sk-1" in server.heads[0].lower()
        assert server.heads[0].startswith("POST /v1/chat/completions ")
    assert sent == {
        "model": "m",
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Reads.", "parameters": {"type": "object"}},
            }
        ],
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "do it \ufffd"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                    for id, name, arguments in (
                        ("c1", "read_file", '{"path": "a"}'),
                        ("c2", "read_file", "{}"),
                        ("c3", "no_such_tool_", "{}"),
                        ("c4", "unnamed", '{"a": 1}'),
                    )
                ],
            },
            {"role": "tool", "content": "", "tool_call_id": "c1"},
            {"role": "assistant", "content": "done"},
        ],
    }


async def test_without_a_key_none_is_sent() -> None:
    async with serving(GOOD) as server:
        await ask(server.model(), request())
        assert "authorization" not in server.heads[0].lower()


async def test_a_schema_is_sent_as_the_response_format_without_strict() -> None:
    async with serving(GOOD) as server:
        await ask(server.model(), request(schema=SCHEMA, schema_name="plan"))
        assert server.bodies[0]["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "plan", "schema": SCHEMA},
        }


async def test_a_server_without_structured_output_is_remembered_with_its_words() -> None:
    refusal = answer(400, {"error": {"message": "response_format.type json_schema is not available"}})
    no_object = answer(422, {"detail": [{"loc": ["body", "response_format"], "msg": "extra fields not permitted"}]})
    async with serving(refusal, no_object, GOOD) as server:
        model = server.model()
        asked = request(schema=SCHEMA)
        assert (await model.call(asked, CONTEXT, Progress())).content == "ok"
        assert (await ask(model, asked)).content == "ok"
        kinds = [body.get("response_format", {}).get("type") for body in server.bodies]
        assert kinds == ["json_schema", "json_object", None, None]
        assert model.dialect.structured_output == "none"
        assert "json_schema is not available" in model.dialect.refusals[0]
        assert "extra fields not permitted" in model.dialect.refusals[1]
        for body in server.bodies[1:]:  # then the model itself has to be told
            assert body["messages"][0]["role"] == "system"
            assert json.dumps(SCHEMA) in body["messages"][0]["content"]
        assert server.bodies[0]["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Invalid schema for response_format 'reply': no", "param": "response_format"},
        {"message": "bad", "code": "invalid_json_schema"},
        {"message": "the context is too long", "code": "context_length_exceeded"},
    ],
)
async def test_a_refused_schema_or_prompt_is_permanent_and_sent_once(error: dict[str, str]) -> None:
    async with serving(answer(400, {"error": error})) as server:
        model = server.model()
        with pytest.raises(ModelRefused, match=error["message"][:8]) as raised:
            await ask(model, request(schema=SCHEMA))
        assert not raised.value.retryable
        assert raised.value.code == error.get("code")
        assert len(server.bodies) == 1
        assert model.dialect.structured_output == "json_schema"


async def test_two_calls_refused_at_once_step_down_once() -> None:
    refusal = answer(400, {"error": {"message": "response_format is not supported"}})
    both_in = asyncio.Event()
    waiting = 0

    async def refuse(writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both_in.set()
        await both_in.wait()
        writer.write(refusal)
        await writer.drain()

    async with serving(refuse, refuse, GOOD) as server:
        model = server.model()
        asked = request(schema=SCHEMA)
        await asyncio.gather(*(model.call(asked, CONTEXT, Progress()) for _ in range(2)))
        await model.aclose()
        assert model.dialect.structured_output == "json_object"


async def test_nothing_is_asked_again_once_text_was_shown() -> None:
    late = stream(delta("shown"), data({"error": {"code": 400, "message": "response_format is not supported"}}))
    async with serving(late, GOOD) as server:
        with pytest.raises(ModelRefused):
            await ask(server.model(), request(schema=SCHEMA))
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("message", "gone", "new"),
    [
        ("Unrecognized request argument supplied: stream_options", "stream_options", None),
        ("Unsupported value: 'temperature' does not support 0.0 with this model.", "temperature", None),
        ("unknown field seed", "seed", None),
        ("'max_tokens' is not supported, use 'max_completion_tokens'", "max_tokens", "max_completion_tokens"),
    ],
)
async def test_an_optional_field_that_is_refused_is_left_out(message: str, gone: str, new: str | None) -> None:
    async with serving(answer(400, {"error": {"message": message}}), GOOD) as server:
        model = server.model()
        for _ in range(2):
            await model.call(request(seed=1), CONTEXT, Progress())
        await model.aclose()
        assert gone in server.bodies[0]
        assert len(server.bodies) == 3
        assert all(gone not in body and (new is None or new in body) for body in server.bodies[1:])
