"""What a foreign program sends to its step's model server can be journalled as a request, or is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.gateway._requests import Refusal, of_anthropic, of_openai, parsed, until_stop
from kokuban.agents.models import Reply, Request, Usage
from support.fuzz import fuzz, in_time

pytestmark = in_time
READ: dict[str, Callable[[Mapping[str, Any]], Request]] = {"openai": of_openai, "anthropic": of_anthropic}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just(2**70) | st.just("\ud83d") | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "a"]), inner, max_size=2)
    ),
)
GOOD: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "any", "max_tokens": 9, "max_completion_tokens": 9, "temperature": 0.5, "seed": 1, "n": 1,
        "stop": ["x"], "stream": True, "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}},
        ],
        "messages": [
            {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "seen"},
        ],
    },
    "anthropic": {
        "model": "any", "max_tokens": 9, "temperature": 1, "stop_sequences": ["x"], "tool_choice": {"type": "auto"},
        "system": [{"type": "text", "text": "S"}],
        "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
                                              {"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "seen"}]},
        ],
    },
}  # fmt: skip


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, one in inner for place in places(one, (*here, key)))]


def changed(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    if isinstance(value, dict):
        return {key: changed(one, place[1:], by) if key == place[0] else one for key, one in value.items()}
    return [changed(one, place[1:], by) if n == place[0] else one for n, one in enumerate(value)]


@fuzz
@given(st.sampled_from(sorted(READ)), st.data(), st.binary(max_size=20))
def test_a_body_is_a_request_or_is_refused(wire: str, data: st.DataObject, junk: bytes) -> None:
    body: Any = GOOD[wire]
    for _ in range(data.draw(st.integers(0, 3))):
        body = changed(body, data.draw(st.sampled_from(places(body))), data.draw(ODD))
    for sent in (json.dumps(body).encode(), junk):
        try:
            said, request = parsed(sent, READ[wire])
        except Refusal as refusal:
            words = str(refusal)
            words.encode()  # it is Unicode
            assert 0 < len(words) < 500
            continue
        assert msgspec.json.decode(msgspec.json.encode(request), type=Request).messages == request.messages
        assert request.max_output_tokens > 0
        until_stop(Reply(content="a x b", usage=Usage(1, 1), model="m"), said)


@pytest.mark.parametrize("wire", READ)
def test_the_bodies_that_are_changed_are_good_ones(wire: str) -> None:
    _, request = parsed(json.dumps(GOOD[wire]).encode(), READ[wire])
    assert [message.role for message in request.messages][:2] == ["system", "user"]
    assert request.tools
