"""Accounts and users for a NATS server: what `kokuban auth` and the embedded server write.

Each tenant has two accounts. The board's holds its streams and one user, the supervisor. The team's holds everybody
else, has no streams, and reaches the board through services that it imports: so what a user is answered goes to that
user and can never be led back to the board, whatever reply subject a request names (within one account the server
stores an answer that is sent to a stream's subject, and asks nobody whether the asker may write there).
The control account holds what tenants share.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kokuban.blackboard.wire._credentials import (
    ACCOUNTS,
    SUFFIX,
    Credential,
    CredentialError,
    load_credential,
    make_credential,
)
from kokuban.blackboard.wire._permissions import (
    MEMBER_CALLS,
    MEMBER_HINTS,
    MEMBER_PUBLISHES,
    PLAIN,
    READ_CALLS,
    User,
    permissions,
    user_of,
)
from kokuban.schemas import subjects
from kokuban.schemas.contracts import Contract, Crew, parse_contract

SERVER = "server.conf"
_SERVER_TEXT = """# Start it in this folder: nats-server -c server.conf
listen: "127.0.0.1:4222"
server_name: kokuban
jetstream { store_dir: "store", sync_interval: always }
include ./accounts.conf
"""
_CONTROL = "control"
_CONTROL_CALLS = (*READ_CALLS, "STREAM.CREATE")
_CONTROL_PUBLISHES = (subjects.endpoint("*"), subjects.endpoint_limits("*"))
_CONTROL_HINTS = f"{subjects.HINTS}.{subjects.CONTROL_SUBJECTS}"


class Layout(NamedTuple):
    """What a folder holds: the tenants' credentials, by user. `made` are those that were not there before."""

    folder: Path
    tenants: dict[str, dict[str, Credential]]
    made: list[Credential]


def ensure_credentials(
    folder: Path, crew: Crew, *, tenants: Sequence[str] = (), approvers: Sequence[str] = (), roles: Sequence[Path] = ()
) -> Layout:
    """Make what is missing in `folder`: a folder of secrets for each tenant (those named, and those that are there),
    and the server's `accounts.conf`, which holds public keys only. `roles` are files of contracts beside those of
    `crew`; a copy is kept with the secrets. Secrets that exist stay.

    Raises `CredentialError`, `InvalidName` and `InvalidContract`, mostly before anything is written; what has been
    written then is complete and may stay.
    """
    there = sorted({path.parent.name for path in folder.glob(f"*/*{SUFFIX}")})  # a server's store may lie beside them
    names = list(dict.fromkeys([*there, *(subjects.token(name, "tenant") for name in tenants)]))
    people = [User("approver", subjects.token(name, "approver")) for name in dict.fromkeys(approvers)]
    more = [read_contract(path) for path in roles]
    teams = {name: _team_of(folder / name, crew, more) for name in names}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[Credential] = []
    for name, team in teams.items():
        for user in (*PLAIN, *(User("role", role) for role in team.crew), *people):
            if user.id not in team.credentials:
                team.credentials[user.id] = make_credential(folder / name, user.id, name)
                made.append(team.credentials[user.id])
        for contract, path in zip(more, roles, strict=True):
            write_private(folder / name / f"role-{contract.role}.toml", path.read_text("utf-8"))
    write_private(folder / ACCOUNTS, accounts_config(teams))
    return Layout(folder, {name: team.credentials for name, team in teams.items()}, made)


def init_server(folder: Path) -> None:
    """Write a server's configuration that uses the accounts in `folder`. Yours to change: it is written once."""
    write_private(folder / SERVER, _SERVER_TEXT)


def read_contract(path: Path) -> Contract:
    """A role's contract, whatever kinds it names: what they mean is not the server's business. Raises
    `InvalidContract`, `CredentialError`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialError(f"role: {path} cannot be read: {error}") from error
    try:
        named = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        named = {}  # the parser says it better
    lists = [named.get(field) for field in ("consumes", "produces", "triggers")]
    kinds = [kind for found in lists if isinstance(found, list) for kind in found if isinstance(kind, str)]
    return parse_contract(text, str(path), kinds)


class _Team(NamedTuple):
    credentials: dict[str, Credential]
    crew: Crew


def _team_of(folder: Path, crew: Crew, more: Sequence[Contract]) -> _Team:
    """Who is in a tenant's folder already, and which roles it has."""
    kept = [read_contract(path) for path in sorted(folder.glob("role-*.toml"))]
    roles = dict(crew) | {contract.role: contract for contract in (*kept, *more)}
    known = {path.stem: load_credential(path) for path in sorted(folder.glob(f"*{SUFFIX}"))}
    for stem, credential in known.items():
        try:
            user = user_of(credential.user)
            if (stem, folder.name) != (user.id, credential.tenant):
                raise ValueError(f"it says user {credential.user!r} of tenant {credential.tenant!r}")
            if user.kind == "role" and user.name not in roles:
                raise ValueError(f"there is no contract of a role {user.name!r}")
        except ValueError as error:
            raise CredentialError(f"credentials: {credential.path} does not belong there: {error}") from error
    return _Team(known, roles)


def accounts_config(teams: Mapping[str, _Team]) -> str:
    """The `accounts` block of a server's configuration."""
    blocks = [_control_block()]
    for tenant, team in sorted(teams.items()):
        users: dict[bool, list[str]] = {False: [], True: []}
        for _, credential in sorted(team.credentials.items()):
            users[credential.is_member].append(_user(credential, team.crew))
        blocks += [_board_block(tenant, users[False]), _team_block(tenant, users[True])]
    return (
        "# Written by Kokuban: changes made here are lost. It holds public keys, no secrets.\n"
        "accounts {\n" + "".join(blocks) + "}\n"
    )


def _control_block() -> str:
    services = [*_CONTROL_PUBLISHES, *(f"{subjects.SERVER_API}.{c}.{subjects.CONTROL}" for c in _CONTROL_CALLS)]
    exports = [f"{{ service: {_quoted(one)} }}" for one in services] + [f"{{ stream: {_quoted(_CONTROL_HINTS)} }}"]
    return _account(_CONTROL, jetstream=True, exports=exports)


def _control_imports() -> list[str]:
    same = [_service(_CONTROL, one) for one in _CONTROL_PUBLISHES]
    calls = [
        _service(
            _CONTROL,
            f"{subjects.SERVER_API}.{call}.{subjects.CONTROL}",
            f"{subjects.CONTROL_API}.{call}.{subjects.CONTROL}",
        )
        for call in _CONTROL_CALLS
    ]
    return [*same, *calls, _stream(_CONTROL, _CONTROL_HINTS)]


def _board_block(tenant: str, users: list[str]) -> str:
    team = f"accounts: [{_quoted(team_account(tenant))}]"
    services = [*MEMBER_PUBLISHES, *(f"{subjects.SERVER_API}.{call}" for call in MEMBER_CALLS)]
    # A pull is answered many times.
    exports = [
        f"{{ service: {_quoted(one)}, {team}{', response_type: stream' if '.MSG.NEXT.' in one else ''} }}"
        for one in services
    ] + [f"{{ stream: {_quoted(one)}, {team} }}" for one in MEMBER_HINTS]
    return _account(board_account(tenant), jetstream=True, users=users, exports=exports, imports=_control_imports())


def _team_block(tenant: str, users: list[str]) -> str:
    board = board_account(tenant)
    imports = [_service(board, one) for one in MEMBER_PUBLISHES]
    imports += [
        _service(board, f"{subjects.SERVER_API}.{call}", f"{subjects.MEMBERS_API}.{call}") for call in MEMBER_CALLS
    ]
    imports += [_stream(board, one) for one in MEMBER_HINTS]
    return _account(team_account(tenant), users=users, imports=[*imports, *_control_imports()])


def _account(name: str, *, jetstream: bool = False, **lists: list[str]) -> str:
    body = "    jetstream: enabled\n" if jetstream else ""
    for key, entries in lists.items():
        if entries:
            body += f"    {key}: [\n" + "".join(f"      {entry}\n" for entry in entries) + "    ]\n"
    return f"  {_quoted(name)} {{\n{body}  }}\n"


def _user(credential: Credential, crew: Crew) -> str:
    may = permissions(user_of(credential.user), crew)
    refuse = f", deny: {_list(may.refuse)}" if may.refuse else ""
    return (
        f"{{ nkey: {credential.public_key}, permissions: {{ "
        f"publish: {{ allow: {_list(may.publish)}{refuse} }}, subscribe: {{ allow: {_list(may.subscribe)} }} }} }} "
        f"# {credential.user}"
    )


def _service(account: str, subject: str, local: str = "") -> str:
    renamed = f", to: {_quoted(local)}" if local else ""
    return f"{{ service: {{ account: {_quoted(account)}, subject: {_quoted(subject)} }}{renamed} }}"


def _stream(account: str, subject: str) -> str:
    return f"{{ stream: {{ account: {_quoted(account)}, subject: {_quoted(subject)} }} }}"


def board_account(tenant: str) -> str:
    return f"board-{tenant}"


def team_account(tenant: str) -> str:
    return f"team-{tenant}"


def _list(entries: Iterable[str]) -> str:
    return "[" + ", ".join(map(_quoted, entries)) + "]"


def _quoted(text: str) -> str:
    return json.dumps(text)


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner may read, whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
