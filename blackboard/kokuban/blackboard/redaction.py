"""Credentials that this process holds, taken out of the text that leaves it: logs, errors, records, what models and
tools say. Known by value, for whoever echoes one does not say what it is.

The table is the process's, as its log is. A value is added where it is read, and stays.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

LEAST_CHARS = 8
"""Shorter values are in too many words that are none."""
_LEAST_CODED = 10
_NAMES = re.compile("(?<![A-Z])(?:TOKEN|SECRET|PASSWORD|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY)(?![A-Z])", re.IGNORECASE)
_forms: dict[str, str] = {}
"""Every way in which a value may be written, the longest first, and its name."""


def conceal(name: str, value: str | None) -> None:
    """From now on a `value` of at least `LEAST_CHARS` is replaced by `[secret NAME]`, also in JSON, an address or
    base64."""
    if value and len(value) >= LEAST_CHARS and value not in _forms:
        found = _longest_first({**dict.fromkeys(_written(value), name), **_forms})
        _forms.clear()
        _forms.update(found)


def conceal_environment(environment: Mapping[str, str]) -> None:
    """Conceal the values of variables that are named like credentials."""
    for name, value in environment.items():
        if _NAMES.search(name):
            conceal(name, value)


def redacted(text: str, also: Mapping[str, str] | None = None) -> str:
    """The text without any value that is concealed, nor one of `also` (name -> value), which may be shorter."""
    forms = _forms
    if also:
        forms = _longest_first({**{form: name for name, value in also.items() for form in _written(value)}, **_forms})
    for form, name in forms.items():
        if form in text:
            text = text.replace(form, f"[secret {name}]")
    return text


def leaks(data: bytes) -> str:
    """The name of a concealed value that stands in these bytes, '' when none does."""
    return next((name for form, name in _forms.items() if form.encode() in data), "")


class Redactor:
    """The same for text that comes in pieces: what may be the beginning of a value is held back until more is there."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._held = ""

    def feed(self, text: str) -> None:
        """One more piece."""
        self._held = redacted(self._held + text)
        keep = max((_begun(self._held, form) for form in _forms), default=0)
        self._tell(len(self._held) - keep)

    def end(self) -> None:
        """Nothing more comes."""
        self._tell(len(self._held))

    def _tell(self, chars: int) -> None:
        said, self._held = self._held[:chars], self._held[chars:]
        if said:
            self._say(said)


def redacted_values(value: Any) -> Any:
    """The same for the texts in JSON; keys stay as they are."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list | tuple):
        return [redacted_values(item) for item in value]
    if isinstance(value, dict):
        return {key: redacted_values(item) for key, item in value.items()}
    return value


def _longest_first(forms: dict[str, str]) -> dict[str, str]:
    return dict(sorted(forms.items(), key=lambda form: len(form[0]), reverse=True))


def _begun(text: str, form: str) -> int:
    """How many characters at the end of the text are the beginning of the form."""
    return next((n for n in range(min(len(form) - 1, len(text)), 0, -1) if text.endswith(form[:n])), 0)


def _written(value: str) -> set[str]:
    raw = value.encode("utf-8", "replace")
    coded: set[str] = set()
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        end = len(whole) - ((before + len(raw)) % 3 != 0)
        coded |= {inner := whole[before + 1 if before else 0 : end], inner.replace("+", "-").replace("/", "_")}
    plain = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")}
    return plain | {form for form in coded if len(form) >= _LEAST_CODED}
