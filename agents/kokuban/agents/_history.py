"""A conversation that is kept whole and small: what must stay in front, then complete rounds, and when they grow too
large, what they came to instead of what they said.

A round is an assistant's turn with exactly one result for each of its calls, or words that were answered. Nothing is
ever cut inside one. Pure: the same history gives the same requests, so that an owner who takes a step up asks what was
asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from kokuban.agents._past import LINE_CHARS, Past, Turn, head_and_tail, one_line
from kokuban.agents.models import Call, Message, Request, ToolSpec, estimate_request_tokens, estimate_tokens

THRESHOLD = 0.7
"""Of the window, with what the reply may take set aside: above it the history is made smaller."""
TARGET = 0.45
"""And to this share: made smaller by a little, it would be again at the next turn, and no server could go on from what
it has read already."""
PAST_SHARE = 0.25
DEFAULT_WINDOW = 32_768
"""Tokens, where nobody says how many a model takes."""
KEEP_ROUNDS = 2
BULKY_CHARS = 1_200


class BrokenHistory(RuntimeError):
    """A call without its result, or a result without its call: a bug of the runtime, never sent to a server."""


@dataclass
class History:
    """`pinned` come first and always stay. `window` is the model's size in tokens, None when it is not known; a server
    that finds a request too large tells of a smaller one."""

    pinned: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int = 1_500
    window: int | None = None
    past: Past = field(default_factory=Past)
    _rounds: list[list[Turn]] = field(default_factory=list)
    _known: tuple[Request, int] | None = None
    """The request as it stands, and its size: measuring reads all of it."""

    def add(self, message: Message) -> None:
        """Append an assistant's turn, which begins a round, or a user's. Raises `BrokenHistory`."""
        if message.role == "tool":
            raise BrokenHistory("a result is added with `answer`")
        self._check_whole()
        self._known = None
        if message.role == "assistant" or not self._rounds:
            self._rounds.append([])
        self._rounds[-1].append(Turn(message, message.content, message.content))

    def answer(self, call: Call, text: str, *, failed: bool = False, origin: str = "", place: str = "") -> None:
        """Append a call's result; with an `origin` it is shown between the marks of others' data. Raises
        `BrokenHistory` when no such call is open."""
        if not self._rounds or call.id not in _open(self._rounds[-1]):
            raise BrokenHistory(f"a result of {call.id!r}, which no open call has")
        self._known = None
        bare = Turn(Message("tool", text, call_id=call.id), text, text, failed, origin, place)
        self._rounds[-1].append(bare.showing(text))

    def request(self) -> Request:
        """What to ask next, made smaller first when it would fill more than its share of the window. Raises
        `BrokenHistory`."""
        self._check_whole()
        if self._tokens() > self._room * THRESHOLD:
            self._shrink()
        asked, _ = self._measured()
        check_pairs(asked.messages)
        return asked

    @property
    def fits(self) -> bool:
        """Whether the next request fits the window with its reply."""
        return self._tokens() <= self._room

    def compact(self) -> bool:
        """A server found the last request too large, whatever the estimate says: take its size for more than the window
        holds, and make it smaller. Returns whether it is."""
        before = self._tokens()
        known = self.window or DEFAULT_WINDOW
        self.window = min(known, before + self.max_output_tokens - 1)
        self._shrink()
        return self._tokens() < before

    @property
    def _room(self) -> int:
        """Tokens for the request."""
        return max(0, (self.window or DEFAULT_WINDOW) - self.max_output_tokens)

    def _check_whole(self) -> None:
        if self._rounds and (waiting := _open(self._rounds[-1])):
            raise BrokenHistory(f"calls without results: {', '.join(waiting)}")

    def _asked(self) -> Request:
        past = self.past.message()
        rounds = (turn.message for one in self._rounds for turn in one)
        return Request(
            messages=(*self.pinned, *((past,) if past else ()), *rounds),
            tools=self.tools, max_output_tokens=self.max_output_tokens,
        )  # fmt: skip

    def _tokens(self) -> int:
        return self._measured()[1]

    def _measured(self) -> tuple[Request, int]:
        """The request and our estimate of it, with the tools' schemas and with what providers keep beside a turn."""
        if self._known is None:
            asked = self._asked()
            beside = sum(len(msgspec.json.encode(m.extra)) for m in asked.messages if m.extra)
            self._known = asked, estimate_request_tokens(asked) + (estimate_tokens(beside) if beside else 0)
        return self._known

    def _shrink(self) -> None:
        """Long results become one line each once they were used, then the oldest rounds what they came to. What is left
        may be too large by itself: then its longest texts are shortened, and the round before the last goes too."""
        self._known = None
        for number, one in enumerate(self._rounds[:-1]):
            self._rounds[number] = [_short(turn) for turn in one]
        share = PAST_SHARE
        self._leave_out(KEEP_ROUNDS, TARGET, share)
        most = self._room * 2
        while self._tokens() > self._room * THRESHOLD and most >= LINE_CHARS:
            for number, one in enumerate(self._rounds):
                self._rounds[number] = [
                    turn.showing(head_and_tail(turn.raw, most)) if len(turn.text) > most else turn for turn in one
                ]
            self._known = None
            most //= 2
        self._leave_out(1, THRESHOLD, share)
        while not self.fits and share > 0.01:
            share /= 2
            self._known, self.past = None, self.past.within(int(self._room * 4 * share))

    def _leave_out(self, keep: int, target: float, share: float) -> None:
        while len(self._rounds) > keep and self._tokens() > self._room * target:
            self.past = self.past.with_round(self._rounds.pop(0)).within(int(self._room * 4 * share))
            self._known = None


def check_pairs(messages: tuple[Message, ...]) -> None:
    """The last look before a request: every call has exactly one result, behind it and before the next assistant's
    turn. Raises `BrokenHistory`."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "assistant":
            if waiting:
                break
            waiting = [call.id for call in message.calls]
        elif message.role == "tool":
            if message.call_id not in waiting:
                raise BrokenHistory(f"a result of {message.call_id!r}, which no open call has")
            waiting.remove(message.call_id)
    if waiting:
        raise BrokenHistory(f"calls without results: {', '.join(waiting)}")


def _open(round_: list[Turn]) -> list[str]:
    """Ids of the round's calls that have no result yet; one that a model gave twice wants two."""
    waiting = [call.id for turn in round_ for call in turn.message.calls]
    for turn in round_:
        if turn.message.role == "tool" and turn.message.call_id in waiting:
            waiting.remove(turn.message.call_id)
    return waiting


def _short(turn: Turn) -> Turn:
    """A long result that was used, as one line."""
    if turn.message.role != "tool" or len(turn.raw) <= BULKY_CHARS:
        return turn
    return turn.showing(one_line(turn.raw))
