"""What an embedded server needs of credentials: its store's accounts, and asking it whether it is ready."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban.blackboard.wire._credentials import CREDENTIALS, DEFAULT_TENANT, Credential

if TYPE_CHECKING:
    from kokuban.schemas.contracts import Crew


def protect(store: Path, crew: Crew | None) -> Credential:
    """Make or read this store's secrets and write the accounts; the credential of the supervisor."""
    from kokuban.blackboard.wire._auth import board_account, ensure_credentials
    from kokuban.blackboard.wire._names import PERSON
    from kokuban.schemas.contracts import builtin_crew

    layout = ensure_credentials(
        store / CREDENTIALS, crew or builtin_crew(), tenants=[DEFAULT_TENANT], approvers=[PERSON]
    )
    # A store from the time before it was protected: its board belongs to the account that has no name.
    before, now = store / "jetstream" / "$G", store / "jetstream" / board_account(DEFAULT_TENANT)
    if before.is_dir() and not now.exists():
        before.rename(now)
    return layout.tenants[DEFAULT_TENANT]["supervisor"]


async def jetstream_answers(host: str, port: int, keeper: Credential | None) -> bool:
    """Whether JetStream answers there; False while it does not yet. Raises `OSError`, `ValueError`, `EOFError`."""
    # A dozen lines of the protocol instead of a client: no reconnects or callbacks, and no 110 ms import.
    reader, writer = await asyncio.open_connection(host, port)
    try:
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        inbox = f"{keeper.inbox if keeper else '_INBOX'}.ready"
        hello: dict[str, object] = {"verbose": False, "headers": True, "no_responders": True}
        if keeper is not None:
            hello |= {"nkey": keeper.public_key, "sig": keeper.sign(info["nonce"])}
        writer.write(f"CONNECT {json.dumps(hello)}\r\nSUB {inbox} 1\r\nPUB $JS.API.INFO {inbox} 0\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"MSG "):
                return "error" not in json.loads(await reader.readexactly(int(line.split()[-1])))
            elif line.startswith((b"HMSG ", b"-ERR")):
                return False
        return False
    finally:
        writer.close()
