"""`compose.yaml` is valid against the compose specification, and what it starts is what the command line offers."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from kokuban.blackboard.wire._server_binary import PINNED_VERSION

ROOT = Path(__file__).parent.parent
# The package check-jsonschema carries the official schema of the compose specification (Apache-2.0).
SCHEMA = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
ROLES = {path.name.removesuffix(".toml") for path in (resources.files("kokuban.schemas") / "roles").iterdir()}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def specification() -> jsonschema.protocols.Validator:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    checker = jsonschema.validators.validator_for(schema)
    checker.check_schema(schema)
    return checker(schema)


def test_it_is_valid(compose: dict[str, Any], specification: jsonschema.protocols.Validator) -> None:
    assert [error.message for error in specification.iter_errors(compose)] == []


def test_the_specification_would_object(compose: dict[str, Any], specification: jsonschema.protocols.Validator) -> None:
    for key, value in {"imagee": "x", "restart": 7, "depends_on": {"nats": {"condition": "perhaps"}}}.items():
        wrong = copy.deepcopy(compose)
        wrong["services"]["coder"][key] = value
        assert not specification.is_valid(wrong), key


def test_one_service_per_role_beside_the_board_and_the_supervisor(compose: dict[str, Any]) -> None:
    commands = {name: service["command"] for name, service in compose["services"].items() if name != "nats"}
    assert commands == {"supervisor": ["supervisor"]} | {role: ["worker", role] for role in ROLES}


def test_every_command_line_is_one_of_kokuban(compose: dict[str, Any]) -> None:
    from kokuban.console.main import main

    assert isinstance(main, click.Group)
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    default = json.loads(next(line for line in dockerfile.splitlines() if line.startswith("CMD ")).removeprefix("CMD "))
    assert 'ENTRYPOINT ["kokuban"]' in dockerfile
    assert default == ["--help"]
    with click.Context(main, info_name="kokuban") as context:
        for service in compose["services"].values():
            if service["image"] == "kokuban":
                name, *arguments = service["command"]
                command = main.get_command(context, name)
                assert command is not None, name
                command.make_context(name, arguments, parent=context)


def test_services_wait_for_the_board_and_come_back(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped"
        if name != "nats":
            assert service["depends_on"] == {"nats": {"condition": "service_healthy"}}
            assert service["environment"]["KOKUBAN_NATS_URL"] == "nats://nats:4222"
    assert compose["services"]["nats"]["healthcheck"]["test"]


def test_keys_are_handed_on_and_never_written_down(compose: dict[str, Any]) -> None:
    for role in ROLES:
        environment = compose["services"][role]["environment"]
        assert {"KOKUBAN_MODEL", "OPENAI_API_KEY"} <= environment.keys()
        assert all(value is None for name, value in environment.items() if name != "KOKUBAN_NATS_URL")
    assert compose["services"]["supervisor"]["environment"].keys() == {"KOKUBAN_NATS_URL"}


def test_the_board_is_the_server_that_kokuban_is_tested_with(compose: dict[str, Any]) -> None:
    nats = compose["services"]["nats"]
    assert nats["image"] == f"nats:{PINNED_VERSION}-alpine"
    assert all(port.startswith("127.0.0.1:") for port in nats["ports"])


def test_the_board_keeps_its_records(
    compose: dict[str, Any],
) -> None:
    nats = compose["services"]["nats"]
    store = nats["command"][nats["command"].index("-sd") + 1]
    assert f"board:{store}" in nats["volumes"]
    assert "board" in compose["volumes"]
    assert "sync_interval: always" in compose["configs"]["nats"]["content"]
