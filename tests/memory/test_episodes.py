"""An episode: what a task tried and what came of it, as its events say."""

from __future__ import annotations

import msgspec
import pytest

from kokuban.blackboard import Event
from kokuban.blackboard.memory import episode
from kokuban.schemas import Critique, Ref, digest, encode

D1, D2 = digest(b"critique"), digest(b"deliverable")


def events(*, ended: bool = True, failures: int = 1, goal: str = "Make  add\nright") -> list[Event]:
    critique = Critique(Ref("fix", "patch", "fix", D2, 4), "Look at the\nsign.")
    told = [Event(1, 1.0, "submitted", "t-1", text=goal)]
    told += [Event(2, 1.0, "failed", "t-1", "fix", "coder", n, text=f"checks failed {n}") for n in range(failures)]
    told.append(Event(3, 1.0, "artifact", "t-1", "check", "verifier", 1, kind="critique", name="c", digest=D1,
                      content=msgspec.Raw(encode(critique))))  # fmt: skip
    if ended:
        told.append(Event(4, 1.0, "artifact", "t-1", kind="deliverable", name="d", digest=D2))
        told.append(Event(5, 1.0, "ended", "t-1", text="done: all checks pass"))
    return told


def test_goal_outcome_failures_and_critiques() -> None:
    found = episode(events(), tenant="acme", task="t-1", expires_seconds=60)
    assert found.text.splitlines() == [
        "Goal: Make add right", "Outcome: done: all checks pass",
        "Failed: step fix (coder), attempt 0: checks failed 0",
        "Critique of step check (verifier), attempt 1: Look at the sign.",
    ]  # fmt: skip
    assert (found.kind, found.key, found.task, found.sources) == ("episode", "Make add right", "t-1", (D1, D2))
    assert found.expires_seconds == 60


def test_it_is_bounded() -> None:
    found = episode(events(failures=500, goal="g" * 60_000), tenant="acme", task="t-1", expires_seconds=None)
    assert len(found.key) <= 200
    assert len(found.text) < 10_000
    assert "checks failed 499" in found.text
    assert "checks failed 100\n" not in found.text


def test_of_a_task_that_has_not_ended_nothing_is_known() -> None:
    with pytest.raises(ValueError, match="t-1 has not ended"):
        episode(events(ended=False), tenant="acme", task="t-1", expires_seconds=None)
