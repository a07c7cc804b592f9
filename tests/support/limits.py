"""A test that hangs fails by its name within its limit, and the run goes on or ends.

A coroutine that hangs is cancelled in its own loop, so that its fixtures can clean up. What takes no notice, or hangs
in a clean-up or outside a loop, ends its process: an exception from a signal would leave anyio's runner, which runs
tests and fixtures one after the other, waiting for the hung test for ever.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import pytest_timeout

SHARE = 0.8
"""Of a test's limit, for its body; the rest is for what cleans up."""
EXIT_SECONDS = 60
"""For the process to end after its last test."""


def bounded(item: pytest.Function) -> Callable[..., Any]:
    """The test, cancelled in time."""
    test, seconds = item.obj, SHARE * (pytest_timeout._get_item_settings(item).timeout or 0)
    if not inspect.iscoroutinefunction(test) or seconds <= 0:
        return test  # type: ignore[no-any-return]

    @functools.wraps(test)
    async def run(*args: Any, **fixtures: Any) -> None:
        try:
            async with asyncio.timeout(seconds) as limit:
                await test(*args, **fixtures)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AssertionError(f"{item.name} hangs: it was not over after {seconds:g} s") from error

    return run


def end_by_name(item: pytest.Item, settings: Any) -> None:
    """Say which test it was, show what every thread does, and end the process."""
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(item)
    if terminal is not None:  # a worker of xdist has none; its controller names the test
        terminal.write_line(f"\n{item.nodeid} hangs: it and its fixtures were not over after {settings.timeout:g} s")
    pytest_timeout.timeout_timer(item, settings)
