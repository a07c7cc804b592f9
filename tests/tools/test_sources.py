"""Searching sources: the right passage first, word for word, at the place it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.tools import SEARCH_SOURCES, Arguments, Registry, ToolContext, execute, passages, rank
from kokuban.blackboard.workspace import File, Tree

pytestmark = pytest.mark.anyio


def sources(**texts: str) -> Tree:
    return {f"{name}.md": File(text.encode()) for name, text in texts.items()}


DOCS = sources(
    rates="# Shipping rates\n\nA parcel below 2 kg costs 4.90.\nHeavier ones cost 7.20.\n\n## Returns\n\nFree.\n",
    people="# Team\n\nAnna leads the team. The team ships on Fridays.\n\nBob cooks.\n",
    api="# API\n\nCall getShippingRate(weight_kg) to ask for a price.\n",
)


def test_the_fitting_passage_comes_first_with_its_place() -> None:
    first = rank(DOCS, "what does a parcel cost below 2 kg?")[0]
    assert (first.source, first.start_line, first.end_line) == ("rates.md", 3, 4)
    assert first.text == "A parcel below 2 kg costs 4.90.\nHeavier ones cost 7.20."


@pytest.mark.parametrize(
    ("query", "source", "line"),
    [
        ("returns", "rates.md", 6),  # the heading itself
        ("are returns free", "rates.md", 8),  # a passage is found by the heading above it
        ("parcels", "rates.md", 3),
        ("rate weight", "api.md", 3),  # parts of identifiers
        ("FRIDAY", "people.md", 3),
    ],
)
def test_words_match_by_heading_plural_identifier_and_case(query: str, source: str, line: int) -> None:
    found = rank(DOCS, query)
    assert (source, line) in [(hit.source, hit.start_line) for hit in found[:2]]


def test_nothing_fits_nothing_and_results_are_limited() -> None:
    assert rank(DOCS, "zebra") == ()
    assert rank(DOCS, "?!") == ()
    assert rank({}, "x") == ()
    assert len(rank(DOCS, "team ships cost a the", limit=2)) == 2


@given(st.lists(st.sampled_from(["", "one", "  two  ", "\t", "# h", "ü\r", "x\x0cy"]), max_size=80))
def test_passages_are_verbatim_and_cover_every_line_that_is_not_blank(lines: list[str]) -> None:
    text = "\n".join(lines)
    found = passages(sources(a=text))
    covered: list[int] = []
    for passage in found:
        assert passage.text == "\n".join(lines[passage.start_line - 1 : passage.end_line])
        assert passage.end_line - passage.start_line < 24
        covered += range(passage.start_line, passage.end_line + 1)
    assert covered == [number for number, line in enumerate(lines, start=1) if line.strip()]


def test_binary_sources_are_left_out() -> None:
    assert passages({"a.png": File(b"\x89PNG\0"), "b.md": File(b"text")})[0].source == "b.md"


async def test_the_tool_shows_passages_and_explains_a_miss(context: Callable[..., ToolContext]) -> None:
    here = context(sources=DOCS)
    registry = Registry([SEARCH_SOURCES])

    async def ask(query: str) -> tuple[str, bool]:
        judged = registry.validate("search_sources", {"query": query})
        assert isinstance(judged, Arguments)
        seen = await execute(judged, here)
        return seen.text, seen.ok

    text, ok = await ask("heavier parcel")
    assert ok
    assert text.startswith("rates.md, lines 3-4:\nA parcel below 2 kg costs 4.90.\n")
    text, ok = await ask("zebra")
    assert not ok
    assert "try other words" in text
    assert "people.md" in text
