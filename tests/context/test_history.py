"""The conversation (G1, G2): nothing is cut inside a round, what must stay stays, and it gets smaller or says so."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban.agents._history import BrokenHistory, History
from kokuban.agents.models import Call, Message, Request, ToolSpec, estimate_request_tokens

EXAMPLES = int(os.environ.get("KOKUBAN_FUZZ_EXAMPLES", "100"))
PINNED = (Message("system", "You are a coder."), Message("user", "Goal: mend add(). Never touch check.sh."))


def history(window: int | None = 4_000, *, tools: int = 0) -> History:
    specs = tuple(ToolSpec(f"t{n}", "x" * 400, {"type": "object"}) for n in range(tools))
    return History(PINNED, specs, 500, window)


def asks(found: History, n: int, name: str = "read_file", said: str = "ok", arguments: str = '{"path":"a.py"}') -> None:
    found.add(Message("assistant", "", (Call(f"c{n}", name, arguments),)))
    found.add(Message("tool", said, call_id=f"c{n}"))


def paired(asked: Request) -> None:
    """Every call has exactly one result, before any other assistant's turn; and no result is alone."""
    waiting: list[str] = []
    for message in asked.messages:
        if message.role == "assistant":
            assert waiting == []
            waiting = [call.id for call in message.calls]
        elif message.role == "tool":
            assert message.call_id in waiting
            waiting.remove(message.call_id)
    assert waiting == []


def test_a_request_with_an_open_call_is_never_made() -> None:
    found = history()
    found.add(Message("assistant", "", (Call("A", "look", "{}"), Call("B", "look", "{}"))))
    found.add(Message("tool", "a", call_id="A"))
    with pytest.raises(BrokenHistory, match="B"):
        found.request()
    with pytest.raises(BrokenHistory, match="B"):
        found.add(Message("assistant", "next"))
    with pytest.raises(BrokenHistory, match="'C'"):
        found.add(Message("tool", "c", call_id="C"))
    found.add(Message("tool", "b", call_id="B"))
    paired(found.request())


def test_two_calls_of_one_name_want_two_results() -> None:
    found = history()
    found.add(Message("assistant", "", (Call("A", "look", "{}"), Call("A", "look", "{}"))))
    found.add(Message("tool", "1", call_id="A"))
    with pytest.raises(BrokenHistory):
        found.request()
    found.add(Message("tool", "2", call_id="A"))
    found.request()


def test_small_histories_stay_word_for_word_and_only_grow_at_the_end() -> None:
    found = history(None)
    before: tuple[Message, ...] = PINNED
    for n in range(10):
        asks(found, n)
        after = found.request().messages
        assert after[: len(before)] == before
        before = after


def test_what_is_left_out_is_kept_by_what_it_came_to() -> None:
    found = history(3_000)
    digest = "sha256:" + "a" * 64
    asks(found, 1, said=f"line 4711 of lib/core.py {'x ' * 900} kept as {digest}")
    asks(found, 2, "edit_file", "edit_file was not run: text not found", '{"path":"lib/core.py","old":"q"}')
    asks(found, 3, "run_checks", f"1 of 3 checks failed: test_total expected 12.50 {'y ' * 900}")
    for n in range(4, 14):
        asks(found, n, "look", f"file number {n} {'z ' * 600}", f'{{"path":"f{n}.py"}}')
    asked = found.request()
    paired(asked)
    assert asked.messages[: len(PINNED)] == PINNED
    text = asked.messages[len(PINNED)].content
    for verbatim in (
        "4711",
        "lib/core.py",
        digest,
        "12.50",
        'edit_file({"path": "lib/core.py", "old": "q"})',
        "test_total",
    ):
        assert verbatim in text, verbatim
    assert "Errors that were not resolved:\n- edit_file(" in text
    assert estimate_request_tokens(asked) < 3_000
    assert found.fits


def test_an_error_that_was_resolved_is_no_longer_open() -> None:
    found = history(2_000)
    asks(found, 1, "edit_file", "edit_file failed")
    asks(found, 2, "edit_file", "Changed a.py.")
    for n in range(3, 12):
        asks(found, n, "look", "z " * 600)
    text = found.request().messages[len(PINNED)].content
    assert "Errors" not in text


def test_one_item_larger_than_the_window_is_shortened() -> None:
    found = history(2_000)
    asks(found, 1, said="BEGIN " + "x" * 200_000 + " END")
    asked = found.request()
    paired(asked)
    assert "BEGIN" in asked.messages[-1].content
    assert "END" in asked.messages[-1].content
    assert found.fits


def test_tools_and_the_reply_count() -> None:
    few, many = history(6_000), history(6_000, tools=20)
    for found in (few, many):
        for n in range(6):
            asks(found, n, said="w " * 400)
    assert few.request().messages[len(PINNED)].role == "assistant", "it fits as it is"
    assert many.request().messages[len(PINNED)].content.startswith("[earlier turns")


def test_what_cannot_fit_says_so() -> None:
    found = History((Message("user", "x" * 40_000),), (), 500, 2_000)
    found.request()
    assert not found.fits
    assert not found.compact()


def test_provider_fields_stay_whole() -> None:
    found = history(2_000)
    extra: dict[str, Any] = {"anthropic": {"model": "m", "blocks": [{"type": "thinking", "thinking": "t" * 50}]}}
    for n in range(9):
        found.add(Message("assistant", "", (Call(f"c{n}", "look", "{}"),), extra=extra))
        found.add(Message("tool", "z " * 700, call_id=f"c{n}"))
    assert {str(m.extra) for m in found.request().messages if m.role == "assistant"} == {str(extra)}


words = st.text(alphabet="ab 1.\n", max_size=3_000)


@given(st.lists(st.tuples(st.integers(0, 3), words, st.booleans()), max_size=25), st.integers(900, 9_000))
@settings(max_examples=EXAMPLES, deadline=None)
def test_whatever_the_history_rounds_stay_whole(turns: list[tuple[int, str, bool]], window: int) -> None:
    one, other = history(window), history(window)
    for found in (one, other):
        for n, (calls, text, speaks) in enumerate(turns):
            found.add(
                Message(
                    "assistant",
                    text if speaks or not calls else "",
                    tuple(Call(f"{n}-{c}", "look", "{}") for c in range(calls)),
                )
            )
            for c in range(calls):
                found.add(Message("tool", f"{text} id-{n}", call_id=f"{n}-{c}"))
            if not calls:
                found.add(Message("user", "go on"))
            asked = found.request()
            paired(asked)
            assert asked.messages[: len(PINNED)] == PINNED
            if found.compact():
                paired(found.request())
    assert one.request() == other.request(), "whoever takes the step up asks the same"
