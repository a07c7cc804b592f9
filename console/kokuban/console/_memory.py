"""memory: what a tenant's teams may know from one task to the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kokuban.console._options import credentials_of, json_option, nats_option, person_option
from kokuban.console._terminal import json_line, one_line, put
from kokuban.console._values import duration

if TYPE_CHECKING:
    from kokuban.blackboard.memory import Embeddings, Memories, Memory

T = TypeVar("T")
_tenant = click.option("--tenant", default="default", show_default=True, metavar="NAME", help="Whose memory.")
_expires = click.option(
    "--expires", callback=duration, metavar="TIME", help="When it stops to count (90s, 2h, 30d)  [default: never]"
)


def _one_to_judge(command: Callable[..., int]) -> Callable[..., int]:
    """What a person says who judges one memory: which, why, whose, and as whom."""
    name = click.argument("name", metavar="ID")
    reason = click.option("--reason", default="", metavar="TEXT")
    for option in (nats_option, json_option, person_option, _tenant, reason, name):
        command = option(command)
    return command


embeddings_option = click.option(
    "--embeddings", envvar="KOKUBAN_EMBEDDINGS", metavar="URL",
    help="Recall by meaning, through a server that speaks OpenAI's /embeddings, such as "
    "http://127.0.0.1:8080/v1#MODEL (or KOKUBAN_EMBEDDINGS; its key in KOKUBAN_EMBEDDINGS_KEY). Approved memories are "
    "sent to it.",
)  # fmt: skip


def embeddings_of(url: str | None) -> Embeddings | None:
    """What `--embeddings` names. Raises a usage error for what is no such address."""
    import os

    from kokuban.blackboard.memory import Embeddings

    try:
        return Embeddings(url, key=os.environ.get("KOKUBAN_EMBEDDINGS_KEY")) if url else None
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.group()
def memory() -> None:
    """Show, approve and forget what a tenant's teams remember."""


def _do(
    nats: str | None, tenant: str, ask: Callable[[Memories], Awaitable[T]], *, user: str = "client",
    person: str | None = None, embeddings: Embeddings | None = None,
) -> T:  # fmt: skip
    """Ask the tenant's memory something, as `user` where the server wants credentials, in the name of `person`."""
    import asyncio

    from kokuban.blackboard.client import DEFAULT_URL, person_name
    from kokuban.blackboard.memory import ANYBODY, EVERYTHING, Access, InvalidMemory, Memories, NoMemory
    from kokuban.blackboard.wire import Bus, ensure_board

    async def run() -> T:
        secret = credentials_of(user, nats)
        async with await Bus.connect(nats or DEFAULT_URL, name="kokuban memory", credentials=secret) as bus:
            await ensure_board(bus)
            access = Access(kinds=EVERYTHING, principals=ANYBODY, unapproved=True)
            who = f"person-{person_name(person or bus.person)}"
            return await ask(Memories(bus, tenant=tenant, access=access, who=who, embeddings=embeddings))

    try:
        return asyncio.run(run())
    except (NoMemory, InvalidMemory) as error:
        raise click.UsageError(str(error)) from error


@memory.command("list", epilog="Example: kokuban memory list --tenant acme --pending")
@click.option("--pending", is_flag=True, help="Only what waits for somebody's word.")
@_tenant
@json_option
@nats_option
def list_(pending: bool, tenant: str, as_json: bool, nats: str | None) -> None:
    """Show every memory of the tenant, those that wait for somebody's word too."""
    for found in _do(nats, tenant, lambda memories: memories.listed()):
        if not pending or found.state == "proposed":
            _show(found, as_json)


@memory.command(epilog="Example: kokuban memory show 383c8237ab0396ac62d62fbd")
@click.argument("name", metavar="ID")
@_tenant
@json_option
@nats_option
def show(name: str, tenant: str, as_json: bool, nats: str | None) -> None:
    """Show one memory in full, with where it comes from."""
    found = _do(nats, tenant, lambda memories: memories.get(name))
    _show(found, as_json, whole=True)


@memory.command(epilog="Example: kokuban memory recall 'code style'")
@click.argument("query")
@_tenant
@embeddings_option
@json_option
@nats_option
def recall(query: str, tenant: str, embeddings: str | None, as_json: bool, nats: str | None) -> None:
    """Show what an agent is told that asks for QUERY; of preferences, those of every person."""
    for found in _do(nats, tenant, lambda memories: memories.recall(query), embeddings=embeddings_of(embeddings)):
        _show(found, as_json)


@memory.command(epilog="Example: kokuban memory add 'code style' 'Indent with tabs.' --kind preference")
@click.argument("key")
@click.argument("text")
@click.option("--kind", type=click.Choice(["fact", "preference"]), default="fact", show_default=True)
@click.option("--about", default="", metavar="NAME", help="Only for the tasks of this principal  [default: everybody]")
@_expires
@_tenant
@person_option
@json_option
@nats_option
def add(
    key: str, text: str, kind: Any, about: str, expires: int | None, tenant: str, person: str | None, as_json: bool,
    nats: str | None,
) -> None:  # fmt: skip
    """Propose TEXT under KEY; it counts once somebody has approved it."""

    async def propose(memories: Memories) -> Memory:
        name, _ = await memories.propose(kind=kind, key=key, text=text, principal=about, expires_seconds=expires)
        return await memories.get(name)

    _show(_do(nats, tenant, propose, user=_user(person), person=person), as_json)


@memory.command(epilog="Example: kokuban memory learn t-1f2e3d4c5b6a")
@click.argument("task")
@_expires
@person_option
@json_option
@nats_option
def learn(task: str, expires: int | None, person: str | None, as_json: bool, nats: str | None) -> None:
    """Propose an episode: what TASK tried, what failed and what came of it, archived or not."""
    import asyncio

    from kokuban.blackboard import Client
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.memory import episode

    async def read() -> tuple[str, Any]:
        secret = credentials_of(_user(person), nats)
        async with await Client.connect(nats or DEFAULT_URL, credentials=secret) as board:
            tenant = (await board.status(task)).tenant
            events = [event async for event in board.watch(task, follow=False)]
            return tenant, episode(events, tenant=tenant, task=task, expires_seconds=expires)

    try:
        tenant, proposal = asyncio.run(read())
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    async def propose(memories: Memories) -> Memory:
        name, _ = await memories.propose_whole(proposal)
        return await memories.get(name)

    _show(_do(nats, tenant, propose, user=_user(person), person=person), as_json, whole=True)


@memory.command(epilog="Example: kokuban memory approve 383c8237ab0396ac62d62fbd --as ann")
@_one_to_judge
def approve(name: str, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None) -> int:
    """Let a memory count. The first word about one does: another that came before is shown."""
    return _judge(name, "approved", reason, tenant, person, as_json, nats)


@memory.command(epilog="Example: kokuban memory deny 383c8237ab0396ac62d62fbd --reason 'not true'")
@_one_to_judge
def deny(name: str, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None) -> int:
    """Say that a memory does not count."""
    return _judge(name, "denied", reason, tenant, person, as_json, nats)


def _judge(
    name: str, outcome: Any, reason: str, tenant: str, person: str | None, as_json: bool, nats: str | None
) -> int:
    found = _do(
        nats, tenant, lambda memories: memories.judge(name, outcome, reason=reason), user=_user(person), person=person
    )
    _show(found, as_json)
    return 0 if found.state == outcome else 1


@memory.command(epilog="Example: kokuban memory forget --task t-1f2e3d4c5b6a")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--task", metavar="TASK", help="All that came from this task.")
@click.option("--source", metavar="DIGEST", help="All that came from the artifact with this digest.")
@click.option("--author", metavar="NAME", help="All that this role or person proposed, such as role-coder, person-ann.")
@click.option("--all", "everything", is_flag=True, help="All of the tenant.")
@_tenant
@nats_option
def forget(
    name: str | None, task: str | None, source: str | None, author: str | None, everything: bool, tenant: str,
    nats: str | None,
) -> None:  # fmt: skip
    """Forget memories: their words are deleted from the board, and nothing late brings them back."""
    if sum(map(bool, (name, task, source, author, everything))) != 1:
        raise click.UsageError("name one ID, or --task, --source, --author or --all")

    def ask(memories: Memories) -> Awaitable[int]:
        if everything:
            return memories.forget_all()
        return memories.forget(name=name, task=task, source=source, author=author)

    # The supervisor may delete at once; of whoever else asks, it does so a moment later.
    count = _do(nats, tenant, ask, user="supervisor")
    put(f"{count} forgotten")


def _user(person: str | None) -> str:
    return f"approver-{person}" if person else "client"


def _show(found: Memory, as_json: bool, *, whole: bool = False) -> None:
    import msgspec

    said = found.proposal
    if as_json:
        put(json_line(msgspec.json.encode({
            "id": found.id, "state": found.state, "author": found.author, "by": found.by, "reason": found.reason,
            "since": found.since, **msgspec.to_builtins(said),
        })))  # fmt: skip
        return
    origin = f", from {said.task}{f'/{said.step}' if said.step else ''}" if said.task else ""
    about = f", about {one_line(said.principal)}" if said.principal else ""
    by = f" by {found.by}" if found.by else ""
    reason = f" ({one_line(found.reason)})" if found.reason else ""
    put(f"{found.id}  {found.state}{by}{reason}  {said.kind} of {found.author}{about}{origin}")
    if not whole:
        put(f"  {one_line(said.key)}: {one_line(said.text)}")
        return
    put(f"  {one_line(said.key)}")
    for line in said.text.splitlines():
        put(f"    {one_line(line)}")
    for source in said.sources:
        put(f"  source {source}")
