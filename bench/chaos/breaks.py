"""Rules broken on purpose: one patched function at a time, in the real processes, to see that the checker tells.

Nothing of this is in the product: only a member of a chaos run looks here, when it is told to.
"""

from __future__ import annotations

from collections.abc import Callable

BREAKS: dict[str, tuple[str, Callable[[], None]]] = {}


def apply(name: str, role: str) -> None:
    """Break the rule of this name in this process, if it is for its role. '' breaks nothing."""
    if name:
        roles, patch = BREAKS[name]
        if role in roles.split():
            patch()
