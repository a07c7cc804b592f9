"""dead: tasks that ended because a step was lost with its workers too often."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kokuban.console._options import credentials_of, json_option, nats_option, person_option
from kokuban.console._task_commands import execute
from kokuban.console._terminal import Paint, json_line, one_line, put, tell

if TYPE_CHECKING:
    from kokuban.blackboard.core import Task

_task_argument = click.argument("task")


@click.group(epilog="Example: kokuban dead list")
def dead() -> None:
    """Tasks whose work was lost with its workers too often: list, show, retry, drop."""


@dead.command("list", epilog="Example: kokuban dead list --all")
@click.option("--all", "dropped", is_flag=True, help="Those that were dropped or tried again, too.")
@json_option
@nats_option
def list_(dropped: bool, as_json: bool, nats: str | None) -> None:
    """Show every dead task that nobody has looked after yet, with the reason."""
    execute(_list(dropped, as_json, nats))


async def _list(dropped: bool, as_json: bool, nats: str | None) -> None:
    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban dead", credentials=credentials_of("client", nats)) as board:
        found = await board.dead(dropped=dropped)
    paint = Paint(sys.stdout)
    for task in found:
        if as_json:
            _put_json(task)
        else:
            assert task.final is not None
            reason = one_line(task.final.reason, 500)
            note = "  (dropped)" if task.dropped else ""
            put(f"{paint(task.id, 'bold')}  {one_line(task.spec.goal, 80)}{note}\n  {reason}")
    if not found and not as_json:
        tell("There is no dead task.")


@dead.command(epilog="Example: kokuban dead show t-1f2e3d4c5b6a")
@_task_argument
@json_option
@nats_option
def show(task: str, as_json: bool, nats: str | None) -> None:
    """Show a dead TASK with its steps and the reason."""
    execute(_show(task, as_json, nats))


async def _show(name: str, as_json: bool, nats: str | None) -> None:
    from kokuban.blackboard import Client, InvalidRequest
    from kokuban.console._status import state_of, task_lines

    async with await Client.connect(nats, name="kokuban dead", credentials=credentials_of("client", nats)) as board:
        task = await board.status(name)
        if state_of(task) != "dead":
            raise InvalidRequest(f"task: {name} is {state_of(task)}, not dead; kokuban status {name} shows it")
        spending = await board.spending(task)
    if as_json:
        _put_json(task)
        return
    for line in task_lines(task, spending, Paint(sys.stdout)):
        put(line)


@dead.command(epilog="Example: kokuban dead retry t-1f2e3d4c5b6a")
@_task_argument
@person_option
@nats_option
def retry(task: str, person: str | None, nats: str | None) -> None:
    """Submit a dead TASK again, without its key, and print the new id: the same one when asked twice."""
    execute(_retry(task, person, nats))


async def _retry(task: str, person: str | None, nats: str | None) -> None:
    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban dead", credentials=credentials_of("client", nats)) as board:
        put(await board.retry(task, person=person))


@dead.command(epilog="Example: kokuban dead drop t-1f2e3d4c5b6a --reason 'the input was broken'")
@_task_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the task.")
@person_option
@nats_option
def drop(task: str, reason: str, person: str | None, nats: str | None) -> None:
    """Take a dead TASK off the list. Its records stay."""
    execute(_drop(task, reason, person, nats))


async def _drop(task: str, reason: str, person: str | None, nats: str | None) -> None:
    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban dead", credentials=credentials_of("client", nats)) as board:
        await board.drop(task, reason, person=person)
    put(f"{task} is off the list of the dead.")


def _put_json(task: Task) -> None:
    import msgspec

    from kokuban.console._status import task_json

    put(json_line(msgspec.json.encode(task_json(task) | {"dropped": task.dropped})))
