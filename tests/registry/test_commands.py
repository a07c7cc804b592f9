"""kinds and roles on the command line, against a real board."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kokuban.blackboard import Client
from kokuban.blackboard.registered import NotRegistered, load, register_kind, register_role
from kokuban.blackboard.wire import Bus, Forbidden, ensure_board
from kokuban.blackboard.wire.embedded import EmbeddedServer
from kokuban.schemas import InvalidName
from support.nats_server import NatsServer

POEM: dict[str, Any] = {"type": "object", "required": ["lines"], "additionalProperties": False,
                        "properties": {"lines": {"type": "array", "items": {"type": "string"}}}}  # fmt: skip
POET = 'role = "poet"\nsummary = "Writes."\nwhen = "planned"\nproduces = ["poem"]\n'


@pytest.fixture
def kokuban(tmp_path: Path, nats_server: NatsServer) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end against a server of the test's own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KOKUBAN_")}

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kokuban.console.main", *map(str, args)], capture_output=True, text=True,
            cwd=tmp_path, env=clean | {"KOKUBAN_NATS_URL": nats_server.url}, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run


def test_a_kind_and_a_role_from_files(kokuban: Callable[..., Any], tmp_path: Path) -> None:
    schema, contract = tmp_path / "poem.json", tmp_path / "poet.toml"
    schema.write_text(json.dumps(POEM, indent=3))
    contract.write_text(POET)
    early = kokuban("roles", "add", contract)
    assert (early.returncode, "unknown kinds poem" in early.stderr) == (2, True)
    assert [kokuban("kinds", "add", schema).stdout for _ in range(2)] == [
        "poem version 1\n",
        "poem version 1 (it was there)\n",
    ]
    schema.write_text(json.dumps({**POEM, "required": ["lines", "title"]}))
    narrower = kokuban("kinds", "add", schema)
    assert narrower.returncode == 2
    assert "version 2 refuses what version 1 accepted: required: title was not required before" in narrower.stderr
    schema.write_text(json.dumps({**POEM, "required": []}))
    assert kokuban("kinds", "add", schema, "--name", "poem").stdout == "poem version 2\n"
    assert kokuban("roles", "add", contract).stdout == "poet\n"
    kinds = [json.loads(line) for line in kokuban("kinds", "list", "--json").stdout.splitlines()]
    assert kinds[-1] == {"kind": "poem", "built_in": False, "versions": [1, 2]}
    roles = [json.loads(line) for line in kokuban("roles", "list", "--json").stdout.splitlines()]
    assert [role["role"] for role in roles if not role["built_in"]] == ["poet"]
    assert json.loads(kokuban("kinds", "show", "poem", "--version", 1).stdout) == POEM
    assert json.loads(kokuban("kinds", "show", "poem").stdout)["required"] == []
    assert kokuban("roles", "show", "poet").stdout == POET
    assert kokuban("roles", "show", "coder").stdout.startswith('role = "coder"')


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("kinds", "add", "none.json"), "cannot be read"),
        (("kinds", "add", "Bad.json"), "kind: 'Bad' is not a name"),
        (("kinds", "add", "Bad.json", "--name", "patch"), "'patch' is built in"),
        (("kinds", "add", "wrong.json"), "type: "),
        (("kinds", "add", "text.json"), "not JSON"),
        (("kinds", "add", "deep.json"), "schema: not JSON"),
        (("roles", "add", "deep.toml"), "contract: not TOML"),
        (("kinds", "show", "song"), "there is no 'song'"),
        (("roles", "show", "bard"), "there is no 'bard'"),
        (("roles", "add", "text.json"), "not TOML"),
        (("worker", "bard", "--program", "nowhere:Class"), "there is no module 'nowhere'"),
        (("worker", "bard", "--program", "json"), "is not MODULE:CLASS"),
        (("worker", "bard", "--program", "json:Nobody"), "has no class 'Nobody'"),
        (("worker", "bard", "--program", "json:JSONDecoder"), "no method `async def perform"),
        (("worker", "bard", "--program", "mine:Mine"), "there is no 'bard' on this board"),
        (("conformance", "bard", "--exec", "true"), "there is no contract for 'bard'"),
        (("conformance", "coder"), "give a sample of it"),
    ],
)
def test_wrong_input_is_named(kokuban: Callable[..., Any], tmp_path: Path, args: tuple[str, ...], why: str) -> None:
    (tmp_path / "Bad.json").write_text("{}")
    (tmp_path / "wrong.json").write_text('{"type": "strng"}')
    (tmp_path / "text.json").write_text("{nope")
    (tmp_path / "deep.json").write_text("[" * 90_000)
    (tmp_path / "deep.toml").write_text(f"role = {'[' * 90_000}")
    (tmp_path / "mine.py").write_text("class Mine:\n    async def perform(self, work):\n        return []\n")
    done = kokuban(*args)
    assert why in done.stderr
    assert done.returncode == 2


async def test_only_an_admin_registers_where_credentials_are_asked_for(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "store", sync="default", protected=True) as server:
        async with await Bus.connect(server.url, credentials=server.credential("supervisor")) as bus:
            await ensure_board(bus)
        async with await Bus.connect(server.url, credentials=server.credential("admin")) as bus:
            assert await register_kind(bus, "poem", json.dumps(POEM).encode()) == (1, True)
            assert await register_role(bus, POET) == ("poet", True)
        for user in ("client", "role-coder"):
            async with await Bus.connect(server.url, credentials=server.credential(user)) as bus:
                assert (await load(bus)).roles == {"poet": POET}
                with pytest.raises(Forbidden, match=r"kb\.ctl\.kind\.song\.1"):
                    await register_kind(bus, "song", b"{}")


async def test_versions_that_are_registered_at_once_follow_each_other(nats_server: NatsServer) -> None:
    schemas = [json.dumps({**POEM, "required": [], "title": f"edition {n}"}).encode() for n in range(5)]
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        given = await asyncio.gather(*(register_kind(bus, "poem", schema) for schema in schemas))
        assert sorted(given) == [(n, True) for n in range(1, 6)]
        assert sorted((await load(bus)).kinds["poem"]) == [1, 2, 3, 4, 5]
        for name, schema, why in (("A", b"{}", InvalidName), ("a", b"\xff", NotRegistered)):
            with pytest.raises(why):
                await register_kind(bus, name, schema)


async def test_a_version_that_somebody_took_with_nonsense_is_passed_over(nats_server: NatsServer) -> None:
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await bus.publish("kb.ctl.kind.poem.1", b"nonsense")
        await bus.publish("kb.ctl.role.poet", b"nonsense")
        assert await register_kind(bus, "poem", json.dumps(POEM).encode()) == (2, True)
        assert await register_role(bus, POET) == ("poet", True)
        assert await register_role(bus, POET) == ("poet", False)
        assert (await load(bus)).roles == {"poet": POET}
    async with await Client.connect(nats_server.url) as board:
        assert [event.event async for event in board.watch(follow=False)] == ["ignored", "ignored", "kind", "role"]
