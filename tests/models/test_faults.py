"""What servers say in their own ways: too large, not now, and thoughts before the answer."""

from __future__ import annotations

from typing import Any

import pytest

from kokuban.agents.models import Message, ModelOverflow, ModelUnavailable, Progress
from kokuban.agents.models._chat import ChatReply
from kokuban.agents.models._faults import model_error, wait_of
from models.chat_server import CONTEXT, DONE, answer, delta, request, serving, stream

pytestmark = pytest.mark.anyio
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
OVERFLOWS: list[Any] = [
    {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000", "code": None},
    {"message": "x", "code": "context_length_exceeded"},
    {
        "code": 400,
        "message": "request (9000 tokens) exceeds the available context size",
        "type": "exceed_context_size_error",
    },
    {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    "input length exceeds the context length of 4096",
]


@pytest.mark.parametrize("fault", OVERFLOWS)
def test_a_request_that_does_not_fit_is_told_apart(fault: Any) -> None:
    error = model_error(fault, status=400)
    assert isinstance(error, ModelOverflow)
    assert not error.retryable
    assert isinstance(model_error({"message": "too many tokens a minute"}, status=429), ModelUnavailable)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "2", "retry-after-ms": "9000"}, 2.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "1h"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "7.5"}, 7.5),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, 30.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1792567690", "date": DATE}, 10.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1792567690000", "date": DATE}, 10.0),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-10-21T07:28:20Z",
                "date": DATE,
            },
            20.0,
        ),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2026-99"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "-5"}, None),
        ({}, None),
    ],
)
def test_every_way_to_say_how_long(headers: dict[str, str], seconds: float | None) -> None:
    assert wait_of(headers) == seconds


@pytest.mark.parametrize(
    ("said", "answered", "thought"),
    [
        ('plan</think>{"a":1}', '{"a":1}', "plan"),
        ("<think>plan</think>\n\nthe answer", "the answer", "plan"),
        ("<think>never closed", "", "never closed"),
        ("no thought at all", "no thought at all", ""),
        ("<think>p</think>the tag is </think>", "the tag is </think>", "p"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_thoughts_are_kept_apart_where_the_model_is_known_to_think(
    said: str, answered: str, thought: str, size: int
) -> None:
    for thinks in (True, False):
        reply = ChatReply(request(), Progress(), thinks=thinks)
        body = b"".join(delta(said[n : n + size]) for n in range(0, len(said), size)) + delta(finish="stop") + DONE
        reply.feed(body)
        got = reply.reply("m")
        assert got.content == (answered if thinks else said)
        assert got.extra.get("reasoning", "") == (thought if thinks else "")


async def test_a_server_that_wants_a_turns_reasoning_back_gets_it() -> None:
    from kokuban.agents.models import Call

    turn = Message("assistant", "", (Call("c", "look", "{}"),), extra={"reasoning_content": "because", "by": "m"})
    foreign = Message("assistant", "", (Call("d", "look", "{}"),), extra={"reasoning_content": "other", "by": "n"})
    asked = request(messages=(Message("user", "go"), turn, Message("tool", "x", call_id="c"), foreign))
    refusal = answer(400, {"error": {"message": "Missing `reasoning_content` in the assistant turn"}})
    async with serving(refusal, stream(delta("ok", finish="stop"), DONE)) as server:
        model = server.model()
        assert (await model.call(asked, CONTEXT, Progress())).content == "ok"
        await model.aclose()
    assert ["reasoning_content" in body["messages"][1] for body in server.bodies] == [False, True]
    assert server.bodies[1]["messages"][1]["reasoning_content"] == "because"
    assert server.bodies[1]["messages"][3]["reasoning_content"] == ""  # another model's is never told
