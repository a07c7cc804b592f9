"""Questions about documents. The answer must be right, and the quote must stand in the document that is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_DOCUMENTS: dict[str, dict[str, str]] = {
    "library": {
        "docs/loans.md": "# Loans\n\nA book may be kept for 28 days. A film may be kept for 7 days.\n\nA loan can be renewed twice, unless somebody else waits for it.\n",
        "docs/fees.md": "# Fees\n\nA late book costs 20 cents a day. A late film costs 1 euro a day.\n\nA lost card is replaced for 5 euros.\n",
        "docs/rooms.md": "# Rooms\n\nThe reading room has 40 seats and opens at 9:00. Group rooms hold 6 people.\n\nFood is allowed in the lobby only.\n",
    },
    "harbour": {
        "docs/berths.md": "# Berths\n\nBerth A takes ships of up to 120 metres. Berth B takes ships of up to 80 metres.\n\nA berth is held for 6 hours after the booked time.\n",
        "docs/pilots.md": "# Pilots\n\nShips above 90 metres need a pilot. A pilot is ordered 4 hours ahead.\n\nThe pilot station uses channel 12.\n",
        "docs/dues.md": "# Dues\n\nHarbour dues are 3 euros a metre and day. Waste is taken for 150 euros.\n\nNaval ships pay no dues.\n",
    },
    "clinic": {
        "docs/visits.md": "# Visits\n\nVisitors may come from 14:00 to 19:00. At most 2 visitors may be with a patient.\n\nChildren under 12 come with an adult.\n",
        "docs/meals.md": "# Meals\n\nBreakfast is at 7:30, lunch at 12:00. Diets are ordered by 10:00 on the day before.\n\nThe kitchen cooks without nuts.\n",
        "docs/parking.md": "# Parking\n\nThe first hour is free. Each further hour costs 2 euros, a day at most 12 euros.\n\nThe garage closes at 22:00.\n",
    },
}  # fmt: skip
# document set, question, the answers that count (lower case), words that the quote must hold
_QUESTIONS: list[tuple[str, str, list[str], str, str]] = [
    ("library", "For how many days may a film be kept?", ["7", "7 days", "seven"], "docs/loans.md", "A film may be kept for 7 days."),
    ("library", "What does a late book cost a day?", ["20 cents", "20 cents a day", "0.20 euros", "20"], "docs/fees.md", "A late book costs 20 cents a day."),
    ("library", "How often can a loan be renewed?", ["twice", "2", "two", "2 times", "two times"], "docs/loans.md", "A loan can be renewed twice"),
    ("library", "When does the reading room open?", ["9:00", "9", "at 9:00", "09:00"], "docs/rooms.md", "opens at 9:00"),
    ("library", "What does a new card cost when the old one is lost?", ["5 euros", "5", "5 euro"], "docs/fees.md", "A lost card is replaced for 5 euros."),
    ("harbour", "How long may a ship at berth B be, in metres?", ["80", "80 metres"], "docs/berths.md", "Berth B takes ships of up to 80 metres."),
    ("harbour", "Above which length, in metres, does a ship need a pilot?", ["90", "90 metres", "above 90", "above 90 metres"], "docs/pilots.md", "Ships above 90 metres need a pilot."),
    ("harbour", "Which channel does the pilot station use?", ["12", "channel 12"], "docs/pilots.md", "The pilot station uses channel 12."),
    ("harbour", "How many hours is a berth held after the booked time?", ["6", "6 hours", "six"], "docs/berths.md", "A berth is held for 6 hours after the booked time."),
    ("harbour", "Which ships pay no dues?", ["naval ships", "naval"], "docs/dues.md", "Naval ships pay no dues."),
    ("clinic", "How many visitors may be with a patient at most?", ["2", "2 visitors", "two"], "docs/visits.md", "At most 2 visitors may be with a patient."),
    ("clinic", "By what time on the day before are diets ordered?", ["10:00", "by 10:00", "10"], "docs/meals.md", "Diets are ordered by 10:00 on the day before."),
    ("clinic", "What does a day of parking cost at most?", ["12 euros", "12", "12 euro"], "docs/parking.md", "a day at most 12 euros"),
    ("clinic", "Without what does the kitchen cook?", ["nuts", "without nuts"], "docs/meals.md", "The kitchen cooks without nuts."),
    ("clinic", "When does the garage close?", ["22:00", "at 22:00", "22"], "docs/parking.md", "The garage closes at 22:00."),
]  # fmt: skip
_FORM = """import json

found = json.load(open("answers/answer.json"))
assert sorted(found) == ["answer", "quote", "source"], "the fields are answer, quote and source"
assert all(isinstance(value, str) and value.strip() for value in found.values()), "each field is a text"
assert len(found["answer"].split()) <= 4, "the answer is the bare fact, in at most four words"
"""
_RIGHT = """
text = " ".join(open(found["source"]).read().split())
assert " ".join(found["quote"].split()) in text, "the quote does not stand there"
assert found["source"] == SOURCE
assert found["answer"].strip().strip(".").lower() in ANSWERS
assert any(word in found["quote"].lower() for word in WORDS)
"""


def tasks() -> Iterator[dict[str, Any]]:
    for n, (place, question, answers, source, quote) in enumerate(_QUESTIONS, 1):
        words = [
            word for word in quote.lower().replace(".", "").split() if any(c.isdigit() for c in word)
        ] or quote.lower().split()[-2:]
        right = f"SOURCE = {source!r}\nANSWERS = {answers!r}\nWORDS = {words!r}\n{_FORM}{_RIGHT}"
        yield {
            "id": f"question-{n:02}-{place}", "kind": "question", "writes": "answers/answer.json",
            "goal": f"Answer a question from the documents: {question} Write the answer to answers/answer.json as "
            '{"answer": "...", "source": "docs/....md", "quote": "..."}: answer is the bare fact in at most four words, source '
            "the document, quote the sentence of it that says so, copied word for word.",
            "files": {"check_form.py": _FORM, "answers/answer.json": "{}\n"},
            "sources": _DOCUMENTS[place],
            "checks": ["python3 check_form.py"],
            "hidden": {"files": {"check_form.py": _FORM, "hidden_check.py": right}, "checks": ["python3 hidden_check.py"]},
            "solution": json.dumps({"answer": answers[0], "source": source, "quote": quote}),
        }  # fmt: skip
