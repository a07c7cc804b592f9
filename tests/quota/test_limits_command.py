"""`kokuban limits`, and under which name a model's endpoint is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from kokuban.blackboard.wire import (
    Bus,
    board_limits,
    change_board_limits,
    endpoint_limits,
    ensure_board,
    limited_endpoints,
)
from kokuban.console._models import ModelChoice, choose
from kokuban.console.main import main
from kokuban.schemas import BoardLimits, Budget, TenantLimits
from kokuban.schemas.quota import EndpointLimits
from support.nats_server import NatsServer

pytestmark = pytest.mark.anyio
Limits = Callable[..., Result]


@pytest.fixture
def limits(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Limits:
    """`limits("set", "role.coder=8")`, with the test's server. It runs in this process, so it sets up no logging."""
    monkeypatch.setattr("kokuban.console._logging.configure_logging", lambda *_: None)

    def run(*args: str) -> Result:
        return CliRunner().invoke(main, ["limits", *args, "--nats", nats_server.url])

    return run


def test_what_is_set_is_shown_as_it_was_given(limits: Limits) -> None:
    given = [
        "role.coder=8", "tenant.acme=3", "tenant.acme.budget=tokens=50,usd=2.5", "task=4", "weight.age=2",
        "endpoint.openai.concurrency=4", "endpoint.openai.requests=60", "endpoint.openai.tokens=1000",
    ]  # fmt: skip
    result = limits("set", *given)
    assert (result.exit_code, result.output.splitlines()) == (0, given)
    shown = limits("show").output.splitlines()
    assert shown[:-1] == given
    assert "0 under way" in shown[-1]
    value = json.loads(limits("show", "--json").output)
    assert value["board"]["roles"] == {"coder": 8}
    assert value["endpoints"]["openai"]["limits"]["concurrency"] == 4


async def test_each_command_changes_only_what_it_names(limits: Limits, nats_server: NatsServer) -> None:
    first = ("role.coder=8", "tenant.acme=3", "tenant.acme.budget=usd=1", "weight.age=2", "endpoint.e.tokens=9")
    for command in (first, ("tenant.acme=none", "weight.age=none", "task=0", "endpoint.e.requests=0")):
        result = await asyncio.to_thread(limits, "set", *command)
        assert result.exit_code == 0, result.output
    async with await Bus.connect(nats_server.url) as bus:
        wanted = BoardLimits({"coder": 8}, {"acme": TenantLimits(None, Budget(micros=1_000_000))}, 0, {})
        assert await board_limits(bus) == wanted
        assert await endpoint_limits(bus, "e") == EndpointLimits(None, 0, 9)
        assert await limited_endpoints(bus) == ["e"]
        result = await asyncio.to_thread(
            limits, "set", "tenant.acme.budget=none", "endpoint.e.requests=none", "endpoint.e.tokens=none"
        )
        assert "endpoint.e: no limits" in result.output
        assert (await board_limits(bus)).tenants == {}
        assert await endpoint_limits(bus, "e") == EndpointLimits()


async def test_several_people_at_once_lose_nothing(nats_server: NatsServer) -> None:
    def with_role(name: str) -> Callable[[BoardLimits], BoardLimits]:
        return lambda old: replace(old, roles={**old.roles, name: 1})

    names = [f"r{n}" for n in range(5)]
    async with await Bus.connect(nats_server.url) as bus:
        await ensure_board(bus)
        await asyncio.gather(*(change_board_limits(bus, with_role(name)) for name in names))
        assert (await board_limits(bus)).roles == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("x", "'x' is not NAME=VALUE"),
        ("role.coder", "is not NAME=VALUE"),
        ("role.coder=-1", "not a whole number from 0 to 10000, or none"),
        ("role.coder=１", "not a whole number"),
        ("endpoint.x=1", "is not NAME=VALUE"),
        ("endpoint.x.speed=1", "is no limit; NAME is one of endpoint.NAME.concurrency"),
        ("endpoint.x.requests=1.5", "not a whole number"),
        ("tenant.a.speed=1", "is no limit"),
        ("tenant.a.budget=foo=1", "NAME of tokens, usd"),
        ("weight.foo=1", "they are plan_order"),
        ("weight.age=nan", "not a number from"),
        ("task.x=1", "is not NAME=VALUE"),
        ("task=", "not a whole number"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(setting: str, said: str, limits: Limits) -> None:
    result = limits("set", "role.coder=3", setting)
    assert result.exit_code == 2
    assert said in result.output
    assert limits("show").output.startswith("No limits are set")


def test_a_name_that_is_none_and_the_same_twice(limits: Limits) -> None:
    from kokuban.schemas import InvalidName

    assert isinstance(limits("set", "role.Coder=1").exception, InvalidName)
    assert "task is set twice" in limits("set", "task=1", "task=2").output


@pytest.mark.parametrize(
    ("spec", "base_url", "name"),
    [
        ("openai:gpt", None, "openai"),
        ("scripted:/a/b.json", None, "scripted"),
        ("openai-compatible:m", "http://127.0.0.1:8000/v1", "openai-compatible-127-0-0-1-8000"),
        ("openai-compatible:n", "http://127.0.0.1:8000", "openai-compatible-127-0-0-1-8000"),
        ("openai-compatible:m", "https://Models.Example/v1", "openai-compatible-models-example-443"),
        ("openai-compatible:m", "https://models.example:443/v1", "openai-compatible-models-example-443"),
        ("openai-compatible:m", "http://[::1]/v1", "openai-compatible-1-80"),
    ],
)
def test_one_server_has_one_name(spec: str, base_url: str | None, name: str) -> None:
    assert ModelChoice(spec, base_url).endpoint_name == name


def test_long_names_stay_names_and_apart() -> None:
    names = {ModelChoice("openai-compatible:m", f"http://{'a' * 60}{n}.example/v1").endpoint_name for n in range(3)}
    assert len(names) == 3
    assert {len(name) for name in names} == {64}


def test_a_name_of_ones_own_reaches_the_children() -> None:
    found: Any = choose("openai:gpt", endpoint="team")
    assert found.endpoint_name == "team"
    assert found.arguments()[:2] == ["--endpoint", "team"]
