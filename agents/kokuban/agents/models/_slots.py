"""Puts streamed tool call fragments together.

Servers number fragments in several wrong ways: one index for all calls, no index, an id only once, the name every
time. The rules below follow an id first and an index second; where a fragment could belong to two calls, the result is
a call with a problem, which nobody runs.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ._arguments import parse_arguments
from ._surrogates import joined
from ._types import Call

CUT_OFF = "the reply was cut off at its output limit, so this call may be incomplete; it was not run"


@dataclass(slots=True)
class _Slot:
    index: int | str | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    problem: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


_KNOWN_FIELDS = {"id", "type", "function", "index"}


class CallSlots:
    """The calls of one reply while it arrives."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self.extra: dict[str, dict[str, Any]] = {}
        """A provider's own fields beside single calls, by the ids that `calls` gave."""

    def add_fragment(self, fragment: Any) -> str:
        """Take one entry of a delta's `tool_calls`; returns the text it added."""
        return self._add(fragment, whole=False)

    def add_whole(self, call: Any) -> str:
        """Take one entry of a complete message's `tool_calls`; returns the text it added."""
        return self._add(call, whole=True)

    def calls(self, *, id_prefix: str, truncated: bool) -> tuple[Call, ...]:
        """The calls as they stand at the end of the reply, each with an id of its own.

        `id_prefix` begins the ids made up for calls that came without one.
        """
        slots = [slot for slot in self._slots if slot.id or slot.name or slot.arguments]
        times = Counter(slot.id for slot in slots)
        calls: list[Call] = []
        self.extra = {}
        for number, slot in enumerate(slots):
            problem = slot.problem
            call_id = joined(slot.id) or f"{id_prefix}{number}"
            if slot.id and times[slot.id] > 1:
                problem = "two calls came with the same id, so their parts may be mixed up"
                call_id = f"{joined(slot.id)}_{number}"
            if not slot.name:
                problem = "the call names no tool"
            if truncated:
                problem = CUT_OFF
            if slot.extra:
                self.extra[call_id] = slot.extra
            calls.append(Call(call_id, joined(slot.name), joined(slot.arguments), problem))
        return tuple(calls)

    def _add(self, entry: Any, *, whole: bool) -> str:
        if not isinstance(entry, dict):
            return ""
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        call_id = "" if entry.get("id") is None else str(entry["id"])
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        arguments = _text(function.get("arguments"))
        index = entry.get("index")
        index = index if isinstance(index, int | str) else None
        slot = self._open(index) if whole else self._slot_for(index, call_id, name, arguments)
        slot.id = slot.id or call_id
        slot.extra |= {key: entry[key] for key in entry.keys() - _KNOWN_FIELDS if entry[key] is not None}
        if name and slot.name and name != slot.name:
            slot.problem = "parts of different calls arrived as one, so it is not clear what was asked"
        slot.name = slot.name or name
        slot.arguments += arguments
        return name + arguments

    def _slot_for(self, index: int | str | None, call_id: str, name: str, arguments: str) -> _Slot:
        newest_first = self._slots[::-1]
        if index is not None:
            same_index = [slot for slot in newest_first if slot.index == index]
            if not call_id:
                return same_index[0] if same_index else self._open(index)
            known = [slot for slot in same_index if slot.id == call_id]
            if known:
                return known[0]
            # An id that comes late belongs to the call that has none yet; any other new id begins a new call.
            return same_index[0] if same_index and not same_index[0].id else self._open(index)
        if call_id:
            known = [slot for slot in newest_first if slot.id == call_id]
            if known:
                return known[0]
            return newest_first[0] if newest_first and not newest_first[0].id and not name else self._open(None)
        if not newest_first:
            return self._open(None)
        last = newest_first[0]
        # Neither id nor index: only what cannot be a continuation of the last call begins a new one.
        other_tool = bool(name and last.name and name != last.name)
        return self._open(None) if other_tool or (name and _begins_anew(last, arguments)) else last

    def _open(self, index: int | str | None) -> _Slot:
        self._slots.append(_Slot(index))
        return self._slots[-1]


def _begins_anew(slot: _Slot, arguments: str) -> bool:
    if not (arguments.lstrip().startswith("{") and slot.arguments.strip()):
        return False
    return isinstance(parse_arguments(slot.arguments), dict)


def _text(arguments: Any) -> str:
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return "[too deeply nested"  # never valid, so never run
