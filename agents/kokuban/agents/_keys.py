"""Idempotency keys: made of what a call does, so that whoever makes it again sends the key that it had."""

from __future__ import annotations

import hashlib

NAME_CHARS = 96
"""Of a key at most 128 characters may stand on the board: a longer name is hashed."""


def key_stem(task: str, step: str, tool: str, arguments: str) -> str:
    """The part of a key that names the call; `arguments` is their canonical text. At most 113 characters; never from a
    provider's call id, nor from the attempt."""
    name = f"{task}/{step}/{tool}"
    if len(name) > NAME_CHARS:
        name = hashlib.sha256(name.encode()).hexdigest()
    return f"{name}:{hashlib.sha256(arguments.encode()).hexdigest()[:16]}"
