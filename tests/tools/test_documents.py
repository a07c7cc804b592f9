"""Searching documents: what a model asks is words, the best passage comes first, and nothing is lost between pages."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban.agents.tools import Arguments, Observation, Registry, ToolContext, execute
from kokuban.agents.tools import documents as module
from kokuban.agents.tools.documents import SEARCH_DOCUMENTS, match_of
from kokuban.blackboard.workspace import File, Tree

pytestmark = pytest.mark.anyio
Make = Callable[..., ToolContext]
DOCS: Tree = {
    "rates.md": File(
        b"# Shipping rates\n\nA parcel below 2 kg costs 4.90.\nHeavier ones cost 7.20.\n"
        b"\n## Returns\n\nFree.\n"
    ),
    "people.md": File(b"# Team\n\nAnna leads the team. The team ships on Fridays.\n\nBob cooks.\n"),
    "api.md": File(b"# API\n\nCall getShippingRate(weight_kg) to ask for a price.\n"),
    "board.md": File("# 黒板\n\nエージェントは黒板に書く。\n".encode()),
}  # fmt: skip


async def search(here: ToolContext, query: str, **more: Any) -> Observation:
    judged = Registry([SEARCH_DOCUMENTS]).validate("search_documents", {"query": query, **more})
    assert isinstance(judged, Arguments), judged
    return await execute(judged, here)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what does a parcel cost below 2 kg?", "rates.md, lines 3-4:\nA parcel below 2 kg costs 4.90.\nHeavier"),
        ("parcels", "rates.md, lines 3-4:\nA parcel"),
        ("FRIDAY", "people.md, line 3:\nAnna leads"),
        ("weight rate", "api.md, line 3:\nCall"),
        ("黒板", "board.md, line 1:\n# 黒板"),
        ("書く", "board.md, line 3:\nエージェント"),
    ],
)
async def test_the_fitting_passage_comes_first_word_for_word(context: Make, query: str, first: str) -> None:
    here = context(sources=DOCS)
    seen = await search(here, query)
    assert seen.ok
    assert seen.text.startswith(first)
    assert seen.text == (await search(here, query)).text


SYNTAX = ['"', '"parcel', "parcel AND", "NOT parcel", "text : parcel", "heading:parcel", "parcel*", "^parcel",
          "NEAR(parcel cost)", "{text heading}: parcel", "- heading : parcel", "(", "parcel OR", "a'b", 'a""b',
          "+parcel", "parcel; DROP TABLE passage", "?", "\u0000parcel"]  # fmt: skip


@pytest.mark.parametrize("query", SYNTAX)
async def test_nothing_in_a_query_is_syntax(context: Make, query: str) -> None:
    here = context(sources=DOCS)
    seen = await search(here, query)
    words = re.findall(r"\w+", query)
    assert seen.ok == bool(words), seen.text
    if "parcel" in words:
        assert "A parcel below 2 kg" in seen.text
    if not words:
        assert "a few telling words" in seen.text
    assert "A parcel below 2 kg" in (await search(here, "parcel")).text


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_query(query: str) -> None:
    match = match_of(query)
    if match:
        index = module._index(DOCS)
        hits, total = index.search(match, 5, 0)
        assert len(hits) == min(5, total)
    assert re.fullmatch(r'("[^"]+"( OR "[^"]+")*)?', match)


async def test_pages_are_bounded_and_lead_to_every_hit_once(context: Make) -> None:
    texts = {f"d{n:02}.md": File(f"wort {n} {'é' * (n * 40)}\n".encode()) for n in range(60)}
    here = context(sources=texts)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await search(here, "wort", max_results=20, **cursor)).text
        assert len(page.encode()) <= SEARCH_DOCUMENTS.result_cap_bytes
        found += re.findall(r"^(d\d\d\.md), line 1", page, re.MULTILINE)
        more = re.search(r'more with cursor "([^"]+)"', page)
        if more is None:
            break
        cursor = {"cursor": more[1]}
    assert sorted(found) == sorted(texts)
    assert page.endswith("of 60; these are the last]")
    other = await search(here, "another", **cursor)
    assert not other.ok
    assert "another query" in other.text
    assert "only 60 hits" in (await search(here, "wort", cursor=f"{cursor['cursor'][:12]}-999999999")).text


async def test_a_long_line_is_found_at_its_place(context: Make) -> None:
    here = context(sources={"a.txt": File(b"x " * 5_000 + b"needle\n"), "b.txt": File(b"some words\n" * 1_000)})
    seen = (await search(here, "needle")).text
    assert seen.startswith("a.txt, line 1, characters 10001-10006:\nneedle")
    assert "b.txt, lines 1-24:" in (await search(here, "words")).text


async def test_what_is_no_text_or_too_much_is_named(context: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INDEXED_BYTES", 100)
    here = context(sources={"a.md": File(b"fact"), "b.png": File(b"\x89PNG\0"), "c.md": File(b"fact " * 100)})
    seen = await search(here, "fact")
    assert seen.text == (
        "a.md, line 1:\nfact\n\n[hits 1-1 of 1; these are the last]\n"
        "[not searched: b.png (not text), c.md (500 bytes are too many)]"
    )
    many = {f"{n:03}.bin": File(b"\0") for n in range(500)}
    assert "and 480 more" in (await search(dataclasses.replace(here, sources=many), "fact")).text


async def test_an_empty_result_says_what_to_try(context: Make) -> None:
    here = context(sources=DOCS)
    seen = await search(here, "zebra")
    assert seen.ok
    assert "Try other words" in seen.text
    assert "api.md, board.md, people.md, rates.md" in seen.text
    nothing = await search(dataclasses.replace(here, sources={}), "zebra")
    assert not nothing.ok
    assert "no sources" in nothing.text


async def test_the_loop_goes_on_beside_an_index_that_is_made(context: Make) -> None:
    here = context(sources={f"{n}.md": File(b"some words of a long text\n\n" * 20_000) for n in range(4)})
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    counting = asyncio.create_task(count())
    seen = await search(here, "long")
    counting.cancel()
    assert "of 80000" in seen.text
    assert turns > 10


async def test_many_at_once_search_the_same_index(context: Make) -> None:
    here = context(sources=DOCS)
    seen = await asyncio.gather(*(search(here, query) for query in ["parcel", "team", "price"] * 10))
    assert all(one.ok for one in seen)
    assert len({one.text for one in seen}) == 3
