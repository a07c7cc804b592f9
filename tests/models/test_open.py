"""From `--model` to a model: keys go where they belong, and a mistake is told with the way out."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kokuban.agents.models as models
from kokuban.agents.models import ModelConfigError, describe_ways, open_model
from kokuban.agents.models._openai import ChatCompletionsModel

LOCAL = "http://127.0.0.1:8000/v1"


def opened(spec: str, **options: Any) -> ChatCompletionsModel:
    model = open_model(spec, **{"env": {}, **options})
    assert isinstance(model, ChatCompletionsModel)
    return model


@pytest.mark.parametrize(
    "spec", ["", ":", "openai", "openai:", "openai: ", "gpt-4", "http://x", "Openai:x", "scripted:"]
)
def test_a_bad_spec_names_the_forms(spec: str) -> None:
    with pytest.raises(ModelConfigError) as raised:
        open_model(spec, env={"OPENAI_API_KEY": "k"})
    for form in ("openai:NAME", "openai-compatible:NAME", "scripted:FILE", "recorded:DIR"):
        assert form in str(raised.value)


def test_the_openai_key_goes_to_openai_only() -> None:
    env = {"OPENAI_API_KEY": "sk-openai", "KOKUBAN_API_KEY": "sk-own"}
    assert vars(opened("openai:gpt", env=env))["_key"] == "sk-openai"
    assert vars(opened("openai-compatible:a/b:c", base_url="http://elsewhere/v1", env=env))["_key"] == "sk-own"
    only_openai = {"OPENAI_API_KEY": "sk-openai"}
    assert vars(opened("openai-compatible:m", base_url="http://elsewhere/v1", env=only_openai))["_key"] is None
    with pytest.raises(ModelConfigError, match="OPENAI_API_KEY"):
        open_model("openai:gpt", env={"KOKUBAN_API_KEY": "sk-own"})
    with pytest.raises(ModelConfigError, match="openai-compatible"):
        open_model("openai:gpt", base_url="http://elsewhere/v1", env=only_openai)


@pytest.mark.parametrize("key", ["sk-ä", "sk-secret\nX: y", "sk secret", "sk\x00"])
def test_a_key_that_cannot_be_sent_is_not_shown(key: str) -> None:
    with pytest.raises(ModelConfigError, match="KOKUBAN_API_KEY") as raised:
        open_model("openai-compatible:m", base_url=LOCAL, env={"KOKUBAN_API_KEY": key})
    assert "secret" not in str(raised.value)


def test_a_blank_key_is_none_and_a_line_end_is_taken_off() -> None:
    assert vars(opened("openai-compatible:m", base_url=LOCAL, env={"KOKUBAN_API_KEY": " "}))["_key"] is None
    assert vars(opened("openai-compatible:m", base_url=LOCAL, env={"KOKUBAN_API_KEY": "k\n"}))["_key"] == "k"


@pytest.mark.parametrize("url", [LOCAL, f"{LOCAL}/", f"{LOCAL}/chat/completions", f" {LOCAL} "])
def test_the_address_may_be_written_in_several_ways(url: str) -> None:
    assert vars(opened("openai-compatible:m", base_url=url))["_base_url"] == LOCAL


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "127.0.0.1:8000",
        "ftp://h/v1",
        "http://",
        "http://h:port/v1",
        "http://[1/v1",
        "http://h:99999/v1",
        "http://a b/v1",
    ],
)
def test_a_bad_address_is_a_usage_error_with_an_example(url: str | None) -> None:
    with pytest.raises(ModelConfigError, match=LOCAL):
        open_model("openai-compatible:m", base_url=url, env={})


@pytest.mark.parametrize(
    "url", ["http://me:secret@h/v1", "http://secret@h/v1", "http://h/v1?key=secret", "http://h/#secret"]
)
def test_a_secret_in_the_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ModelConfigError, match="KOKUBAN_API_KEY") as raised:
        open_model("openai-compatible:m", base_url=url, env={})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "direct"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]", True), ("localhost", True), ("10.0.0.1", False), ("h", False)],
)
def test_only_loopback_bypasses_proxies(host: str, direct: bool) -> None:
    assert vars(opened("openai-compatible:m", base_url=f"http://{host}:1/v1"))["_direct"] is direct


def test_record_wraps_a_model_and_not_a_recording(tmp_path: Path) -> None:
    model = open_model("openai-compatible:m", base_url=LOCAL, record=tmp_path / "new", env={})
    assert model.name == "openai-compatible:m"
    assert not (tmp_path / "new").exists()
    with pytest.raises(ModelConfigError):
        open_model(f"recorded:{tmp_path}", record=tmp_path, env={})
    (tmp_path / "file").touch()
    with pytest.raises(ModelConfigError, match="no folder"):
        open_model("openai-compatible:m", base_url=LOCAL, record=tmp_path / "file", env={})


def test_the_ways_are_named_with_examples() -> None:
    text = describe_ways()
    for word in ("openai:NAME", "--base-url", "recorded:DIR", "scripted:FILE", "OPENAI_API_KEY", "KOKUBAN_API_KEY"):
        assert word in text


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys, kokuban.agents.models; print([m for m in ('httpx', 'jsonschema', 'nats') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_face_is_sorted_and_whole() -> None:
    assert models.__all__ == sorted(models.__all__)
    assert all(hasattr(models, name) for name in models.__all__)
