"""A recorded session is replayed by what was asked, to the byte, and a miss says why."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.models import (
    Call,
    CallContext,
    Message,
    Meter,
    ModelConfigError,
    ModelError,
    RecordingMiss,
    Reply,
    Request,
    ToolSpec,
    open_model,
)
from kokuban.agents.models import _recording as recording
from models.chat_server import DONE, ChatServer, delta, request, serving, stream, usage

pytestmark = pytest.mark.anyio
SCOPE = {"goal": "mend it", "workspace": "sha256:aa", "sources": "sha256:bb"}


def where(**changes: Any) -> CallContext:
    return CallContext(**{"role": "coder", "step": "s1", "scope": SCOPE, **changes})


def said(*texts: str) -> list[bytes]:
    return [stream(delta(text, finish="stop"), usage(5, 2), DONE) for text in texts]


async def ask(meter: Meter, asked: Request, context: CallContext) -> Reply:
    return await meter.call(asked, context, deadline=time.monotonic() + 60)


def recorder(server: ChatServer, folder: Path) -> Meter:
    return Meter(
        open_model("openai-compatible:m", base_url=server.url, record=folder, env={"KOKUBAN_API_KEY": "sk-very-secret"})
    )


async def record(folder: Path, *texts: str, asked: Request | None = None, **changes: Any) -> list[Reply]:
    async with serving(*said(*texts)) as server:
        meter = recorder(server, folder)
        replies = [
            await ask(meter, asked or request(), where(**{"occurrence": number, **changes}))
            for number in range(len(texts))
        ]
        await meter.aclose()
    return replies


def replay(folder: Path) -> Meter:
    return Meter(open_model(f"recorded:{folder}", env={}))


async def test_a_session_comes_back_as_it_was_in_any_order(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    call = {"index": 0, "id": "c1", "function": {"name": "t", "arguments": '{"a": "\\u2028 é"}'}}
    cut = Message("assistant", "", (Call("c0", "t", "{half", "cut"),))
    talk = Request(
        messages=(Message("user", "x"), cut, Message("tool", "", call_id="c0")),
        tools=(ToolSpec("t", "d", {"type": "object"}),),
        schema={"type": "object"},
        max_output_tokens=9,
    )
    async with serving(
        stream(delta("ja\u2028", calls=[call], reasoning_content="hm"), delta(finish="stop"), DONE)
    ) as s:
        meter = recorder(s, folder)
        with_calls = await ask(meter, talk, where())
        await meter.aclose()
    first, second = await record(folder, "one", "two")
    meter = replay(folder)
    assert await ask(meter, request(), where(occurrence=1)) == second
    assert await ask(meter, talk, where()) == with_calls
    assert await ask(meter, request(), where(occurrence=0)) == first
    assert await ask(meter, request(), where(occurrence=0)) == first
    assert with_calls.calls == (Call("c1", "t", '{"a": "\\u2028 é"}'),)


async def test_a_file_is_named_after_what_it_holds_and_holds_no_secret(tmp_path: Path) -> None:
    await record(tmp_path, "one", "two")
    files = sorted(tmp_path.iterdir())
    assert [path.name.rsplit("-", 1)[1] for path in files] == ["0.json", "1.json"]
    for path in files:
        text = path.read_text(encoding="utf-8")
        stored = json.loads(text)
        assert set(stored) == {"recorder", "model", "asked", "occurrence", "reply"}
        assert stored["model"] == "openai-compatible:m"
        canonical = json.dumps(stored["asked"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert path.name.startswith(hashlib.sha256(canonical.encode()).hexdigest())
        assert "sk-very-secret" not in text


def changed(**fields: Any) -> Request:
    return request(**fields)


@pytest.mark.parametrize(
    ("asked", "context", "named"),
    [
        (request(), where(scope={**SCOPE, "goal": "mend it."}), "scope.goal"),
        (request(), where(scope={**SCOPE, "workspace": "sha256:ab"}), "scope.workspace"),
        (request(), where(scope={"goal": "mend it", "sources": "sha256:bb"}), "scope.workspace"),
        (request(), where(scope={**SCOPE, "new": None}), "scope.new"),
        (request(), where(scope={**SCOPE, "new": {}}), "scope.new"),
        (request(), where(role="planner"), "role"),
        (request(), where(step="s2"), "step"),
        (request(), where(occurrence=1), "occurrence 1"),
        (changed(text="hi "), where(), "request.messages[0].content"),
        (changed(temperature=0.2), where(), "request.temperature"),
        (changed(seed=1), where(), "request.seed"),
        (changed(max_output_tokens=101), where(), "request.max_output_tokens"),
        (changed(schema={"type": "object"}), where(), "request.schema"),
        (changed(tools=(ToolSpec("t", "d", {}),)), where(), "request.tools"),
    ],
)
async def test_any_change_is_a_miss_that_names_it(
    tmp_path: Path, asked: Request, context: CallContext, named: str
) -> None:
    await record(tmp_path, "one")
    meter = replay(tmp_path)
    with pytest.raises(RecordingMiss) as raised:
        await ask(meter, asked, context)
    text = str(raised.value)
    assert f"differ: {named}." in text or named == "occurrence 1"
    for word in (named, str(tmp_path), "make record", "--model", f"role {context.role}", f"step {context.step}"):
        assert word in text
    assert not raised.value.retryable
    assert meter.totals.input_tokens == 0


async def test_the_nearest_is_sought_in_the_same_step(tmp_path: Path) -> None:
    await record(tmp_path, "one", step="s2")
    await record(tmp_path, "one", asked=request("hello", seed=2))
    with pytest.raises(RecordingMiss, match=r"differ: request\.messages\[0\]\.content, request\.seed\."):
        await ask(replay(tmp_path), request(), where())


async def test_what_does_not_belong_to_the_question_changes_nothing(tmp_path: Path) -> None:
    (reply,) = await record(tmp_path, "one")
    same = Request(messages=(Message("user", "hi", extra={"provider": 1}),), max_output_tokens=100, temperature=0)
    reordered = dict(reversed(list(SCOPE.items())))
    assert await ask(replay(tmp_path), same, where(scope=reordered, attempt=3, turn=9)) == reply


async def test_only_the_listed_fields_are_masked(tmp_path: Path) -> None:
    assert recording._masks() == ("scope.task",)
    (reply,) = await record(tmp_path, "one", scope={**SCOPE, "task": "t-1"})
    assert await ask(replay(tmp_path), request(), where(scope={**SCOPE, "task": "t-2"})) == reply
    (path,) = tmp_path.iterdir()
    assert "t-1" not in path.read_text(encoding="utf-8")
    with pytest.raises(RecordingMiss, match=r"scope\.task"):  # being there at all is not masked
        await ask(replay(tmp_path), request(), where())


def test_a_mask_goes_through_objects_and_lists() -> None:
    value = {"a": [{"b": 1, "c": 2}, {"b": {"x": 1}}, 3], "d": 4}
    recording._mask(value, ["a", "*", "b"])
    recording._mask(value, ["d", "e"])
    recording._mask(value, ["nothing"])
    assert value == {"a": [{"b": "<masked>", "c": 2}, {"b": "<masked>"}, 3], "d": 4}


async def test_recording_again_replaces(tmp_path: Path) -> None:
    await record(tmp_path, "old")
    await record(tmp_path, "new")
    assert (await ask(replay(tmp_path), request(), where())).content == "new"
    assert len(list(tmp_path.iterdir())) == 1


async def test_a_changed_or_broken_file_is_not_taken(tmp_path: Path) -> None:
    await record(tmp_path, "one")
    (path,) = tmp_path.iterdir()
    good = path.read_text(encoding="utf-8")
    for text, words in (
        (good.replace("mend it", "end it"), "by hand"),
        (good[:40], "cannot be read"),
        (good.replace('"recorder": 1', '"recorder": 99'), "version 99"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecordingMiss, match=words):
            await ask(replay(tmp_path), request(), where())


async def test_a_failed_call_records_nothing(tmp_path: Path) -> None:
    async with serving(stream(delta("half"))) as server:
        model = open_model("openai-compatible:m", base_url=server.url, record=tmp_path, env={})
        meter = Meter(model, sleep=_no_wait)
        with pytest.raises(ModelError):
            await ask(meter, request(), where())
        await meter.aclose()
    assert list(tmp_path.iterdir()) == []


async def _no_wait(_: float) -> None:
    pass


async def test_a_reply_that_cannot_be_kept_is_an_error_and_still_counted(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    async with serving(*said("one")) as server:
        meter = recorder(server, folder)
        folder.write_text("a file stands where the folder should be")
        with pytest.raises(ModelError, match="could not be recorded"):
            await ask(meter, request(), where())
        await meter.aclose()
    assert (meter.totals.input_tokens, meter.totals.output_tokens) == (5, 2)


async def test_half_characters_in_a_request_can_be_recorded(tmp_path: Path) -> None:
    (reply,) = await record(tmp_path, "one", asked=request("a\ud83d"))
    assert await ask(replay(tmp_path), request("a\ud83d"), where()) == reply


def test_a_folder_without_a_recording_is_a_usage_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ModelConfigError, match="--record"):
            open_model(f"recorded:{folder}", env={})
