"""`kokuban doctor`: what is there, what is broken, and no secret in what it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kokuban.agents.sandbox import probed
from support.nats_server import NatsServer

Here = Callable[..., Any]


@pytest.fixture
def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: None if name == "bwrap" else found(name, *a, **k))
    probed.cache_clear()
    yield
    probed.cache_clear()


def by_name(said: Any) -> dict[str, tuple[str, str]]:
    return {line["what"]: (line["state"], line["says"]) for line in said.objects}


def test_a_machine_where_all_is_well(here: Here, nats_server: NatsServer) -> None:
    said = here("doctor", "--json", "--nats", nats_server.url)
    found = by_name(said)
    assert said.code == 0
    state, says = found["board"]
    assert (state, "no board yet" in says, "asks for no credentials" in says) == ("ok", True, True)
    assert found["nats-server"][1].startswith("2.")
    assert found["full-text search"][0] == "ok"
    assert found["model"][0] == "note"
    assert str(probed().kind) in found["isolation"][1] or found["isolation"][0] == "note"
    assert len(here("doctor", "--nats", nats_server.url).out.splitlines()) == len(found)


def test_what_is_asked_for_and_does_not_answer_is_broken(here: Here) -> None:
    said = here("doctor", "--json", "--nats", "nats://ann:canary@127.0.0.1:1")
    assert said.code == 1
    assert by_name(said)["board"][0] == "broken"
    assert "canary" not in said.out + said.err


def test_a_model_that_does_not_answer_is_broken(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_MODEL", "openai-compatible:x")
    monkeypatch.setenv("KOKUBAN_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("KOKUBAN_API_KEY", "canary")
    said = here("doctor", "--json")
    assert said.code == 1
    assert by_name(said)["model"][0] == "broken"
    assert "canary" not in said.out + said.err


@pytest.mark.usefixtures("without_bubblewrap")
def test_why_there_is_no_isolation_is_said(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    state, says = by_name(here("doctor", "--json"))["isolation"]
    assert (state, "bubblewrap (bwrap) is not installed" in says) == ("note", True)
    monkeypatch.setenv("KOKUBAN_ISOLATION", "required")
    said = here("doctor", "--json")
    assert said.code == 1
    assert by_name(said)["isolation"][0] == "broken"


@pytest.mark.usefixtures("without_bubblewrap")
@pytest.mark.parametrize("command", ["run", "worker", "up"])
def test_what_is_required_and_not_there_is_said_before_anything_begins(here: Here, command: str) -> None:
    arguments = {"run": ["goal"], "worker": ["verifier"], "up": []}[command]
    said = here(command, *arguments, "--isolation", "required")
    assert said.code == 2
    assert "isolation is required and not there: bubblewrap (bwrap) is not installed" in said.err
