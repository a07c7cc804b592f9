"""Which model a process asks: for all roles, for one, in which order, with whose key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kokuban.agents.models import CallContext, Message, ModelConfigError, Request
from kokuban.agents.models._open import key_variable
from kokuban.console._crew import children
from kokuban.console._models import ModelChoice, choose, choose_for
from kokuban.console.main import main
from models.chat_server import DONE, answer, delta, serving, stream

pytestmark = pytest.mark.anyio
SMALL, BIG = "openai-compatible:small", "openai:big"
HERE, THERE = "http://127.0.0.1:1/v1", "https://llm.example.com/v1"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KOKUBAN_MODEL", "KOKUBAN_BASE_URL", "KOKUBAN_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")


def chosen(*models: str, **options: Any) -> ModelChoice:
    choice = choose(models, **options)
    assert choice is not None
    return choice


def test_models_given_in_a_row_are_asked_in_a_row() -> None:
    choice = chosen(BIG, SMALL, f"openai-compatible:other@{THERE}", base_url=HERE, endpoint="team")
    assert [(one.spec, one.base_url) for one in choice.each] == [
        (BIG, None), (SMALL, HERE), (f"openai-compatible:other@{THERE}", None),
    ]  # fmt: skip
    assert [one.endpoint_name for one in choice.each] == [
        "team", "openai-compatible-127-0-0-1-1", "openai-compatible-llm-example-com-443",
    ]  # fmt: skip
    assert [model.name for model in choice.meter().models] == [BIG, SMALL, "openai-compatible:other"]


def test_a_role_has_its_own_models_and_a_child_is_told_only_of_those(tmp_path: Path) -> None:
    choice = chosen(SMALL, f"coder={BIG}", f"coder={SMALL}", base_url=HERE)
    assert choice.for_role("planner") == chosen(SMALL, base_url=HERE)
    coder = choice.for_role("coder")
    assert ([one.spec for one in coder.each], coder.native_tools) == ([BIG, SMALL], True)
    told = {
        child.name: child.env.get("KOKUBAN_MODEL")
        for child in children(["planner", "coder"], url="nats://h", folder=tmp_path, model=choice, drain_seconds=1)
    }
    assert told == {"supervisor": None, "planner": SMALL, "coder": f"{BIG}\n{SMALL}"}


def test_what_a_child_is_told_is_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chosen(SMALL, BIG, base_url=HERE, text_tools=True)
    for name, value in choice.environment().items():
        monkeypatch.setenv(name, value)
    assert choose(text_tools=True) == choice
    assert "--text-tools" in choice.arguments()


@pytest.mark.parametrize(
    ("options", "native"),
    [({}, False), ({"text_tools": True}, True), ({"text_tools": True, "native_tools": False}, False)],
)
def test_who_writes_calls_as_text_acts_by_calls(options: dict[str, Any], native: bool) -> None:
    assert chosen(SMALL, **options).native_tools is native
    assert chosen(BIG, f"coder={SMALL}", **options).for_role("coder").native_tools is native


def test_a_contract_names_models_and_a_person_may_name_others() -> None:
    options = {"base_url": HERE}
    named: Any = choose_for("tester", ("openai:a", SMALL), **options)
    assert [(one.spec, one.base_url) for one in named.each] == [("openai:a", None), (SMALL, HERE)]
    general: Any = choose_for("tester", ("openai:a",), model=("openai:b",))
    assert general.spec == "openai:a"
    given: Any = choose_for("tester", ("openai:a",), model=("openai:b", "tester=openai:c"))
    assert given.spec == "openai:c"
    assert choose_for("tester", ()) is None


@pytest.mark.parametrize(
    "spec", ["openai-compatible:x@http://evil.example/v1", "scripted:/etc/passwd", "recorded:/tmp", "x"]
)
def test_a_contract_says_neither_where_a_key_goes_nor_which_file_is_read(spec: str) -> None:
    for model in ((), ("openai:b",)):
        with pytest.raises(click.UsageError, match="contract"):
            choose_for("tester", (spec,), model=model)


def test_roles_alone_and_roles_that_are_not_there_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="without ROLE="):
        choose([f"coder={BIG}"])
    done = CliRunner().invoke(main, ["run", "x", "--model", BIG, "--model", f"codr={BIG}"])
    assert done.exit_code == 2
    assert "codr" in done.output
    path = tmp_path / "a=b.json"
    assert chosen(f"scripted:{path}").spec == f"scripted:{path}"  # no role: a kind stands before the sign


async def test_each_server_is_given_its_own_key_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = answer(401, {"error": {"message": "no"}})
    async with serving(refused) as one, serving(stream(delta("ok", finish="stop"), DONE)) as two:
        other = two.url.replace("127.0.0.1", "localhost")
        monkeypatch.setenv("KOKUBAN_API_KEY", "sk-one")
        monkeypatch.setenv(key_variable(other), "sk-two")
        meter = chosen(SMALL, f"{SMALL}@{other}", base_url=one.url).meter()
        request = Request(messages=(Message("user", "hi"),), max_output_tokens=9)
        await meter.call(request, CallContext(role="r", step="s"), deadline=1e12)
        await meter.aclose()
        assert ["sk-one" in one.heads[0], "sk-two" in one.heads[0]] == [True, False]
        assert ["sk-one" in two.heads[0], "sk-two" in two.heads[0]] == [False, True]
    assert key_variable(other) == "KOKUBAN_API_KEY_LOCALHOST"


def test_the_key_of_a_server_reaches_only_who_asks_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_API_KEY_LLM_EXAMPLE_COM", "sk-there")
    crew = children(["coder", "verifier"], url="nats://h", folder=tmp_path, model=chosen(BIG), drain_seconds=1)
    assert [child.name for child in crew if "sk-there" in child.env.values()] == ["coder"]


async def test_an_address_where_none_belongs_is_said_before_anything_starts() -> None:
    for wrong in (chosen(BIG, base_url=HERE), chosen(f"openai:x@{HERE}"), chosen(BIG, "coder=anthropic:x")):
        with pytest.raises(ModelConfigError):
            await wrong.validate()


def test_no_two_servers_share_the_variable_of_a_key() -> None:
    urls = ["http://llm.example.com/v1", "http://llm-example.com/v1", "http://llm.example-com/v1", "http://[::1]/v1",
            "http://1/v1", "http://10.0.0.1/v1", "http://10-0-0-1/v1"]  # fmt: skip
    assert len({key_variable(url) for url in urls}) == len(urls)
    assert key_variable(urls[0]) == "KOKUBAN_API_KEY_LLM_EXAMPLE_COM"
    env = {"KOKUBAN_API_KEY_LOCALHOST": "sk-a", "KOKUBAN_API_KEY_LOCALHOST_8001": "sk-b"}
    assert key_variable("http://localhost:8001/v1", env) == "KOKUBAN_API_KEY_LOCALHOST_8001"
    assert key_variable("http://localhost:8002/v1", env) == "KOKUBAN_API_KEY_LOCALHOST"
