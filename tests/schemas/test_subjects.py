"""The grammar of subjects: every subject reads back, and no name can widen one."""

from __future__ import annotations

import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.schemas import InvalidName, subjects
from kokuban.schemas.subjects import Address

names = st.from_regex(re.compile(r"[a-z0-9][a-z0-9_-]{0,63}"), fullmatch=True)


@given(names, names, names, names, st.integers(1, 2**53))
def test_every_subject_reads_back(task: str, role: str, step: str, kind: str, fence: int) -> None:
    assert subjects.parse(subjects.spec(task)) == Address("spec", task)
    assert subjects.parse(subjects.final(task)) == Address("final", task)
    assert subjects.parse(subjects.buried(task)) == Address("buried", task)
    assert subjects.parse(subjects.work(task, role, step)) == Address("work", task, role, step)
    assert subjects.parse(subjects.register(task, role, step)) == Address("step", task, role, step)
    assert subjects.parse(subjects.journal(task, role, step)) == Address("journal", task, role, step)
    stored = subjects.artifact(task, role, kind, step, fence)
    assert subjects.parse(stored) == Address("artifact", task, role, rest=(kind, step, str(fence)))


@pytest.mark.parametrize(
    "subject",
    [
        "", "kb", "kb.task", "kb.task.t", "kb.task.t.spec.x", "kb.task.t.final.x", "kb.task.t.poem",
        "kb.task.t.buried.x",
        "kb.task.t.work.r", "kb.task.t.work.r.s.x", "kb.task.t.artifact.r.k.n", "kb.task.t.artifact.r.k.n.1.x",
        "kb.task.t.artifact.r.k", "kx.task.t.spec", "kb.tasks.t.spec", "kb.ctl.epoch.1", "kb.ctl.lease",
        "kb.task..spec", "kb.task.*.spec", "kb.task.T.spec", "kb.task.t.work.*.s", "kb.task.t.step.r.>",
        "kb.task.t.step.r.", "kb.task.t.step.r.s\n", "kb.task.t .spec", "kb.task.\xe9.spec", "KB.task.t.spec",
    ],
)  # fmt: skip
def test_what_is_not_in_the_grammar_is_nothing(subject: str) -> None:
    assert subjects.parse(subject) is None


@given(st.text(alphabet="kb.taskspecfinalworkstepjournalartifact*> \n\t", max_size=60))
def test_any_text_can_be_parsed(text: str) -> None:
    found = subjects.parse(text)
    if found is not None:
        for part in (found.task, found.role, found.step, *found.rest):
            assert part == "" or subjects.token(part, "part") == part


@pytest.mark.parametrize(
    "value",
    ["", ".", "a.b", "*", ">", "a*", "a>", "a b", "a\n", "\na", "a\t", "A", "é", "-a", "_a", "a" * 65, "a\0", "$js"],
)
def test_a_name_that_would_widen_a_subject_is_refused_by_field(value: str) -> None:
    with pytest.raises(InvalidName) as caught:
        subjects.token(value, "step")
    assert str(caught.value).startswith("step: ")
    assert len(str(caught.value)) < 500


def test_a_huge_name_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidName) as caught:
        subjects.token("x" * 100_000, "task")
    assert len(str(caught.value)) < 300


@given(st.text(max_size=70))
def test_a_token_never_changes_the_number_of_parts(value: str) -> None:
    try:
        subjects.token(value, "step")
    except InvalidName:
        return
    for subject in (subjects.register(value, value, value), subjects.announcement(value, value, value)):
        assert re.fullmatch(r"[\w.-]+", subject)
    assert subjects.parse(subjects.register(value, value, value)) == Address("step", value, value, value)


@given(names, names)
def test_filters_match_what_they_are_for(task: str, role: str) -> None:
    def matches(pattern: str, subject: str) -> bool:
        return bool(re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+"), subject))

    assert matches(subjects.task_records(task), subjects.spec(task))
    assert matches(subjects.orders_for(role), subjects.work(task, role, "s"))
    assert not matches(subjects.orders_for(role), subjects.work(task, role + "x", "s"))
    for subject in (subjects.spec(task), subjects.LEASE, subjects.epoch(3), subjects.final(task)):
        assert matches(subjects.BOARD_SUBJECTS, subject)
    for hint in (subjects.heartbeat(role, "w"), subjects.delta(task, role, "s"), subjects.HINTS):
        assert not matches(subjects.BOARD_SUBJECTS, hint)
    assert subjects.consumer(role) == role


def test_the_shard_of_a_task_can_be_computed_in_any_language() -> None:
    assert subjects.shard("t-1") == zlib.crc32(b"t-1") % 16 == 11
    assert {subjects.shard(f"t-{n}") for n in range(500)} == set(range(subjects.EPOCH_SHARDS))
    assert subjects.epoch(15) == "kb.ctl.epoch.15"
