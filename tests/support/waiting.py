"""Waiting for what will be true soon, without sleeping for a guessed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
END_SECONDS = 30.0
"""For the end of what was cancelled."""


async def eventually(look: Callable[[], T | Awaitable[T]], *, seconds: float = 15.0, what: str = "") -> T:
    """The first true value that `look` gives; fails, saying what was waited for, after `seconds`."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    while True:
        found = look()
        value: Any = await found if inspect.isawaitable(found) else found
        if value:
            return value  # type: ignore[no-any-return]
        if loop.time() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what or inspect.getsource(look).strip()}")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run these beside the block and cancel them at its end. One that broke before fails the test."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        await cancelled(*tasks)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel, wait for the end, and raise what ended one of them by itself."""
    broken = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    for task in tasks:
        task.cancel()
    _, left = await asyncio.wait(tasks, timeout=END_SECONDS) if tasks else ((), ())
    assert not left, f"cancelled and not over after {END_SECONDS:g} s: {left}"
    for task in broken:
        task.result()
