"""submit, watch, status, result: what a person or a script does with tasks, on any machine that reaches the board."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kokuban.console import _errors
from kokuban.console._options import (
    Seconds,
    TaskRequest,
    credentials_of,
    goal_argument,
    json_option,
    nats_option,
    out_option,
    task_options,
)
from kokuban.console._terminal import Paint, json_line, put, tell, when_unread

if TYPE_CHECKING:
    from kokuban.blackboard import Client, Outcome
    from kokuban.schemas import Verdict

Result = TypeVar("Result")


@click.command(epilog="Example: kokuban submit 'Fix the failing test' --workspace . --check 'python3 -m unittest'")
@goal_argument
@task_options
@click.option("--parent", metavar="TASK", help="The task that this one is a part of: its budget bounds this one, too.")
@nats_option
def submit(nats: str | None, **task: Any) -> None:
    """Put a task on the board and print its id as soon as it is stored."""
    execute(_submit(nats, TaskRequest(**task)))


async def _submit(nats: str | None, request: TaskRequest) -> None:
    from kokuban.blackboard import Client

    await request.validate(checks_run_here=False)
    async with await Client.connect(nats, name="kokuban submit", credentials=credentials_of("client", nats)) as board:
        put(await request.submit(board))


@click.command(epilog="Example: kokuban watch --from 120 --json")
@click.argument("task", required=False)
@click.option(
    "--from", "after", type=click.IntRange(0), default=0, metavar="SEQ",
    help="Go on after this sequence number, the last one you have seen (each line shows its own).",
)  # fmt: skip
@click.option("--follow/--no-follow", default=True, help="Wait for what comes next, or stop at what is there.")
@json_option
@nats_option
def watch(task: str | None, after: int, follow: bool, as_json: bool, nats: str | None) -> None:
    """Show what happens on the board, or to one TASK: every record once, in order, from the beginning or --from.

    The line of a lease (a supervisor saying that it still leads) is in the --json output only.
    """
    execute(_watch(task, after, follow, as_json, nats))


async def _watch(task: str | None, after: int, follow: bool, as_json: bool, nats: str | None) -> None:
    import asyncio
    import sys

    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban watch", credentials=credentials_of("client", nats)) as board:
        showing = asyncio.create_task(_show(board, task, after, follow, as_json))
        when_unread(sys.stdout, showing.cancel)
        try:
            await asyncio.wait({showing})
        finally:
            showing.cancel()
        if not showing.cancelled():
            showing.result()


async def _show(board: Client, task: str | None, after: int, follow: bool, as_json: bool) -> None:
    import sys

    import msgspec

    from kokuban.console._live import event_line

    paint = Paint(sys.stdout)
    async for event in board.watch(task, after=after, follow=follow):
        if as_json:
            put(json_line(msgspec.json.encode(event)))
        elif event.event != "lease":
            put(event_line(event, paint))


@click.command(epilog="Example: kokuban status --json")
@click.argument("task", required=False)
@json_option
@nats_option
def status(task: str | None, as_json: bool, nats: str | None) -> None:
    """Show all tasks in a line each, or one TASK with its steps, artifacts and spending, and whom it waits for."""
    execute(_status(task, as_json, nats))


async def _status(name: str | None, as_json: bool, nats: str | None) -> None:
    import sys

    import msgspec

    from kokuban.blackboard import Client
    from kokuban.console._status import task_json, task_line, task_lines

    paint, spending = Paint(sys.stdout), None
    async with await Client.connect(nats, name="kokuban status", credentials=credentials_of("client", nats)) as board:
        tasks = [await board.status(name)] if name is not None else await board.tasks()
        if name is not None:
            spending = await board.spending(tasks[0])
    for task in tasks:
        if as_json:
            put(json_line(msgspec.json.encode(task_json(task, spending))))
        elif spending is not None:
            for line in task_lines(task, spending, paint):
                put(line)
        else:
            put(task_line(task, paint))
    if not tasks and not as_json:
        tell("There is no task on this board yet.")


@click.command(epilog="Example: kokuban result t-1f2e3d4c5b6a --out fixed")
@click.argument("task")
@out_option
@json_option
@click.option("--wait/--no-wait", default=True, help="Wait for the task's end, or look once.")
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="Wait at most this long.")
@nats_option
def result(task: str, out: Path | None, as_json: bool, wait: bool, timeout: float | None, nats: str | None) -> int:
    """Show how TASK ended and what it gave. Exit code 0: done, 1: ended otherwise (the text says how), 4: not ended
    yet."""
    return execute(_result(task, out, as_json, timeout if wait else 0, nats))


async def _result(task: str, out: Path | None, as_json: bool, timeout: float | None, nats: str | None) -> int:
    from kokuban.blackboard import Client
    from kokuban.blackboard.workspace import check_out_path
    from kokuban.console._live import verdict_of

    if out is not None:
        check_out_path(out)
    async with await Client.connect(nats, name="kokuban result", credentials=credentials_of("client", nats)) as board:
        await board.status(task)  # a task that does not exist would never end
        try:
            outcome = await board.result(task, timeout=timeout)
        except TimeoutError:
            tell(f"Task {task} has not ended yet; kokuban watch {task} shows what happens.")
            return _errors.NOT_ENDED
        return deliver(outcome, await verdict_of(board, outcome), out, as_json)


def deliver(outcome: Outcome, verdict: Verdict | None, out: Path | None, as_json: bool) -> int:
    """Print a task's end, write its result folder, and give the exit code."""
    import sys

    import msgspec

    from kokuban.blackboard.workspace import write_out
    from kokuban.console._live import outcome_json, outcome_lines

    if out is not None and outcome.deliverable is not None:
        write_out(outcome.as_folder(), out)
    if as_json:
        put(json_line(msgspec.json.encode(outcome_json(outcome, verdict))))
    else:
        for line in outcome_lines(outcome, verdict, Paint(sys.stdout)):
            put(line)
    if out is not None:
        tell(
            f"The result is in {out}." if outcome.deliverable else f"Nothing was written to {out}: there is no result."
        )
    return _errors.DONE if outcome.state == "done" else _errors.TASK_FAILED


def execute(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's work to its end, with our logging."""
    import asyncio

    from kokuban.console._logging import configure_logging

    configure_logging()
    return asyncio.run(work)
