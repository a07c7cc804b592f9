"""up: a server, a supervisor and one worker per role on this machine, kept alive until Ctrl-C."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console import _errors
from kokuban.console._crew import children, commands_of, exec_option, last_line
from kokuban.console._models import ModelChoice, choose, model_options, required
from kokuban.console._options import PATH, address, approve_option, isolation_option, policy_of, policy_option
from kokuban.console._terminal import one_line, put, tell
from kokuban.console._workers import DRAIN_SECONDS, contract_of

if TYPE_CHECKING:
    from kokuban.blackboard.wire.embedded import EmbeddedServer


@click.command(epilog="Example: kokuban up --model openai-compatible:qwen2.5-coder --base-url http://127.0.0.1:8000/v1")
@click.option(
    "--store", type=PATH, default=Path(".kokuban"), show_default=True,
    metavar="DIR", help="Keeps the board, logs and working folders.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=4222, show_default=True, metavar="N",
    help="TCP port of the server on 127.0.0.1; 0 takes a free one.",
)  # fmt: skip
@click.option("--roles", metavar="ROLE,…", help="Start workers of these roles only (default: all).")
@click.option("--concurrency", type=click.IntRange(1, 1_000), metavar="N", help="Steps at once in each worker.")
@click.option("--nats", metavar="URL", callback=address, help="Use the server there instead of starting one.")
@click.option(
    "--credentials", "secrets", type=PATH, metavar="DIR", envvar="KOKUBAN_CREDENTIALS",
    help="With --nats: the folder of a tenant that `kokuban auth init` wrote; each process gets its own file of it.",
)  # fmt: skip
@approve_option
@policy_option
@isolation_option
@exec_option
@model_options
def up(
    store: Path, port: int, roles: str | None, concurrency: int | None, nats: str | None, secrets: Path | None,
    approve_tools: tuple[str, ...], policy_file: Path | None, commands: tuple[str, ...],
    **model: Any,
) -> None:  # fmt: skip
    """Run everything on this machine until Ctrl-C, which drains (a second one does not wait).

    What is on the board stays in the store folder; the next `up` there goes on with it.
    """
    import asyncio

    from kokuban.console._logging import configure_logging
    from kokuban.schemas.contracts import builtin_crew

    named = [role.strip() for role in roles.split(",") if role.strip()] if roles else list(builtin_crew())
    contracts = [contract_of(role) for role in dict.fromkeys(named)]
    if not contracts:
        raise click.UsageError("roles: name at least one, for example --roles coder,verifier")
    choice = choose(**model)
    if any(contract.model for contract in contracts):
        required(choice)
    configure_logging()
    if nats is None:
        secrets = None  # the store has its own
    elif secrets is not None and not secrets.is_dir():
        raise click.UsageError(
            f"credentials: {secrets} is no folder; up starts several users, name the tenant's folder"
        )
    policy_of(policy_file, approve_tools)  # said now rather than by each worker
    given = [contract.role for contract in contracts]
    own = commands_of(commands, given)
    if choice is not None:
        choice.check_roles(given)
    asyncio.run(_up(store, port, given, concurrency, nats, secrets, choice, approve_tools, policy_file, own))


async def _up(
    store: Path, port: int, roles: Sequence[str], concurrency: int | None, nats: str | None, secrets: Path | None,
    choice: ModelChoice | None, approve_tools: Sequence[str] = (), policy: Path | None = None,
    commands: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    from kokuban.blackboard.client import DEFAULT_URL
    from kokuban.blackboard.wire import Bus, ensure_board
    from kokuban.console.launcher import Launcher, LauncherEvent

    if choice is not None:
        await choice.validate()
    async with AsyncExitStack() as stack:
        server = None
        if nats is None:
            server = await _start(store, port)
            stack.push_async_callback(server.stop)
            shutil.rmtree(store / "homes", ignore_errors=True)  # left by processes that were killed; the store is ours
        url = server.url if server else nats or DEFAULT_URL
        folder = server.credentials if server else secrets
        owner = folder / "supervisor.nk" if folder else None
        async with await Bus.connect(url, name="kokuban up", credentials=owner) as bus:
            await ensure_board(bus)  # so that clients find it from now on
        crew = children(
            roles, url=url, folder=store.absolute(), model=choice, concurrency=concurrency, drain_seconds=DRAIN_SECONDS,
            credentials=folder, approve_tools=approve_tools, policy=policy, commands=commands,
        )  # fmt: skip

        def show(name: str, event: LauncherEvent, detail: str) -> None:
            if event != "stopping":
                reason = last_line(store / "logs" / f"{name}.log") if event == "died" else ""
                tell(one_line(f"{name} {event}: {detail}" + (f": {reason}" if reason else ""), 1_000))

        if server is not None:
            put(f"Kokuban is up at {server.url}")
            here = "" if server.url.endswith(":4222") else f" --nats {server.url}"
            here += "" if store == Path(".kokuban") else f" --credentials {server.credentials}"
            tell(f"Submit a task: kokuban submit 'Fix the failing test' --workspace . --check 'make test'{here}")
            tell(f"The board is in {store}; logs are in {store / 'logs'}. Ctrl-C drains and ends.")
            tell(f"From other folders, and as another user: add --credentials with a file of {server.credentials}")
        else:
            put("Kokuban is up on the server that --nats names")
        await Launcher(crew, server=server, on_event=show, drain_seconds=DRAIN_SECONDS + 2).run()


async def _start(store: Path, port: int) -> EmbeddedServer:
    """The embedded server, started; an error that names the options to change."""
    from kokuban.blackboard.wire.embedded import EmbeddedServer, EmbeddedServerError, running_server

    new = not store.exists()
    try:
        return await EmbeddedServer(store, port=port or None, protected=True).start()
    except EmbeddedServerError as error:
        holder = running_server(store)
        if holder is not None and holder.url is not None:
            raise _errors.Infrastructure(
                f"store: {store} is in use: Kokuban is up there at {holder.url}; "
                f"use that one (--nats {holder.url}), or name another folder with --store"
            ) from error
        if new and holder is None:
            shutil.rmtree(store, ignore_errors=True)
        hint = " (--port N; --port 0 takes a free one)" if f"port {port} " in str(error) else ""
        raise _errors.Infrastructure(f"{error}{hint}") from error
