"""memory: what a tenant's teams may know from one task to the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kokuban.console._options import credentials_of, json_option, nats_option, person_option
from kokuban.console._terminal import json_line, one_line, put
from kokuban.console._values import duration

if TYPE_CHECKING:
    from kokuban.blackboard.memory import Memories, Memory

T = TypeVar("T")
_tenant = click.option("--tenant", default="default", show_default=True, metavar="NAME", help="Whose memory.")


@click.group()
def memory() -> None:
    """Show, approve and forget what a tenant's teams remember."""


def _do(user: str, nats: str | None, tenant: str, ask: Callable[[Memories], Awaitable[T]]) -> T:
    import asyncio

    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.memory import EVERYTHING, Access, Memories, NoMemory
    from kokuban.blackboard.wire import Bus, ensure_board

    async def run() -> T:
        secret = credentials_of(user, nats)
        async with await Bus.connect(nats or DEFAULT_URL, name="kokuban memory", credentials=secret) as bus:
            await ensure_board(bus)
            return await ask(Memories(bus, tenant=tenant, access=Access(EVERYTHING, unapproved=True)))

    try:
        return asyncio.run(run())
    except NoMemory as error:
        raise click.UsageError(str(error)) from error


@memory.command("list", epilog="Example: kokuban memory list --tenant acme")
@_tenant
@json_option
@nats_option
def list_(tenant: str, as_json: bool, nats: str | None) -> None:
    """Show every memory of the tenant, those that wait for a person's word too."""
    for found in _do("client", nats, tenant, lambda memories: memories.listed()):
        _show(found, as_json)


@memory.command(epilog="Example: kokuban memory recall 'code style'")
@click.argument("query")
@_tenant
@json_option
@nats_option
def recall(query: str, tenant: str, as_json: bool, nats: str | None) -> None:
    """Show what an agent is told that asks for QUERY."""
    for found in _do("client", nats, tenant, lambda memories: memories.recall(query)):
        _show(found, as_json)


@memory.command(epilog="Example: kokuban memory add 'code style' 'Indent with tabs.' --kind preference")
@click.argument("key")
@click.argument("text")
@click.option("--kind", type=click.Choice(["fact", "preference"]), default="fact", show_default=True)
@click.option("--expires", callback=duration, metavar="TIME", help="When it stops to count (90s, 2h, 30d; never).")
@_tenant
@person_option
@json_option
@nats_option
def add(
    key: str, text: str, kind: Any, expires: int | None, tenant: str, person: str | None, as_json: bool,
    nats: str | None,
) -> None:  # fmt: skip
    """Propose TEXT under KEY; it counts once somebody has approved it."""
    from kokuban.blackboard import person_name

    async def propose(memories: Memories) -> Memory:
        name, _ = await memories.propose(
            kind=kind, key=key, text=text, author=person_name(person), expires_seconds=expires
        )
        return await memories.get(name)

    _show(_do("client", nats, tenant, propose), as_json)


@memory.command(epilog="Example: kokuban memory approve 3f9a… --as ann")
@click.argument("name", metavar="ID")
@click.option("--reason", default="", metavar="TEXT")
@_tenant
@person_option
@json_option
@nats_option
def approve(name: str, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None) -> int:
    """Let a memory count. The first word about one does: another that came before is shown."""
    return _judge(name, "approved", reason, tenant, person, as_json, nats)


@memory.command(epilog="Example: kokuban memory deny 3f9a… --reason 'not true'")
@click.argument("name", metavar="ID")
@click.option("--reason", default="", metavar="TEXT")
@_tenant
@person_option
@json_option
@nats_option
def deny(name: str, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None) -> int:
    """Say that a memory does not count."""
    return _judge(name, "denied", reason, tenant, person, as_json, nats)


def _judge(
    name: str, outcome: Any, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None
) -> int:  # fmt: skip
    from kokuban.blackboard import person_name

    who = person_name(person)
    found = _do(
        f"approver-{person}" if person else "client", nats, tenant,
        lambda memories: memories.judge(name, outcome, by=who, reason=reason),
    )  # fmt: skip
    _show(found, as_json)
    return 0 if found.state == outcome else 1


@memory.command(epilog="Example: kokuban memory forget --task t-1f2e3d4c5b6a")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--task", metavar="TASK", help="All that came from this task.")
@click.option("--author", metavar="NAME", help="All that this role or person proposed.")
@click.option("--all", "everything", is_flag=True, help="All of the tenant.")
@_tenant
@nats_option
def forget(
    name: str | None, task: str | None, author: str | None, everything: bool, tenant: str, nats: str | None
) -> None:  # fmt: skip
    """Forget memories: their words are deleted from the board, and nothing late brings them back."""
    if sum(map(bool, (name, task, author, everything))) != 1:
        raise click.UsageError("name one ID, or --task, --author or --all")
    count = _do("supervisor", nats, tenant, lambda m: m.forget(name=name, task=task, author=author))
    put(f"{count} forgotten")


def _show(found: Memory, as_json: bool) -> None:
    import msgspec

    said = found.proposal
    if as_json:
        put(json_line(msgspec.json.encode({
            "id": found.id, "state": found.state, "by": found.by, "reason": found.reason, "since": found.since,
            **msgspec.to_builtins(said),
        })))  # fmt: skip
        return
    origin = f", from {said.task}/{said.step}" if said.task else ""
    by = f" by {found.by}" if found.by else ""
    put(f"{found.id}  {found.state}{by}  {said.kind} of {said.author}{origin}")
    put(f"  {one_line(said.key)}: {one_line(said.text)}")
