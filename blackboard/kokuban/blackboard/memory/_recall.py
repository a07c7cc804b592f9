"""Which memories fit a question: by key, by meaning where there are vectors, else by words (SQLite FTS5, BM25)."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Sequence

from kokuban.blackboard.memory._fold import Memory

_WORD = re.compile(r"\w+")
MOST_WORDS = 30
"""How many words of a question count."""


def by_words(found: Sequence[Memory], query: str) -> list[Memory]:
    """Those that share a word with the question, best first. The index is made of what is given and thrown away, so
    that nothing stays in it that has been forgotten."""
    words = list(dict.fromkeys(_WORD.findall(query.lower())))[:MOST_WORDS]
    if not words or not found:
        return []
    index = sqlite3.connect(":memory:")
    try:
        try:
            index.execute("CREATE VIRTUAL TABLE memory USING fts5(key, text)")
        except sqlite3.OperationalError:  # an SQLite without FTS5: by the number of words that are there
            hits = [(sum(w in f"{m.proposal.key} {m.proposal.text}".lower() for w in words), m) for m in found]
            return [m for n, m in sorted(hits, key=lambda hit: -hit[0]) if n]
        index.executemany("INSERT INTO memory VALUES (?, ?)", [(m.proposal.key, m.proposal.text) for m in found])
        asked = " OR ".join(f'"{word}"' for word in words)
        rows = index.execute("SELECT rowid FROM memory WHERE memory MATCH ? ORDER BY bm25(memory), rowid", (asked,))
        return [found[row - 1] for (row,) in rows]
    finally:
        index.close()


def by_meaning(found: Sequence[Memory], vectors: Sequence[Sequence[float]], asked: Sequence[float]) -> list[Memory]:
    """Best first, by the cosine of each vector with the question's; what points elsewhere (0 or less) is left out."""
    near = [(_cosine(vector, asked), n) for n, vector in enumerate(vectors)]
    return [found[n] for cosine, n in sorted(near, key=lambda one: (-one[0], one[1])) if cosine > 0]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / length if length else 0.0
