"""Searching the task's sources: paragraphs ranked for a query, verbatim and with their place."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.blackboard.workspace import Tree, is_text

_PASSAGE_LINES = 24
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_WORDS = re.compile(r"\w+")
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive lines of a source: `text` is what stands in lines `start_line` to `end_line` (from 1), verbatim."""

    source: str
    start_line: int
    end_line: int
    text: str


def passages(sources: Tree) -> tuple[Passage, ...]:
    """The paragraphs of all text sources in order: runs of lines that are not blank, cut after 24 lines."""
    return tuple(passage for passage, _ in with_headings(sources))


def rank(sources: Tree, query: str, limit: int = 5) -> tuple[Passage, ...]:
    """The passages that fit the query best (BM25; the heading above counts as part of a passage; parts of identifiers
    and plural forms match), best first, at most `limit`. The same input gives the same order."""
    entries = with_headings(sources)
    counts = [Counter(_terms(f"{heading}\n{passage.text}")) for passage, heading in entries]
    wanted = set(_terms(query))
    if not entries or not wanted:
        return ()
    average = sum(count.total() for count in counts) / len(counts)
    containing = {term: sum(term in count for count in counts) for term in wanted}
    scores = []
    for at, count in enumerate(counts):
        score = 0.0
        for term in sorted(wanted):
            if times := count[term]:
                rarity = math.log(1 + (len(counts) - containing[term] + 0.5) / (containing[term] + 0.5))
                score += rarity * times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * count.total() / average))
        if score:
            scores.append((-score, at))
    return tuple(entries[at][0] for _, at in sorted(scores)[:limit])


def with_headings(sources: Tree) -> list[tuple[Passage, str]]:
    """The passages, each with the heading above it."""
    found: list[tuple[Passage, str]] = []
    for source in sorted(sources):
        content = sources[source].content
        if not is_text(content):
            continue
        heading, first = source, 0
        lines = content.decode().split("\n")
        for number, line in enumerate([*lines, ""]):
            if not line.strip() or number - first == _PASSAGE_LINES:
                if first < number:
                    found.append((Passage(source, first + 1, number, "\n".join(lines[first:number])), heading))
                first = number if line.strip() else number + 1
            if line.startswith("#"):
                heading = f"{source} {line}"
    return found


def parts(text: str) -> list[str]:
    """The parts of the identifiers in a text: `get` and `rate` of `getRate`."""
    return [part for word in _WORDS.findall(text) for part in _parts_of(word)]


def _parts_of(word: str) -> list[str]:
    return [part for piece in word.split("_") for part in _HUMPS.findall(piece) if part != word]


def _terms(text: str) -> list[str]:
    terms = []
    for word in _WORDS.findall(text):
        terms += [part.lower() for part in (word, *_parts_of(word))]
    return [term[:-1] if len(term) > 3 and term.endswith("s") else term for term in terms]


def _search_sources(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    if not context.sources:
        raise ToolError("this task has no sources; work from the goal and the workspace")
    found = rank(context.sources, arguments["query"], arguments.get("max_results", 5))
    if not found:
        names = ", ".join(sorted(context.sources)[:20])
        raise ToolError(f"no passage has a word of {arguments['query'][:100]!r}; try other words. Sources: {names}")
    return "\n\n".join(f"{hit.source}, lines {hit.start_line}-{hit.end_line}:\n{hit.text}" for hit in found)


SEARCH_SOURCES = Tool(
    "search_sources",
    "Find the passages of the task's sources that fit a question. Returns them word for word and with their place. "
    "Not for files of the workspace.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "A few telling words"},
            "max_results": {"type": "integer", "minimum": 1, "maximum": 20, "description": "5 by default"},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    _search_sources,
    tier="read",
    effect="read",
)
