"""Searching the task's sources by their words: SQLite's FTS5 ranks passages (BM25), a page at a time.

The index is made at the first search, in memory, in the tool's own thread, and kept for those who search the same
sources next. What a model asks is words: each is quoted, so that nothing in it is ever syntax.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, NamedTuple

from kokuban.agents.sandbox import clip
from kokuban.agents.tools._context import ToolContext
from kokuban.agents.tools._errors import ToolError
from kokuban.agents.tools._registry import Tool
from kokuban.agents.tools.sources import parts, with_headings
from kokuban.blackboard.workspace import Tree, is_text, tree_digest

MAX_INDEXED_BYTES = 8 * 2**20
"""Text of all sources together that is indexed (8 MiB: some seconds); sources that do not fit any more are named."""
MAX_QUERY_WORDS = 32
_PAGE_BYTES = 12_288
_PIECE_CHARACTERS = 2_000
_NAMED = 20
_KEPT_INDEXES = 2
_WORDS = re.compile(r"\w+")
# Scripts written without spaces: each character is a word, and a word of a query is a phrase of them.
_UNSPACED = re.compile(r"([\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")
_TABLE = (
    "CREATE VIRTUAL TABLE passage USING fts5(text, heading, parts, content='', "
    "tokenize='porter unicode61 remove_diacritics 2')"
)
_HITS = "SELECT rowid FROM passage WHERE passage MATCH ? ORDER BY bm25(passage, 1.0, 0.5, 0.7), rowid LIMIT ? OFFSET ?"
_COUNT = "SELECT count(*) FROM passage WHERE passage MATCH ?"


class _Piece(NamedTuple):
    """What one hit shows: `text` stands at `place` of `source`, verbatim."""

    source: str
    place: str
    text: str


class _Index:
    """The passages of one tree of sources. May be used from any thread, by one at a time."""

    def __init__(self, sources: Tree, digest: str) -> None:
        self.digest = digest
        self.left_out: list[str] = []
        self._lock = threading.Lock()
        self._pieces: list[_Piece] = []
        self._base = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._base.close)
        try:
            self._base.execute(_TABLE)
            self._base.executemany(
                "INSERT INTO passage (rowid, text, heading, parts) VALUES (?, ?, ?, ?)", self._rows(sources)
            )
        except sqlite3.OperationalError as error:
            raise ToolError("this worker's SQLite cannot search (it has no FTS5); use search_sources") from error

    def _rows(self, sources: Tree) -> Iterator[tuple[int, str, str, str]]:
        room, fitting = MAX_INDEXED_BYTES, dict(sources)
        for name in sorted(sources):
            content = sources[name].content
            if not is_text(content):
                why = "not text"
            elif len(content) > room:
                why = f"{len(content):,} bytes are too many"
            else:
                room -= len(content)
                continue
            self.left_out.append(f"{name} ({why})")
            del fitting[name]
        for passage, heading in with_headings(fitting):
            for piece in _pieces(passage.source, passage.start_line, passage.text):
                self._pieces.append(piece)
                yield len(self._pieces), _spaced(piece.text), _spaced(heading), " ".join(parts(piece.text))

    def search(self, query: str, limit: int, offset: int) -> tuple[list[_Piece], int]:
        """The hits from `offset` on, best first, and how many there are in all."""
        with self._lock, closing(self._base.cursor()) as cursor:
            (total,) = cursor.execute(_COUNT, (query,)).fetchone()
            rows = cursor.execute(_HITS, (query, limit, offset)).fetchall()
        return [self._pieces[row[0] - 1] for row in rows], total


_indexes: OrderedDict[str, _Index] = OrderedDict()
_making = threading.Lock()


def _index(sources: Tree) -> _Index:
    """By what the sources hold: another step with the same ones need not read them again."""
    digest = tree_digest(sources)
    with _making:
        found = _indexes.get(digest)
        if found is None:
            found = _indexes[digest] = _Index(sources, digest)
        _indexes.move_to_end(digest)
        while len(_indexes) > _KEPT_INDEXES:
            _indexes.popitem(last=False)  # closed when the last search on it has ended
    return found


def _pieces(source: str, line: int, text: str) -> Iterator[_Piece]:
    """A passage in pieces of at most 2,000 characters, cut between lines where that is possible."""
    lines = text.split("\n")
    first, size = 0, 0
    for at, one in enumerate(lines):
        if at > first and size + len(one) > _PIECE_CHARACTERS:
            yield from _cut(source, line + first, lines[first:at])
            first, size = at, 0
        size += len(one) + 1
    yield from _cut(source, line + first, lines[first:])


def _cut(source: str, line: int, lines: list[str]) -> Iterator[_Piece]:
    text = "\n".join(lines)
    if len(lines) > 1 or len(text) <= _PIECE_CHARACTERS:
        last = line + len(lines) - 1
        yield _Piece(source, f"lines {line}-{last}" if last > line else f"line {line}", text)
        return
    for start in range(0, len(text), _PIECE_CHARACTERS):
        place = f"line {line}, characters {start + 1}-{min(len(text), start + _PIECE_CHARACTERS)}"
        yield _Piece(source, place, text[start : start + _PIECE_CHARACTERS])


def _spaced(text: str) -> str:
    return _UNSPACED.sub(r" \1 ", text.replace("\0", " "))


def match_of(query: str) -> str:
    """The expression that asks for any of a query's words; '' when it has none. Every word is a quoted string."""
    words = dict.fromkeys(word.lower() for word in (*_WORDS.findall(query), *parts(query)))
    phrases = dict.fromkeys(" ".join(_spaced(word).split()) for word in list(words)[:MAX_QUERY_WORDS])
    return " OR ".join('"' + phrase.replace('"', '""') + '"' for phrase in phrases if phrase)


def _search_documents(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    query, most = arguments["query"], arguments.get("max_results", 5)
    if not context.sources:
        raise ToolError("this task has no sources; work from the goal and the workspace")
    match = match_of(query)
    if not match:
        raise ToolError("the query has no word; give a few telling words, as they would stand in a document")
    index = _index(context.sources)
    mark = sha256(f"{index.digest}\n{match}".encode()).hexdigest()[:12]
    offset = _offset(arguments.get("cursor", ""), mark)
    hits, total = index.search(match, most, offset)
    if not hits and not offset:
        return _nothing(context.sources, query, index.left_out)
    shown: list[str] = []
    for hit in hits:
        text = f"{hit.source[:500]}, {hit.place}:\n{hit.text}"
        if shown and sum(len(one.encode()) + 2 for one in (*shown, text)) > _PAGE_BYTES:
            break
        shown.append(text)
    last = offset + len(shown)
    more = f'; more with cursor "{mark}-{last}"' if last < total else "; these are the last"
    numbers = f"[hits {offset + 1}-{last} of {total}{more}]" if shown else f"[there are only {total} hits]"
    return "\n\n".join([*shown, numbers + _left_out(index.left_out)])


def _offset(cursor: str, mark: str) -> int:
    if not cursor:
        return 0
    said, _, offset = cursor.partition("-")
    if said != mark:
        raise ToolError("cursor: it is of another query; leave it out, or give the query that it came with")
    return int(offset)


def _nothing(sources: Tree, query: str, left_out: list[str]) -> str:
    names = clip(", ".join(sorted(sources)[:_NAMED]), 2_000)
    more = f" and {len(sources) - _NAMED:,} more" if len(sources) > _NAMED else ""
    return (
        f"No passage has a word of {query[:100]!r}. Try other words for it, fewer endings, or a word of a heading. "
        f"Sources: {names}{more}.{_left_out(left_out)}"
    )


def _left_out(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"\n[not searched: {clip(', '.join(names[:_NAMED]), 1_500)}{more}]"


SEARCH_DOCUMENTS = Tool(
    "search_documents",
    "Search the task's sources for words. Returns the passages that fit best, word for word, each with its source and "
    "lines, and a cursor for more. Not for files of the workspace, and not for exact phrases or patterns.",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "A few telling words"},
            "max_results": {"type": "integer", "minimum": 1, "maximum": 20, "description": "5 by default"},
            "cursor": {
                "type": "string", "pattern": "^[0-9a-f]{12}-[0-9]{1,9}$",
                "description": "To go on, as the last result of the same query named it",
            },
        },
    },
    _search_documents,
    tier="read",
    effect="read",
    timeout_seconds=60.0,
)  # fmt: skip
