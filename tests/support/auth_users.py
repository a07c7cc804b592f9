"""What the fixture `enter` of the tests of credentials gives: for annotations."""

from __future__ import annotations

from typing import Protocol

from kokuban.blackboard.wire import Bus


class Enter(Protocol):
    """Connects as a user of a tenant."""

    async def __call__(self, user: str, tenant: str = "red") -> Bus: ...
