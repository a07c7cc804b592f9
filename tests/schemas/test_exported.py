"""The JSON Schemas for other languages are current and valid, and the decoders hold to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import extend

from core.samples import SAMPLES
from kokuban.schemas import KINDS, Record, Wire, encode
from kokuban.schemas.export import BODIES, FOLDER, all_schemas, main

SHAPES: dict[str, type[Wire]] = {"record": Record, **KINDS, **BODIES}
SCHEMAS: dict[str, dict[str, Any]] = {name.removesuffix(".json"): json.loads(s) for name, s in all_schemas().items()}


def ecma_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """JSON Schema's regular expressions are ECMA 262's, in which `$` does not match before a final newline."""
    if isinstance(instance, str) and not re.search(pattern.replace("$", r"\Z"), instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


Python = extend(jsonschema.Draft202012Validator, {"pattern": ecma_pattern})  # type: ignore[no-untyped-call]


def test_the_files_are_current() -> None:
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*")} == all_schemas(), "if meant: make schemas"


def test_exporting_writes_what_is_wanted_and_removes_the_rest(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "gone.json").write_text("{}")
    monkeypatch.setattr("kokuban.schemas.export.FOLDER", tmp_path / "json")
    main()
    main()
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "json").iterdir()} == all_schemas()
    assert capsys.readouterr().out.startswith(f"{len(SHAPES)} schemas in ")


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_schema_is_valid_2020_12_and_closed(name: str) -> None:
    schema = SCHEMAS[name]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:kokuban:v1:{name}"
    jsonschema.Draft202012Validator.check_schema(schema)
    for part in schema["$defs"].values():
        assert part["additionalProperties"] is False
        assert part["description"]
    text = json.dumps(schema)
    assert r"\\Z" not in text, "ECMA 262 knows no \\Z"
    assert '"format": "' not in text, "formats do not assert"


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_samples_leave_no_field_out(name: str) -> None:
    """So that the mutations below reach every field."""
    text = encode(SAMPLES[name]).decode()
    fields = {field for part in SCHEMAS[name]["$defs"].values() for field in part["properties"]}
    assert {field for field in fields if f'"{field}":' not in text} == set()


class Three:
    """The three readers of one shape."""

    def __init__(self, name: str) -> None:
        self.python = Python(SCHEMAS[name])
        self.rust = jsonschema_rs.Draft202012Validator(SCHEMAS[name])
        self.decoder = msgspec.json.Decoder(SHAPES[name])

    def opinions(self, value: Any) -> tuple[bool, bool, bool]:
        try:
            self.decoder.decode(json.dumps(value))
            decoded = True
        except msgspec.ValidationError:
            decoded = False
        return self.python.is_valid(value), self.rust.is_valid(value), decoded


THREE = {name: Three(name) for name in SHAPES}

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**53 - 1, 2**53, 255, 256, -255, -256, 10_000, 10_001, 86_401, 1.0, 1e3, 0.5, -0.0,
    "", "a", "A", "a\n", "a b", "é", "𝄞" * 64, "a" * 64, "a" * 65, "a" * 257, "a" * 2_001, "x" * 65_537,
    "sha256:" + "0" * 64, "sha256:" + "0" * 64 + "\n", "sha256:" + "F" * 64, "sha256:" + "0" * 63, "done", "model",
    [], {}, [1], ["a"], ["a", "b"], [["a"]], {"a": 1}, [None],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], draw: Any) -> Any:
    """The value with something else at this place: another value, a field or an item more, less or twice."""
    if path:
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[path[0]] = changed(value[path[0]], path[1:], draw)
        return copy
    way = draw(st.sampled_from(["value", "value", "less", "more", "twice"]))
    if way == "less" and isinstance(value, dict | list) and value:
        gone = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        return (
            {k: v for k, v in value.items() if k != gone}
            if isinstance(value, dict)
            else [v for k, v in enumerate(value) if k != gone]
        )
    if way == "more" and isinstance(value, dict):
        return {**value, draw(st.sampled_from(["extra", "Goal", "", "id"])): 1}
    if way == "twice" and isinstance(value, list):
        return value * draw(st.sampled_from([2, 33, 65]))
    return draw(st.sampled_from(VALUES))


def whole_float(value: Any) -> bool:
    """Whether an integer may be written as 1.0 or 1e3 somewhere: a schema takes it for one, a decoder does not."""
    if isinstance(value, dict):
        return any(map(whole_float, value.values()))
    if isinstance(value, list):
        return any(map(whole_float, value))
    return isinstance(value, float) and value.is_integer()


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_samples_are_valid(name: str) -> None:
    value = json.loads(encode(SAMPLES[name]))
    assert THREE[name].opinions(value) == (True, True, True)
    assert THREE[name].decoder.decode(encode(SAMPLES[name])) is not None


@pytest.mark.parametrize("name", list(SHAPES))
def test_schema_and_decoder_agree_on_any_mutation(name: str) -> None:
    sample = json.loads(encode(SAMPLES[name]))

    @settings(max_examples=120, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        value = sample
        for _ in range(data.draw(st.integers(1, 2))):
            value = changed(value, data.draw(st.sampled_from(list(places(value)))), data.draw)
        python, rust, decoded = THREE[name].opinions(value)
        assert python == rust
        if not whole_float(value):
            assert decoded == rust, value
        elif decoded:
            assert rust

    check()


@pytest.mark.parametrize("name", list(SHAPES))
def test_every_field_is_checked_the_same_way(name: str) -> None:
    """One place, one value at a time: all of them."""
    sample = json.loads(encode(SAMPLES[name]))
    for path in places(sample):
        for other in VALUES:
            value = sample
            if path:
                value = json.loads(encode(SAMPLES[name]))
                inner = value
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = other
            else:
                value = other
            python, rust, decoded = THREE[name].opinions(value)
            assert python == rust, (path, other)
            assert decoded == rust or (whole_float(other) and rust and not decoded), (path, other)
