"""cancel, inject, approvals, answer: what people say to tasks while they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console import _errors
from kokuban.console._options import Seconds, credentials_of, json_option, nats_option, person_option
from kokuban.console._task_commands import execute
from kokuban.console._terminal import Paint, json_line, one_line, put, tell

if TYPE_CHECKING:
    from kokuban.blackboard import Approval, Client, Ended, NotVoted, Told, Voted


def _digest(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("it is empty; give digits of the digest, or leave it out", context, parameter)
    return value


_gate_argument = click.argument("gate", metavar="[TASK/]GATE")
_seen_option = click.option(
    "--seen", metavar="DIGEST", callback=_digest,
    help="What you have seen is bound to this digest (its first digits are enough): if it is another now, no vote.",
)  # fmt: skip
_reason_option = click.option("--reason", default="", metavar="TEXT", help="Why; the agent reads it, as data.")


@click.command(epilog="Example: kokuban cancel t-1f2e3d4c5b6a --reason 'not needed any more'")
@click.argument("task")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the end of the task.")
@click.option(
    "--wait", type=Seconds(positive=True), metavar="SECONDS",
    help="Wait for the end at most this long (exit 4 when it has not come).",
)  # fmt: skip
@person_option
@json_option
@nats_option
def cancel(
    task: str, reason: str, wait: float | None, person: str | None, as_json: bool, nats: str | None
) -> int:  # fmt: skip
    """End TASK and every task below it, wherever their work is running."""
    return execute(_cancel(task, reason, wait, person, as_json, nats))


async def _cancel(
    task: str, reason: str, wait: float | None, person: str | None, as_json: bool, nats: str | None
) -> int:
    from kokuban.blackboard import Client
    from kokuban.console._live import reason_of

    async with await Client.connect(nats, name="kokuban cancel", credentials=speaker(person, nats)) as board:
        said = await board.cancel(task, reason, person=person)
        code = _told(said, as_json, f"Cancelling {task} is stored; the supervisor stops its work and ends it.")
        if wait is None or code:
            return code
        try:
            outcome = await board.result(task, timeout=wait)
        except TimeoutError:
            tell(f"Task {task} has not ended after {wait:g} s; is a supervisor running?")
            return _errors.NOT_ENDED
    late = f"; not heard to have stopped: {', '.join(outcome.unconfirmed)}" if outcome.unconfirmed else ""
    tell(f"{outcome.state}: {reason_of(outcome.state, outcome.reason)}{late}")
    return _errors.DONE if outcome.state == "cancelled" else _errors.TASK_FAILED


@click.command(epilog="Example: kokuban inject t-1f2e3d4c5b6a 'The fee is 25 euro since March'")
@click.argument("task")
@click.argument("text")
@person_option
@json_option
@nats_option
def inject(task: str, text: str, person: str | None, as_json: bool, nats: str | None) -> int:
    """Add the fact TEXT to TASK: its plan is made again with it, and every later step reads it, as data."""
    return execute(_inject(task, text, person, as_json, nats))


async def _inject(task: str, text: str, person: str | None, as_json: bool, nats: str | None) -> int:
    from kokuban.blackboard import Client

    async with await Client.connect(nats, name="kokuban inject", credentials=speaker(person, nats)) as board:
        there = await board.status(task)
        if there.final is None and text.strip() in there.facts:
            if as_json:
                _put_json({"counts": True, "landed": False, "again": True, "task": task})
            else:
                put(f"The fact was there already with {task}; nothing was written.")
            return _errors.DONE
        said = await board.inject(task, text, person=person)
    return _told(said, as_json, f"The fact is stored with {task}; the plan is made again with it.")


def _told(said: Told | Ended, as_json: bool, text: str) -> int:
    from kokuban.blackboard import Ended
    from kokuban.console._live import reason_of

    ended = isinstance(said, Ended)
    if as_json:
        _put_json({"counts": not ended, "landed": said.landed if isinstance(said, Ended) else True}, said)
    elif isinstance(said, Ended):
        tell(f"Task {said.task} has ended, so this does not count: {said.state}: {reason_of(said.state, said.reason)}")
    else:
        put(text)
    return _errors.TASK_FAILED if ended else _errors.DONE


@click.group(epilog="Example: kokuban approvals list")
def approvals() -> None:
    """What waits for a person: list, show, approve, deny."""


@approvals.command("list", epilog="Example: kokuban approvals list t-1f2e3d4c5b6a")
@click.argument("task", required=False)
@click.option("--all", "decided", is_flag=True, help="Those that are decided, too.")
@json_option
@nats_option
def list_(task: str | None, decided: bool, as_json: bool, nats: str | None) -> None:
    """Show what waits for a person, of all tasks or of TASK: what, with which arguments, by whom, until when."""
    execute(_list(task, decided, as_json, nats))


async def _list(task: str | None, decided: bool, as_json: bool, nats: str | None) -> None:
    from kokuban.blackboard import Client
    from kokuban.console._gates import gate_json, gate_lines

    async with await Client.connect(nats, name="kokuban gates", credentials=credentials_of("client", nats)) as board:
        found = await board.approvals(task, decided=decided)
    paint = Paint(sys.stdout)
    for approval in found:
        if as_json:
            _put_json(gate_json(approval))
        else:
            for line in gate_lines(approval, paint):
                put(line)
    if not found and not as_json:
        tell("Nothing waits for a person.")


@approvals.command(epilog="Example: kokuban approvals show t-1f2e3d4c5b6a/fix-1-3")
@_gate_argument
@json_option
@nats_option
def show(gate: str, as_json: bool, nats: str | None) -> None:
    """Show one gate with all of the call's arguments, or the whole artifact."""
    execute(_show(gate, as_json, nats))


async def _show(name: str, as_json: bool, nats: str | None) -> None:
    from kokuban.blackboard import Client
    from kokuban.console._gates import gate_json, whole_gate

    async with await Client.connect(nats, name="kokuban gates", credentials=credentials_of("client", nats)) as board:
        approval = await find_gate(board, name)
        content: Any = None
        if approval.gate.subject is not None and not as_json:
            try:
                content = await board.artifact(approval.gate.subject)
            except LookupError as error:
                tell(one_line(f"its content cannot be read: {error}", 500))
    if as_json:
        _put_json(gate_json(approval))
        return
    for line in whole_gate(approval, content, Paint(sys.stdout)):
        put(line)


@approvals.command(epilog="Example: kokuban approvals approve t-1f2e3d4c5b6a/fix-1-3 --as ann")
@_gate_argument
@_reason_option
@_seen_option
@person_option
@json_option
@nats_option
def approve(
    gate: str, reason: str, seen: str | None, person: str | None, as_json: bool, nats: str | None
) -> int:  # fmt: skip
    """Allow exactly this call, or let exactly this artifact count. One vote a person; it cannot be taken back."""
    return execute(_vote("approve", gate, reason, seen, person, as_json, nats))


@approvals.command(epilog="Example: kokuban approvals deny t-1f2e3d4c5b6a/fix-1-3 --reason 'not on a Friday'")
@_gate_argument
@_reason_option
@_seen_option
@person_option
@json_option
@nats_option
def deny(gate: str, reason: str, seen: str | None, person: str | None, as_json: bool, nats: str | None) -> int:
    """Refuse this call or artifact; the agent goes on with the reason. One vote a person; it cannot be taken back."""
    return execute(_vote("deny", gate, reason, seen, person, as_json, nats))


@click.command(epilog="Example: kokuban answer t-1f2e3d4c5b6a/facts-1-2 'The one of 2024'")
@_gate_argument
@click.argument("text")
@_seen_option
@person_option
@json_option
@nats_option
def answer(
    gate: str, text: str, seen: str | None, person: str | None, as_json: bool, nats: str | None
) -> int:  # fmt: skip
    """Answer an agent's question; it goes on with TEXT."""
    return execute(_vote("answer", gate, text, seen, person, as_json, nats))


async def _vote(
    word: Any, name: str, text: str, seen: str | None, person: str | None, as_json: bool, nats: str | None
) -> int:
    from dataclasses import replace

    from kokuban.blackboard import Client, NotVoted

    secret = speaker(person or "local", nats)  # an embedded server knows one approver, of this name
    async with await Client.connect(nats, name=f"kokuban {word}", credentials=secret) as board:
        approval = await find_gate(board, name)
        said = await board.vote(approval.task, approval.id, word, text, bound=seen or approval.bound, person=person)
    if seen and isinstance(said, NotVoted) and said.why == "changed" and not _shows(seen, approval.bound):
        said = replace(said, text=f"{seen!r} does not match: the gate is bound to {approval.bound}")
    return _voted(word, approval, said, as_json)


def _shows(seen: str, bound: str) -> bool:
    """Whether what a person says to have seen are digits of this digest."""
    return bound.removeprefix("sha256:").startswith(seen.strip().lower().removeprefix("sha256:"))


def _voted(word: str, approval: Approval, said: Voted | NotVoted, as_json: bool) -> int:
    from kokuban.blackboard import NotVoted
    from kokuban.console._live import subject_of

    lost = isinstance(said, NotVoted)
    if as_json:
        _put_json({"counts": not lost, "landed": said.landed if isinstance(said, NotVoted) else True}, said)
    elif isinstance(said, NotVoted):
        stored = "it is stored, but came too late" if said.landed else "nothing was written"
        tell(f"This vote does not count ({stored}): {one_line(said.text, 2_000)}")
    else:
        again = " (as before)" if said.again else ""
        put(f"{said.person}: {word}{again}: {said.task}/{said.gate}: {subject_of(approval.gate, 200)}")
    return _errors.TASK_FAILED if lost else _errors.DONE


def speaker(person: str | None, nats: str | None) -> Path | None:
    """The file of the credential that speaks for this person."""
    return credentials_of(f"approver-{person}" if person else "client", nats)


async def find_gate(board: Client, name: str) -> Approval:
    """The gate that `TASK/GATE`, or `GATE` alone when one task has it, names. Raises a usage error, `NoSuchTask`."""
    from kokuban.blackboard import NoSuchGate

    task, _, gate = name.rpartition("/")
    found = [a for a in await board.approvals(task or None, decided=True) if a.id == gate]
    open_ones = [a for a in found if a.decision is None]
    if len(open_ones or found) > 1:
        names = ", ".join(f"{a.task}/{a.id}" for a in (open_ones or found)[:10])
        raise click.UsageError(f"gate: {len(open_ones or found)} tasks have one of that name; say which: {names}")
    for approval in open_ones or found:
        return approval
    raise NoSuchGate(f"gate: there is no {name!r} on this board; kokuban approvals list shows what waits")


def _put_json(value: dict[str, Any], said: Any = None) -> None:
    import dataclasses

    import msgspec

    put(json_line(msgspec.json.encode((dataclasses.asdict(said) if said is not None else {}) | value)))
