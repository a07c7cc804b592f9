"""Where a command's end becomes an exit code and one clear line. Set KOKUBAN_DEBUG=1 to see the traceback instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from kokuban.console._terminal import clean, tell

DONE = 0
TASK_FAILED = 1
USAGE = 2
INFRASTRUCTURE = 3
NOT_ENDED = 4
BUG = 70
INTERRUPTED = 130

CODES = (
    "Exit codes: 0 done, 1 the task ended otherwise or what was said to it does not count, 2 wrong usage or input, "
    "3 no server, a full store or other infrastructure, 4 not ended yet, 130 interrupted."
)


class Infrastructure(click.ClickException):
    """What Kokuban needs around it is not there; the message says what and the way out."""

    exit_code = INFRASTRUCTURE


class Group(click.Group):
    """A command group that ends the process by our rules when it is called as the program."""

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but a reader of our output that has seen enough (`head`, say) is no error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click itself would end with code 1
            return DONE

    def __call__(self, *args: Any, **extra: Any) -> NoReturn:
        run: Callable[..., Any] = self.main
        end(lambda: run(*args, prog_name="kokuban", standalone_mode=False, **extra))


def end(command: Callable[[], Any]) -> NoReturn:
    """Run `command` and end the process with the code it returns (None is 0), or with that of what it raises."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # foreign text must not fail on a narrow encoding
    try:
        code = command()
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = USAGE
    except Exception as error:
        if os.environ.get("KOKUBAN_DEBUG") == "1":
            raise
        code, message = explain(error)
        tell(f"kokuban: {message}")
    _forget_unread_output()
    sys.exit(code if isinstance(code, int) else DONE)


def _forget_unread_output() -> None:
    """Python flushes standard output once more at its end, and would complain when it cannot (again)."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code for an exception and what to say."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, click.UsageError):
        command = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return error.exit_code, error.format_message() + command
    if isinstance(error, click.ClickException):
        return error.exit_code, error.format_message()
    return _explain_ours(error)


def _explain_ours(error: BaseException) -> tuple[int, str]:
    from kokuban.agents.models import ModelConfigError
    from kokuban.agents.sandbox import SandboxError
    from kokuban.agents.toolbox import InvalidToolbox
    from kokuban.blackboard import BusError, InvalidRequest, NoAnswer, NoSuchTask, StoreFull, WorkspaceError
    from kokuban.blackboard.wire.embedded import EmbeddedServerError
    from kokuban.schemas import InvalidName

    text = clean(str(error))
    theirs = InvalidRequest | WorkspaceError | ModelConfigError | NoSuchTask | InvalidName | InvalidToolbox
    if isinstance(error, theirs):
        return USAGE, text
    if isinstance(error, NoAnswer):
        return INFRASTRUCTURE, f"NATS: no answer, so it is unknown whether the last write was stored ({text})"
    if isinstance(error, StoreFull):
        return INFRASTRUCTURE, text
    if isinstance(error, BusError):
        return INFRASTRUCTURE, text if text.startswith("NATS: ") else f"NATS: {text}"
    if isinstance(error, TimeoutError):
        return NOT_ENDED, text
    if isinstance(error, EmbeddedServerError | SandboxError | OSError) or type(error) is LookupError:
        return INFRASTRUCTURE, text
    return BUG, f"a bug in Kokuban: {type(error).__name__}: {text} (set KOKUBAN_DEBUG=1 to see where)"
