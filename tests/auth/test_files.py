"""Secrets as files: private, never replaced unasked, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kokuban.blackboard.wire import Bus, ensure_board
from kokuban.blackboard.wire._auth import ensure_credentials
from kokuban.blackboard.wire._credentials import CredentialError, load_credential, make_credential
from kokuban.blackboard.wire.embedded import EmbeddedServer, EmbeddedServerError, ServerBinary
from kokuban.schemas.contracts import builtin_crew
from support.nats_server import ServerFactory

pytestmark = pytest.mark.anyio

SEED = re.compile(r"SU[A-Z2-7]{56}")
CONTRACT = """role = "writer"
summary = "Writes a glossary"
when = "planned"
consumes = ["finding"]
produces = ["glossary"]
"""


@pytest.fixture
def protected(tmp_path: Path, nats_binary: ServerBinary) -> Callable[[], EmbeddedServer]:
    """A protected server on the test's store, not started."""
    return lambda: EmbeddedServer(tmp_path / "store", sync="default", binary=nats_binary, protected=True)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = make_credential(tmp_path / "red", "approver-ann", "red")
    loaded = load_credential(tmp_path / "red" / "approver-ann.nk")
    assert loaded == made
    assert (loaded.user, loaded.tenant, loaded.person) == ("approver-ann", "red", "ann")
    assert loaded.inbox == "_INBOX_approver-ann"
    assert made.seed not in repr(made)
    with pytest.raises(CredentialError, match="there already"):
        make_credential(tmp_path / "red", "approver-ann", "red")
    assert load_credential(made.path) == made


def test_a_plain_seed_is_a_credential_too(tmp_path: Path) -> None:
    made = make_credential(tmp_path, "client", "red")
    (tmp_path / "plain.nk").write_text(made.seed)
    plain = load_credential(tmp_path / "plain.nk")
    assert (plain.user, plain.public_key, plain.inbox) == ("", made.public_key, "_INBOX")


@pytest.mark.parametrize("content", [b"", b"SUA", b"\xff" * 100, b"SU" + b"A" * 56, b"hunter2-is-no-seed"])
def test_what_is_no_credential_is_said_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.nk"
    path.write_bytes(content)
    with pytest.raises(CredentialError, match=r"some\.nk") as caught:
        load_credential(path)
    assert "hunter2" not in str(caught.value)
    assert "AAAA" not in str(caught.value)
    with pytest.raises(CredentialError, match="cannot be read"):
        load_credential(tmp_path / "missing.nk")


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ensure_credentials(tmp_path / "auth", builtin_crew(), tenants=["red", "blue"], approvers=["ann"])
    finally:
        os.umask(before)
    for path in (tmp_path / "auth").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert (tmp_path / "auth").stat().st_mode & 0o777 == 0o700
    assert not SEED.search((tmp_path / "auth" / "accounts.conf").read_text())


def test_adding_keeps_what_is_there(tmp_path: Path) -> None:
    crew = builtin_crew()
    first = ensure_credentials(tmp_path, crew, tenants=["red"], approvers=["ann"])
    assert {one.user for one in first.made} == {
        "client", "admin", "supervisor", "watcher", "approver-ann", *(f"role-{role}" for role in crew),
    }  # fmt: skip
    contract = tmp_path / "writer.toml"
    contract.write_text(CONTRACT)
    (tmp_path / "store").mkdir()  # a server's own folder is no tenant
    second = ensure_credentials(tmp_path, crew, tenants=["blue"], roles=[contract])
    assert {(one.tenant, one.user) for one in second.made if one.tenant == "red"} == {("red", "role-writer")}
    assert second.tenants["red"]["client"] == first.tenants["red"]["client"]
    assert set(second.tenants) == {"red", "blue"}
    config = (tmp_path / "accounts.conf").read_text()
    assert config.count("kb.task.*.artifact.writer.glossary.*.*") == 2
    assert ensure_credentials(tmp_path, crew).made == []
    assert (tmp_path / "accounts.conf").read_text() == config


def test_a_file_that_does_not_belong_there_is_named(tmp_path: Path) -> None:
    crew = builtin_crew()
    ensure_credentials(tmp_path, crew, tenants=["red", "blue"])
    config = (tmp_path / "accounts.conf").read_text()
    (tmp_path / "red" / "supervisor.nk").rename(tmp_path / "red" / "watcher.nk")
    with pytest.raises(CredentialError, match=r"red.watcher\.nk does not belong there"):
        ensure_credentials(tmp_path, crew)
    make_credential(tmp_path / "green", "role-juggler", "green")
    (tmp_path / "red" / "watcher.nk").unlink()
    with pytest.raises(CredentialError, match="juggler"):
        ensure_credentials(tmp_path, crew)
    assert (tmp_path / "accounts.conf").read_text() == config


async def test_a_store_keeps_its_secrets_and_tells_them_to_nobody(protected: Callable[[], EmbeddedServer]) -> None:
    async with protected() as server:
        secret = server.credential("supervisor")
        assert secret is not None
        seed = load_credential(secret).seed
        assert server.credentials == server.store / "credentials" / "default"
        async with await Bus.connect(server.url, credentials=secret) as bus:
            await ensure_board(bus)
            assert (await bus.publish("kb.task.t.final", b"{}")).seq == 1
        command = Path(f"/proc/{server.pid}/cmdline")
        if command.exists():
            assert not SEED.search(command.read_text() + Path(f"/proc/{server.pid}/environ").read_text())
    for path in server.store.rglob("*"):
        if path.is_file() and path.suffix != ".nk":
            assert not SEED.search(path.read_bytes().decode("latin-1")), path
    async with protected() as again:
        kept = again.credential("supervisor")
        assert kept is not None
        assert load_credential(kept).seed == seed
        async with await Bus.connect(again.url, credentials=kept) as bus:
            assert await bus.last("kb.task.t.final") is not None


async def test_a_store_with_a_foreign_secret_does_not_start(protected: Callable[[], EmbeddedServer]) -> None:
    server = protected()
    make_credential(server.store / "credentials" / "default", "client", "elsewhere")
    with pytest.raises(EmbeddedServerError, match="does not belong there"):
        await server.start()
    assert not server.running


async def test_a_board_from_before_is_kept(
    tmp_path: Path, server_factory: ServerFactory, protected: Callable[[], EmbeddedServer]
) -> None:
    open_server = server_factory(store=tmp_path / "store")
    async with await Bus.connect(open_server.url) as bus:
        await ensure_board(bus)
        await bus.publish("kb.task.old.spec", b"old")
    open_server.stop()
    async with protected() as server, await Bus.connect(server.url, credentials=server.credential("supervisor")) as bus:
        await ensure_board(bus)
        stored = await bus.last("kb.task.old.spec")
        assert stored is not None
        assert stored.data == b"old"
