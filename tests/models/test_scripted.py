"""A script answers by what is asked, the same in every process."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import (
    CallContext,
    Delta,
    Meter,
    ModelConfigError,
    ModelDeadline,
    Reply,
    ScriptMiss,
    Usage,
    open_model,
)
from models.chat_server import request

pytestmark = pytest.mark.anyio


def write(tmp_path: Path, *replies: dict[str, Any]) -> str:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"replies": list(replies)}), encoding="utf-8")
    return f"scripted:{path}"


async def ask(meter: Meter, text: str = "hi", *, seconds: float = 60.0, **context: Any) -> Reply:
    where = CallContext(**{"role": "coder", "step": "s1", **context})
    return await meter.call(request(text), where, deadline=time.monotonic() + seconds)


async def test_the_first_entry_that_matches_and_has_uses_left_answers(tmp_path: Path) -> None:
    spec = write(
        tmp_path,
        {"when": {"role": "planner", "turn": 2}, "reply": {"content": "planner, turn 2"}},
        {"when": {"role": "coder", "contains": "needle"}, "reply": {"content": "found"}},
        {"when": {"step": "s1", "attempt": 1}, "times": 2, "reply": {"content": "twice"}},
        {"when": {"attempt": 2}, "reply": {"content": "again"}},
        {"reply": {"content": "else"}},
    )
    meter = Meter(open_model(spec, env={}))
    assert (await ask(meter, role="planner", turn=2)).content == "planner, turn 2"
    assert (await ask(meter, "hay needle hay")).content == "found"
    assert [(await ask(meter)).content for _ in range(3)] == ["twice", "twice", "else"]
    assert (await ask(meter, attempt=2)).content == "again"
    assert (await ask(Meter(open_model(spec, env={})))).content == "twice"


async def test_calls_json_content_and_usage(tmp_path: Path) -> None:
    calls = [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": '{"half'}, {"name": "c"}]
    spec = write(
        tmp_path,
        {"when": {"turn": 1}, "reply": {"calls": calls}, "usage": {"input_tokens": 7, "output_tokens": 3}},
        {"reply": {"content": {"steps": []}}},
    )
    meter = Meter(open_model(spec, env={}))
    reply = await ask(meter)
    assert [(c.name, c.arguments, c.problem) for c in reply.calls] == [
        ("a", '{"x": 1}', None),
        ("b", '{"half', None),
        ("c", "{}", None),
    ]
    assert len({c.id for c in reply.calls}) == 3
    assert reply.usage == Usage(7, 3)
    structured = await ask(meter, turn=2)
    assert structured.content == '{"steps": []}'
    assert structured.usage.estimated
    assert meter.totals.attempts == 2


async def test_no_entry_is_an_error_that_names_the_call(tmp_path: Path) -> None:
    meter = Meter(open_model(write(tmp_path, {"when": {"role": "planner"}, "reply": {"content": "x"}}), env={}))
    with pytest.raises(ScriptMiss, match=r"role coder, step s9, attempt 2, turn 5") as raised:
        await ask(meter, step="s9", attempt=2, turn=5)
    assert not raised.value.retryable
    assert meter.totals.attempts == 1
    assert meter.totals.input_tokens == 0


async def test_a_delay_meets_the_deadline(tmp_path: Path) -> None:
    meter = Meter(open_model(write(tmp_path, {"reply": {"content": "x"}, "delay_seconds": 60}), env={}))
    with pytest.raises(ModelDeadline):
        await ask(meter, seconds=0.02)


async def test_text_reaches_the_listener(tmp_path: Path) -> None:
    seen: list[Delta] = []
    meter = Meter(open_model(write(tmp_path, {"reply": {"content": "x"}}), env={}))
    where = CallContext(role="coder", step="s1")
    await meter.call(request(), where, deadline=time.monotonic() + 60, on_delta=seen.append)
    assert seen == [Delta(1, "x")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("[]", "object"),
        ("{}", "replies"),
        ('{"replies":[{}]}', "reply"),
        ('{"replies":[{"reply":{"content":"x"},"when":{"rule":"planner"}}]}', "rule"),
        ('{"replies":[{"reply":{"content":"x"},"times":"many"}]}', "times"),
        ("\xff", "script"),
    ],
)
def test_what_is_no_script_is_a_usage_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelConfigError, match=words):
        open_model(f"scripted:{path}", env={})
    with pytest.raises(ModelConfigError, match="cannot be read"):
        open_model(f"scripted:{path}.missing", env={})
