"""Prompts as versioned files: `roles/prompts/NAME.md`, messages each begun by a line `--- system`, `--- user` or
`--- assistant`; `{{name}}` placeholders stand in the last message only, so that all before it can be cached."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import re

from kokuban.agents.models import Message

_PART = re.compile(r"^--- (system|user|assistant)\n", re.MULTILINE)
_SLOT = re.compile(r"\{\{(\w+)\}\}")


class Prompt:
    """A prompt file. `version` is `NAME@` and the first 12 hex digits of its sha256."""

    def __init__(self, name: str, text: str) -> None:
        self.version = f"{name}@{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        parts = _PART.split(text)[1:]
        self._messages = tuple(
            Message(role, body.strip())  # type: ignore[arg-type]
            for role, body in zip(parts[::2], parts[1::2], strict=True)
        )

    def fill(self, **values: str) -> list[Message]:
        """The messages with the last one's placeholders filled. Values are not scanned again. Raises `KeyError` for a
        placeholder without a value."""
        *head, last = self._messages
        return [*head, Message(last.role, _SLOT.sub(lambda found: values[found[1]], last.content))]


@functools.cache
def prompt(name: str) -> Prompt:
    """The prompt file of this name. Raises `FileNotFoundError`."""
    folder = importlib.resources.files("kokuban.agents.roles").joinpath("prompts")
    return Prompt(name, folder.joinpath(f"{name}.md").read_text("utf-8"))
