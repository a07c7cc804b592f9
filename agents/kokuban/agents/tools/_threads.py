"""Tools that block, in threads of their own: the event loop, and with it the step's heartbeat, goes on beside them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STOP_SECONDS = 0.5
"""How long a cancelled tool's thread is waited for before the step goes on without it."""
_LOOK_SECONDS = 0.01

left_running: contextvars.ContextVar[list[threading.Thread] | None]
left_running = contextvars.ContextVar("left_running", default=None)
"""Threads of the present step that could not be stopped; whoever runs a step sets an empty list."""


class _Interrupted(BaseException):
    """Raised inside a tool's thread to end it."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own and return what it returns. Raises what it raises.

    Cancelled, the thread is interrupted: Python code ends at its next instruction. A call into the system that does not
    come back cannot be ended; after `STOP_SECONDS` the thread is left, and noted in `left_running`. It can do no harm
    to the board, which is written by its step's owner alone.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(set_it: Callable[[], None]) -> None:
        if not outcome.done():
            set_it()

    def main() -> None:
        with contextlib.suppress(_Interrupted, RuntimeError):  # the loop may be closed by the time that this ends
            try:
                result = work()
            except _Interrupted:
                return
            except BaseException as error:
                failure = error
                loop.call_soon_threadsafe(tell, lambda: outcome.set_exception(failure))
            else:
                loop.call_soon_threadsafe(tell, lambda: outcome.set_result(result))

    # Not from a pool: a tool that hangs must not take a place there, nor hold up the end of the process.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(main,), name="tool", daemon=True)
    thread.start()
    try:
        return await outcome
    except asyncio.CancelledError:
        await _stopped(thread)
        raise


async def ended(thread: threading.Thread) -> None:
    """Wait for a thread that was left running."""
    while thread.is_alive():  # noqa: ASYNC110 - a thread that hangs sets no event
        await asyncio.sleep(0.05)


async def _stopped(thread: threading.Thread) -> None:
    """Interrupt the thread and wait for its end, but not long."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + STOP_SECONDS
    while thread.is_alive():
        if loop.time() > give_up:
            left = left_running.get()
            if left is not None:
                left.append(thread)
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Interrupted))
        with contextlib.suppress(asyncio.CancelledError):  # asked twice: the thread's end is waited for all the same
            await asyncio.sleep(_LOOK_SECONDS)
