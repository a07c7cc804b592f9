"""What rounds that were left out came to: copied from them, never put in other words, and bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kokuban.agents._data import framed
from kokuban.agents.models import Call, Message, Problem, parse_arguments
from kokuban.agents.tools import ASK_PERSON

LINE_CHARS = 240
DECISION_CHARS = 1_000
FACT_CHARS = 200
SHARES = {"decisions": 0.25, "errors": 0.15, "facts": 0.2, "told": 0.05, "said": 0.05, "calls": 0.3}
"""Of the room that all of it has; what one kind leaves, the next may take. The newest of each stay, and how many went
is said."""
TITLES = {
    "decisions": "Decided by people",
    "errors": "Errors that were not resolved",
    "calls": "Done so far",
    "facts": "Names and numbers seen",
    "told": "You were told",
    "said": "You said",
}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WORD = re.compile(r"""[^\s"'`<>(){}\[\];|\\]+""")
_JOINED = re.compile(r"\w_\w")
_FILE = re.compile(r"[\w./-]+\.[A-Za-z]\w{0,5}")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the conversation. `text` is what it shows without its frame, `raw` what it said before anything was
    left out; `origin` and `place` make the frame, none when `origin` is empty. `failed` is true for the result of a
    call that was refused or failed."""

    message: Message
    text: str
    raw: str
    failed: bool = False
    origin: str = ""
    place: str = ""

    def showing(self, text: str) -> Turn:
        """The same turn with another text. A provider's own fields go with the text that they were given with."""
        was = self.message
        shown = framed(text, self.origin, self.place) if self.origin else text
        extra = was.extra if shown == was.content else {}
        message = Message(was.role, shown, was.calls, was.call_id, extra)
        return replace(self, message=message, text=text)


@dataclass(frozen=True, slots=True)
class Past:
    """`errors` are by the call that they stopped, in order; a later call of the same tool on the same path that works
    takes its error away. `gone` counts, by kind, the entries that there was no room for."""

    calls: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    facts: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    gone: tuple[tuple[str, int], ...] = ()

    def with_round(self, turns: Sequence[Turn]) -> Past:
        """This with one more complete round in it."""
        waiting: dict[str, list[Turn]] = {}
        for turn in turns:
            if turn.message.role == "tool":
                waiting.setdefault(turn.message.call_id or "", []).append(turn)
        calls, errors, decisions = list(self.calls), dict(self.errors), list(self.decisions)
        said, told, facts = list(self.said), list(self.told), dict.fromkeys(self.facts)
        for turn in turns:
            message = turn.message
            if message.role == "assistant":
                said += [one_line(message.content)] if message.content.strip() else []
            else:
                told += [one_line(message.content)] if message.role == "user" else []
                facts |= dict.fromkeys(names_and_numbers(turn.raw))
            for call in message.calls:
                results = waiting.get(call.id)
                result = results.pop(0) if results else turn
                entry = f"{_called(call)}: {one_line(result.raw)}"
                calls.append(entry)
                errors.pop(_target(call), None)
                if result.failed:
                    errors[_target(call)] = entry
                if call.name == ASK_PERSON.name and not result.failed:
                    decisions.append(f"{_called(call)}: {one_line(result.raw, DECISION_CHARS)}")
        return Past(
            tuple(calls), tuple(errors.items()), tuple(facts), tuple(decisions), tuple(told), tuple(said), self.gone
        )

    def within(self, room_bytes: int) -> Past:
        """The newest entries of each kind that fit its share of the room."""
        gone, kept, left = dict(self.gone), dict[str, Any](), 0.0
        for kind, share in SHARES.items():
            entries: Sequence[Any] = getattr(self, kind)
            left, n = left + room_bytes * share, len(entries)
            while n and _size(entries[n - 1]) <= left:
                n -= 1
                left -= _size(entries[n])
            if n and n == len(entries) and kind == "decisions":  # one that is too long is better cut than gone
                n, entries = n - 1, (*entries[:-1], entries[-1][: int(left) // 4] + "…")
                left = 0.0
            kept[kind] = tuple(entries[n:])
            if n:
                gone[kind] = gone.get(kind, 0) + n
        return Past(**kept, gone=tuple(gone.items()))

    def message(self) -> Message | None:
        """As the model reads it; None when there is nothing."""
        parts, gone = [], dict(self.gone)
        for kind, title in TITLES.items():
            entries = [entry if isinstance(entry, str) else entry[1] for entry in getattr(self, kind)]
            if gone.get(kind):
                entries.insert(0, f"({gone[kind]} earlier ones left out)")
            if entries:
                parts.append(f"{title}:\n" + "\n".join(f"- {entry}" for entry in entries))
        if not parts:
            return None
        return Message("user", framed("\n\n".join(parts), "earlier turns, left out to save room", "past"))


def one_line(text: str, most: int = LINE_CHARS) -> str:
    """A text as one line: its beginning, and when that is not all, how much there is and how to see it."""
    one = " ".join(text.split())
    if len(one) <= most:
        return one
    return f"{one[:most]}… [{len(text)} characters; {_again(text)}]"


def head_and_tail(text: str, most: int) -> str:
    """Its beginning and its end, of about `most` characters together."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n[… {len(text) - most} characters left out; {_again(text)}]\n{text[len(text) - tail :]}"


def names_and_numbers(text: str) -> list[str]:
    """The words of a text that nobody may put in other words: what holds a digit or joins words with
    an underscore, or reads like a path of a file."""
    words = (word.rstrip(".,:!?").lstrip(":,") for word in _WORD.findall(text))
    return [
        word
        for word in words
        if len(word) < FACT_CHARS and (any(c.isdigit() for c in word) or _JOINED.search(word) or _FILE.fullmatch(word))
    ]


def _again(text: str) -> str:
    kept = _DIGEST.findall(text)
    return f"read_output with digest {kept[-1]} shows them" if kept else "the same call shows them again"


def _size(entry: str | tuple[str, str]) -> int:
    text = entry if isinstance(entry, str) else entry[1]
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) + len("\\n- ")


def _called(call: Call) -> str:
    values = parse_arguments(call.arguments)
    text = call.arguments if isinstance(values, Problem) else json.dumps(values, ensure_ascii=False)
    return f"{call.name[:64]}({text if len(text) <= LINE_CHARS else text[:LINE_CHARS] + '…'})"


def _target(call: Call) -> str:
    values = parse_arguments(call.arguments)
    path = values.get("path", "") if isinstance(values, Mapping) else ""
    return f"{call.name} {path}"
