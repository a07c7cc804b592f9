"""Prices: by model, versioned, declared by people; an unknown one is not zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokuban.agents.models import Meter, ModelConfigError, Prices, Usage, open_model


def test_the_built_in_table_has_a_version_and_sane_prices() -> None:
    prices = Prices.load()
    assert prices.version.startswith("prices-")
    assert len(prices.table) >= 12
    for price in prices.table.values():
        assert 0 < price.cached <= price.input < price.output


def test_a_price_per_million_tokens_is_millionths_per_token() -> None:
    prices = Prices("t").declare("m=2,8")
    assert prices.cost("m", Usage(1_000, 100)) == 2_000 + 800
    assert prices.worst("m", 1_000, 100) == 2_800


def test_cached_input_has_its_own_price_and_fractions_are_rounded_up() -> None:
    prices = Prices.load()
    assert prices.cost("openai:gpt-4.1-mini", Usage(1_000, 0, cached_tokens=400)) == 240 + 40
    assert prices.cost("openai:gpt-4.1-mini", Usage(1, 0)) == 1
    assert prices.cost("openai:gpt-4.1-mini", Usage(0, 0)) == 0
    assert prices.cost("openai:gpt-4.1-mini", Usage(10, 0, cached_tokens=10**9)) == 1  # more than there was


def test_the_worst_is_never_below_the_cost() -> None:
    prices = Prices.load()
    for model in prices.table:
        for cached in (None, 0, 50, 100):
            cost, worst = prices.cost(model, Usage(100, 7, cached)), prices.worst(model, 100, 7)
            assert cost is not None
            assert worst is not None
            assert cost <= worst


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("openai:gpt-4.1-mini", True),
        ("openai:gpt-4.1-mini-2025-04-14", True),
        ("anthropic:claude-opus-4-1-20250805", True),
        ("openai:gpt-4.1-mini-turbo", False),
        ("openai:gpt-4", False),
        ("openai-compatible:gpt-4.1-mini", False),
        ("openai-compatible:anything", False),
        ("gpt-4.1-mini", False),
        ("", False),
    ],
)
def test_a_price_is_known_for_the_very_model_only(model: str, known: bool) -> None:
    assert (Prices.load().cost(model, Usage(1, 1)) is not None) == known
    assert (Prices.load().worst(model, 1, 1) is not None) == known


def test_what_buys_nothing_costs_nothing_unless_declared() -> None:
    prices = Prices.load()
    assert prices.cost("scripted:/a/b.json", Usage(9, 9)) == prices.cost("recorded:/r", Usage(9, 9)) == 0
    assert prices.declare("scripted:/a/b.json=1,1").cost("scripted:/a/b.json", Usage(9, 9)) == 18


def test_a_star_stands_for_all_that_begin_so_and_the_longest_counts() -> None:
    prices = Prices("t").declare("openai-compatible:*=0,0").declare("openai-compatible:big*=1,1")
    assert prices.cost("openai-compatible:small", Usage(5, 5)) == 0
    assert prices.cost("openai-compatible:bigger", Usage(5, 5)) == 10
    assert prices.cost("openai:x", Usage(5, 5)) is None


def test_what_is_declared_changes_the_version_and_not_the_original() -> None:
    prices = Prices.load()
    other, another = prices.declare("m=1,2"), prices.declare("m=1,3")
    assert len({prices.version, other.version, another.version}) == 3
    assert prices.of("m") is None
    for n in range(200):
        other = other.declare(f"m{n}=1,2")
    assert len(other.version) <= 128


@pytest.mark.parametrize(
    "text", ["m", "m=1", "=1,2", "m=1,2,3", "m=a,b", "m=-1,2", "m=1,nan", "m=inf,1", "m=1,", "m=1e9,1", " =1,2"]
)
def test_a_bad_declaration_says_how(text: str) -> None:
    with pytest.raises(ModelConfigError, match="price"):
        Prices.load().declare(text)


def test_a_file_adds_to_the_table(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('version = "ours-1"\n["openai-compatible:qwen"]\ninput = 0.1\noutput = 1\n')
    prices = Prices.load(path)
    assert prices.version.endswith("+ours-1")
    assert prices.cost("openai-compatible:qwen", Usage(10, 1)) == 2
    assert prices.of("openai:gpt-4.1") == Prices.load().of("openai:gpt-4.1")


@pytest.mark.parametrize(
    "text",
    ["not toml [", '["m"]\ninput = 1\n', '["m"]\ninput = 1\noutput = "x"\n', '["m"]\ninput = true\noutput = 1\n',
     '["m"]\ninput = 1\noutput = 1\nextra = 1\n', "m = 3\n", "version = 3\n", '["m"]\ninput = -1\noutput = 1\n'],
)  # fmt: skip
def test_a_bad_file_names_itself(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ModelConfigError, match=r"prices\.toml"):
        Prices.load(path)
    with pytest.raises(ModelConfigError, match="cannot be read"):
        Prices.load(tmp_path / "none.toml")


def test_a_meter_prices_its_model(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"replies": []}')
    meter = Meter(open_model(f"scripted:{tmp_path / 's.json'}", env={}))
    assert meter.cost(Usage(1, 1)) == 0
    priced = Meter(meter.model, prices=Prices("t").declare(f"{meter.model.name}=1,2"))
    assert (priced.cost(Usage(1, 1)), priced.worst(2, 2)) == (3, 6)
