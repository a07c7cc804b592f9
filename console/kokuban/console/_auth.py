"""auth: accounts and users for a NATS server, one secret file a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.console import _errors
from kokuban.console._options import PATH, json_option
from kokuban.console._terminal import json_line, put, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban.blackboard.wire._auth import Layout

_approvers = click.option(
    "--approver", "approvers", multiple=True, metavar="NAME", help="A person who may decide at gates. May be repeated."
)
_roles = click.option(
    "--role", "roles", multiple=True, type=PATH, metavar="FILE",
    help="The contract (TOML) of a role beside the built-in ones. May be repeated.",
)  # fmt: skip


@click.group(cls=_errors.Group, epilog="Example: kokuban auth init board --approver ann")
def auth() -> None:
    """Credentials: who may do what on a server, and the files that prove who somebody is."""


@auth.command(epilog="Example: kokuban auth init board --tenant red --tenant blue --approver ann")
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="May be repeated  [default: default]")
@_approvers
@_roles
def init(folder: Path, tenants: tuple[str, ...], approvers: tuple[str, ...], roles: tuple[Path, ...]) -> None:
    """Write a server's accounts and a secret for each user to the new folder DIR.

    Each tenant has a board of its own that no other tenant can read. Nothing that exists is overwritten.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(
            f"dir: {folder} is there already; name a new folder, or add to it with `kokuban auth add`"
        )
    layout = _ensure(folder, tenants or ("default",), approvers, roles)
    from kokuban.blackboard.wire._auth import SERVER, init_server
    from kokuban.blackboard.wire._credentials import ACCOUNTS

    init_server(folder)
    put(f"{folder / SERVER}: a server's configuration; it uses {ACCOUNTS}, which holds public keys only")
    _say(layout)
    tell(f"Start the server: cd {folder} && nats-server -c {SERVER}")
    some = next(iter(layout.tenants))
    tell(f"Run a crew there: kokuban up --nats nats://127.0.0.1:4222 --credentials {folder / some}")
    tell(f"Submit a task: kokuban submit … --credentials {folder / some / 'client.nk'}")
    tell("Give each process and each person their own file and no other; a copy is as good as the file.")


@auth.command(epilog="Example: kokuban auth add .kokuban/credentials --approver ann")
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--tenant", "tenants", multiple=True, metavar="NAME", help="A new tenant. May be repeated.")
@_approvers
@_roles
def add(folder: Path, tenants: tuple[str, ...], approvers: tuple[str, ...], roles: tuple[Path, ...]) -> None:
    """Add tenants, approvers and roles to DIR, which `auth init` or an embedded server wrote. Secrets there stay."""
    from kokuban.blackboard.wire._credentials import ACCOUNTS

    if not (folder / ACCOUNTS).is_file():
        raise click.UsageError(f"dir: {folder} holds no {ACCOUNTS}; `kokuban auth init` makes such a folder")
    _say(_ensure(folder, tenants, approvers, roles))
    if not _reload(folder):
        tell("The server knows them once it is reloaded: nats-server --signal reload")


def _ensure(folder: Path, tenants: Sequence[str], approvers: Sequence[str], roles: Sequence[Path]) -> Layout:
    from kokuban.blackboard.wire._auth import ensure_credentials
    from kokuban.blackboard.wire._credentials import CredentialError
    from kokuban.schemas.contracts import InvalidContract, builtin_crew

    try:
        return ensure_credentials(folder, builtin_crew(), tenants=tenants, approvers=approvers, roles=roles)
    except ImportError as error:
        raise _errors.Infrastructure(f"{error.name} is not installed: pip install nkeys") from error
    except (CredentialError, InvalidContract) as error:
        raise click.UsageError(str(error)) from error


def _say(layout: Layout) -> None:
    for credential in layout.made:
        put(f"{layout.folder / credential.tenant / credential.path.name}: {_about(credential.user)}")
    if not layout.made:
        tell("Nobody was missing.")


def _about(user: str) -> str:
    kind, _, name = user.partition("-")
    return {
        "client": "submits tasks and reads the board",
        "admin": "sets limits, registers kinds and roles, and does what a client does",
        "supervisor": "decides about tasks; owns the board",
        "watcher": "reads the board, writes nothing",
        "role": f"workers of the role {name}",
        "approver": f"{name}: decides at gates, speaks to tasks",
    }[kind]


def _reload(folder: Path) -> bool:
    """Tell an embedded server that holds this folder's store."""
    import os
    import signal

    from kokuban.blackboard.wire._credentials import CREDENTIALS
    from kokuban.blackboard.wire.embedded import running_server

    server = running_server(folder.absolute().parent) if folder.absolute().name == CREDENTIALS else None
    if server is None or server.pid is None:
        return False
    os.kill(server.pid, signal.SIGHUP)
    return True


@auth.command(epilog="Example: kokuban auth show role-coder --json")
@click.argument("user", required=False)
@json_option
def show(user: str | None, as_json: bool) -> None:
    """Show who may publish and hear what, or only USER (`client`, `role-coder`, `approver-ann` …)."""
    import json

    from kokuban.blackboard.wire._permissions import PLAIN, User, permissions, user_of
    from kokuban.schemas.contracts import builtin_crew

    crew = builtin_crew()
    users = [*PLAIN, *(User("role", role) for role in crew), User("approver", "ann")]
    if user is not None:
        try:
            users = [user_of(user)]
        except ValueError as error:
            raise click.UsageError(
                f"user: {error}; users are client, admin, supervisor, watcher, role-…, approver-…"
            ) from error
    for one in users:
        if one.kind == "role" and one.name not in crew:
            raise click.UsageError(f"user: there is no role {one.name!r}; the roles are {', '.join(crew)}")
        may = permissions(one, crew)
        lists: dict[str, Any] = {"publish": may.publish, "refuse": may.refuse, "subscribe": may.subscribe}
        if as_json:
            put(json_line(json.dumps({"user": one.id, **lists}).encode()))
            continue
        put(one.id)
        for what, entries in lists.items():
            for entry in entries:
                put(f"  {what:<9}  {entry}")
