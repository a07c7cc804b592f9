"""Calls that small models write as text: read only where that was asked for, and never from a thought."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kokuban.agents.models import Call, Message, Problem, Progress, Reply, ToolSpec, Usage, open_model, parse_arguments
from kokuban.agents.models._texttools import MAX_CALLS, in_text, read_calls
from models.chat_server import CONTEXT, DONE, delta, request, serving, stream

pytestmark = pytest.mark.anyio
LOOK = ToolSpec("look", "Shows a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = '{"name": "look", "arguments": {"path": "a"}}'
BLOCK = f"<tool_call>\n{CALL}\n</tool_call>"


def read(text: str, *, truncated: bool = False) -> tuple[str, list[tuple[str, Any, bool]]]:
    """What is left of the text, and name, arguments and soundness of each call."""
    reply = read_calls(Reply(content=text, usage=Usage(1, 1), model="m", truncated=truncated), request(tools=(LOOK,)))
    assert len({call.id for call in reply.calls}) == len(reply.calls)
    return reply.content, [(c.name, parse_arguments(c.arguments), c.problem is None) for c in reply.calls]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (BLOCK, ""),
        (f"I look.\n{BLOCK}\n", "I look."),
        (f"<tool_call>{CALL}</tool_call>", ""),
        (f"<tool_call>\n{CALL}", ""),
        (f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>", ""),
        (CALL, ""),
        (f"[{CALL}]", ""),
        (f"Let me see:\n```json\n{CALL}\n```", "Let me see:"),
        (f"```\n{CALL}\n```\n", ""),
        ('{"name": "look", "parameters": {"path": "a"}}', ""),
        ('{"name": "look", "arguments": "{\\"path\\": \\"a\\"}"}', ""),
        (f"<think>{BLOCK}</think>{BLOCK}", f"<think>{BLOCK}</think>"),
        (f"plan</think>{BLOCK}", "plan</think>"),
    ],
)
def test_a_call_in_any_of_its_forms(text: str, left: str) -> None:
    assert read(text) == (left, [("look", {"path": "a"}, True)])


# A9: what a model thinks is no call.
@pytest.mark.parametrize(
    "text",
    [
        f"<think>{BLOCK}</think>done",
        f"<think>\n{BLOCK}",  # never closed
        f"I could\n{BLOCK}\n</think>done",  # never opened
        f"<think>```json\n{CALL}\n```</think>done",
        "To call, write <tool_call> and the name.",
        "```python\nprint(1)\n```",
        '```json\n{"name": "unknown", "arguments": {}}\n```',
        '{"name": "look", "arguments": {}, "because": "it is data"}',
        '{"summary": "done"}',
        "",
    ],
)
def test_no_call_is_read_where_none_is_made(text: str) -> None:
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<tool_call>\n{half", "not valid"),
        ("<tool_call></tool_call>", "empty"),
        ("<tool_call>\nlook at a\n</tool_call>", "not valid"),
        ('<tool_call>\n{"arguments": {}}\n</tool_call>', "names no tool"),
        ('<tool_call>\n{"name": "look", "arguments": {"x": NaN}}\n</tool_call>', "not valid"),
        ('<tool_call>\n{"name": "look", "name": "list", "arguments": {}}\n</tool_call>', "twice"),
        ('<tool_call>\n{"name": "look", "arguments": {}, "parameters": {}}\n</tool_call>', "twice"),
        (f"<tool_call>\n{CALL} and more\n</tool_call>", "not valid"),
        (f'<tool_call>\n{CALL}, "other": {CALL}\n</tool_call>', "not one JSON value"),
        ("<tool_call>" + "[" * 100_000, "not valid"),
        ('{"name": "look", "arguments": {"path": "a"', "not valid"),
        ("```json\n" + '{"name": "look", "arguments": {"path": a}}' + "\n```", "not valid"),
    ],
)
def test_what_was_meant_as_a_call_and_is_none_is_told(text: str, words: str) -> None:
    reply = read_calls(Reply(content=text, usage=Usage(1, 1), model="m"), request(tools=(LOOK,)))
    (call,) = reply.calls
    assert call.problem is not None
    assert words in call.problem


@pytest.mark.parametrize("name", ["[]", "{}", "3", "null", '["look"]', "true"])
def test_a_name_that_is_no_text_is_no_crash(name: str) -> None:
    for text in (
        f'{{"name": {name}, "arguments": {{}}}}',
        f'[{{"name": {name}}}]',
        f'```json\n{{"name": {name}}}\n```',
    ):
        assert read(text)[1] == []
        (call,) = read_calls(
            Reply(content=f"<tool_call>\n{text}\n</tool_call>", usage=Usage(1, 1), model="m"), request(tools=(LOOK,))
        ).calls
        assert call.problem is not None


def test_several_calls_keep_their_order_and_their_number_is_bounded() -> None:
    other = BLOCK.replace('"a"', '"b"')
    assert [values for _, values, _ in read(f"{BLOCK}\n{other}")[1]] == [{"path": "a"}, {"path": "b"}]
    unclosed = f"<tool_call>\n{CALL}\n{other}"
    assert [values for _, values, _ in read(unclosed)[1]] == [{"path": "a"}, {"path": "b"}]
    assert len(read(f"[{','.join([CALL] * 100)}]")[1]) == MAX_CALLS


# A3: what was cut may look whole.
@pytest.mark.parametrize("text", [BLOCK, CALL, f"<tool_call>\n{CALL}"])
def test_a_reply_that_was_cut_runs_nothing(text: str) -> None:
    assert [sound for _, _, sound in read(text, truncated=True)[1]] == [False]


def test_a_conversation_in_text_alternates_and_holds_every_result() -> None:
    messages = (
        Message("system", "S"), Message("user", "go"),
        Message("assistant", "I look.", (Call("1", "look", '{"path": "a"}'), Call("2", "look", "{half"))),
        Message("tool", "the file </tool_response> <tool_call>", call_id="1"),
        Message("tool", "it was not run", call_id="2"), Message("user", "on"),
    )  # fmt: skip
    turns = in_text(request(messages=messages, tools=(LOOK,)))
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user"]
    assert turns[0].content.startswith("S\n\n")
    assert json.dumps(LOOK.parameters) in turns[0].content
    assert turns[2].content == f'I look.\n{BLOCK}\n<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call>'
    assert turns[3].content.count("</tool_response>") == 2
    assert turns[3].content.endswith("it was not run\n</tool_response>\non")


async def test_only_who_asked_for_it_has_calls_read_from_text() -> None:
    async with serving(stream(delta(BLOCK, finish="stop"), DONE)) as server:
        for asked, calls in ((True, 1), (False, 0)):
            model = open_model("openai-compatible:m", base_url=server.url, env={}, text_tools=asked)
            reply = await model.call(request(tools=(LOOK,)), CONTEXT, Progress())
            assert len(reply.calls) == calls
            await model.aclose()
        assert ["tools" in body for body in server.bodies] == [False, True]


async def test_a_call_that_the_server_read_itself_stands_and_no_tools_change_nothing() -> None:
    entry = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    async with serving(
        stream(delta(f"so\n{BLOCK}", calls=[entry], finish="stop"), DONE), stream(delta(BLOCK, finish="stop"), DONE)
    ) as server:
        model = open_model("openai-compatible:m", base_url=server.url, env={}, text_tools=True)
        first = await model.call(request(tools=(LOOK,)), CONTEXT, Progress())
        assert first.calls == (Call("c", "look", "{}"),)
        second = await model.call(request(), CONTEXT, Progress())
        assert (second.content, second.calls) == (BLOCK, ())
        assert server.bodies[1]["messages"] == [{"role": "user", "content": "hi"}]
        await model.aclose()


def test_arguments_come_through_unchanged() -> None:
    values = {"path": "ä\u2028", "n": 2**60, "deep": [{"x": None}], "f": 0.1}
    text = f"<tool_call>{json.dumps({'name': 'look', 'arguments': values})}</tool_call>"
    assert read(text)[1] == [("look", values, True)]
    assert isinstance(parse_arguments("[]"), Problem)
