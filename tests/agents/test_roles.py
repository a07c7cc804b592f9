"""The built-in roles over a real board: from a goal to a proven deliverable, plans and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kokuban.agents.roles.researcher import cite, stands
from kokuban.schemas import Finding
from support.desk import tree
from support.nats_server import NatsServer
from support.playing import find, play
from support.team import (
    FILES,
    FIX_ADD,
    FIX_DOUBLE,
    edit,
    finish,
    plan,
)

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------------- the way through


async def test_a_task_comes_to_a_proven_deliverable(nats_server: NatsServer, tmp_path: Path) -> None:
    docs = {"rules.md": "# Rules\n\nTo add is to sum.\nDoubling adds a number\nto itself.\n", "other.md": "# Cakes\n"}
    played = await play(
        nats_server.url, tmp_path,
        plan(("facts", "researcher", ()), ("fix-add", "coder", ("facts",)), ("fix-double", "coder", ("facts",))),
        find("rules.md", "Doubling adds a number to itself."),
        edit("fix-add", FIX_ADD), finish("fix-add"), edit("fix-double", FIX_DOUBLE), finish("fix-double"),
        docs=docs,
    )  # fmt: skip
    outcome = played.outcome
    assert outcome.state == "done"
    assert outcome.checked
    assert outcome.deliverable is not None
    fixed = FILES["calc.py"].replace(*FIX_ADD).replace(*FIX_DOUBLE)
    assert {path: file.content.decode() for path, file in outcome.files.items()} == {"calc.py": fixed}
    # the manifest names exactly the artifacts that the file comes from
    patches = {a.ref for a in played.board.tasks[played.task].artifacts.values() if a.ref.kind == "patch"}
    (part,) = outcome.deliverable.manifest
    assert part.path == "calc.py"
    assert set(part.sources) == patches
    assert {ref.step for ref in part.sources} == {"fix-add", "fix-double"}
    assert {ref.step for ref in outcome.deliverable.cites} >= {"facts", "fix-add", "fix-double"}
    # the quote is the document's own words, and where they stand
    (finding,) = played.artifacts("finding")
    (citation,) = finding.citations
    assert (citation.quote, citation.first, citation.last) == ("Doubling adds a number\nto itself.", 4, 5)
    # each artifact was judged by somebody else, under its digest; the merged result as a whole
    verdicts = played.artifacts("verdict")
    assert {v.subject.kind for v in verdicts} == {"finding", "patch", "deliverable"}
    assert all(v.passed for v in verdicts)
    (final,) = [v for v in verdicts if v.subject.kind == "deliverable"]
    assert final.scope == "whole"
    assert final.tree == outcome.deliverable.tree
    assert [c.exit_code for c in final.checks] == [0]
    for verdict in verdicts:
        assert verdict.subject.digest in played.board.tasks[played.task].artifacts
    assert outcome.usage.model_calls == 6


async def test_without_a_check_it_is_labelled_unchecked(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("fix", "coder", ())), edit("fix", FIX_ADD), finish("fix"), checks=()
    )
    assert played.outcome.state == "done"
    assert not played.outcome.checked
    assert "unchecked" in played.outcome.reason
    assert "unchecked" in played.outcome.as_folder()["report.md"].content.decode()
    assert not any(v.checked for v in played.artifacts("verdict"))


async def test_different_plans_are_different_dags(nats_server: NatsServer, tmp_path: Path) -> None:
    played = await play(
        nats_server.url, tmp_path, plan(("one", "coder", ()), ("two", "coder", ("one",))),
        edit("one", FIX_ADD), finish("one"), edit("two", FIX_DOUBLE),
    )  # fmt: skip
    assert played.outcome.state == "done"
    first, second = played.artifacts("patch", "one") + played.artifacts("patch", "two")
    assert second.base == first.result
    assert len(second.onto) == 1
    assert "a - b" not in second.diff  # each diff shows its own work alone
    assert played.artifacts("verdict", "verify-two")[0].scope == "whole"
    assert played.artifacts("verdict", "verify-one")[0].scope == "part"


async def test_who_completes_the_tree_is_told_what_was_asked_word_for_word(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A planner's account may have lost some of it; who does a part is told that part."""
    asked = "Task: Make adding and doubling pass the checks\n"
    told = edit("two", FIX_DOUBLE)
    played = await play(
        nats_server.url, tmp_path, plan(("one", "coder", ()), ("two", "coder", ("one",))),
        edit("one", FIX_ADD) | {"when": {"role": "coder", "contains": "Task: Do the part named one\n"}}, finish("one"),
        told | {"when": told["when"] | {"contains": asked}},
    )  # fmt: skip
    assert played.outcome.state == "done"


# ---------------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (plan(("one", "coder", ("two",)), ("two", "coder", ("one",))), "circle: one"),
        (plan(("one", "coder", ()), ("one", "coder", ())), "refused"),
        (plan(("one", "coder", ("ghost",))), "ghost"),
        (plan(("integrate", "coder", ())), "refused"),
        (plan(("one", "verifier", ())), "refused"),
        (plan(("one", "researcher", ())), "refused"),  # the task brings no documents
        ({"when": {"role": "planner"}, "reply": {"content": "I would rather not"}}, "not the JSON"),
        (plan(*((f"s{n}", "coder", (f"s{n - 1}",) if n else ()) for n in range(5_000))), "5000 steps are too many"),
    ],
)
async def test_a_bad_plan_is_named_back_and_mended(
    nats_server: NatsServer, tmp_path: Path, bad: dict[str, Any], named: str
) -> None:
    mended = {**plan(("fix", "coder", ())), "when": {"role": "planner", "contains": named}}
    played = await play(
        nats_server.url, tmp_path, mended, {**bad, "times": 1}, edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE)
    )
    assert played.outcome.state == "done"
    assert len(played.artifacts("plan")) == 1
    assert played.outcome.usage.model_calls == 4


async def test_a_planner_that_cannot_ends_the_task_with_the_reason(nats_server: NatsServer, tmp_path: Path) -> None:
    bad = plan(("one", "coder", ("two",)), ("two", "coder", ("one",)))
    played = await play(nats_server.url, tmp_path, bad, attempts=2)
    assert played.outcome.state == "failed"
    assert "circle" in played.outcome.reason
    assert len(played.happened("ordered", "plan")) == 2
    assert played.outcome.deliverable is None
    assert played.outcome.as_folder() == {}


# ---------------------------------------------------------------------- findings


@pytest.mark.parametrize("quote", ["Doubling subtracts", "doubling adds a number", "To add is to sum!", "rules"])
async def test_a_quote_that_is_not_there_is_refused(nats_server: NatsServer, tmp_path: Path, quote: str) -> None:
    docs = {"rules.md": "To add is to sum.\nDoubling adds a number to itself.\nMake checks pass.\n"}
    quote = quote if len(quote) > 5 else quote + " of old"
    mended = {**find("rules.md", "To add is to sum."), "when": {"role": "researcher", "contains": "Refused"}}
    played = await play(
        nats_server.url, tmp_path, plan(("facts", "researcher", ()), ("fix", "coder", ("facts",))),
        mended, find("rules.md", quote), edit("fix", FIX_ADD), edit("fix", FIX_DOUBLE), docs=docs,
    )  # fmt: skip
    assert played.outcome.state == "done"
    assert [f.citations[0].quote for f in played.artifacts("finding")] == ["To add is to sum."]


def test_a_citation_is_verbatim_or_nothing() -> None:
    sources = tree({"a.md": "one two\n  three\nfour", "b.md": "x"})
    found = cite(sources, "a.md", "two three")
    assert found is not None
    assert (found.quote, found.first, found.last) == ("one two\n  three", 1, 2), "with the rest of its lines"
    long = cite(tree({"a.md": f"one two {'and ' * 100}"}), "a.md", "one  two")
    assert long is not None
    assert long.quote == "one two", "a line that is too long stays out"
    assert stands(sources, found)
    for quote in ("two  four", "Two three", "", "  ", "three.", "one two three four five"):
        assert cite(sources, "a.md", quote) is None
    assert cite(sources, "none.md", "one") is None
    for wrong in (
        {"first": 2}, {"last": 1}, {"quote": "two three"}, {"source": "b.md"}, {"sha256": "sha256:" + "0" * 64},
    ):  # fmt: skip
        values = {name: getattr(found, name) for name in found.__struct_fields__} | wrong
        assert not stands(sources, type(found)(**values)), wrong
    changed = tree({"a.md": "one two\n  three\nfive"})
    assert not stands(changed, found)  # the document is another now
    assert Finding("s", (found,)).citations
