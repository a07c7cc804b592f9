"""Credentials in any text that leaves the process."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.blackboard import redaction
from kokuban.blackboard.redaction import Redactor, conceal, conceal_environment, leaks, redacted, redacted_values

VALUE = 'sk-"Zür\\ich+/=&7'


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    before = dict(redaction._forms)
    redaction._forms.clear()
    conceal("KEY", VALUE)
    yield
    redaction._forms.clear()
    redaction._forms.update(before)


@pytest.mark.parametrize(
    "text",
    [
        VALUE, json.dumps({"a": VALUE}), json.dumps({"a": VALUE}, ensure_ascii=False), f"?key={quote(VALUE, safe='')}",
        *(base64.b64encode(f"{'u' * n}:{VALUE}!".encode()).decode() for n in range(3)),
        *(base64.urlsafe_b64encode(f"{'u' * n}:{VALUE}".encode()).decode() for n in range(3)),
    ],
)  # fmt: skip
def test_however_it_is_written(text: str) -> None:
    assert "[secret KEY]" in redacted(f"it said {text}.")
    assert VALUE not in redacted(text)
    assert leaks(text.encode()) == "KEY"


def test_of_two_values_the_longer_goes_first_and_short_ones_are_none() -> None:
    conceal("LONGER", f"{VALUE}-more")
    conceal("SHORT", "and")
    assert redacted(f"{VALUE}-more and {VALUE}") == "[secret LONGER] and [secret KEY]"
    assert leaks(b"sand") == ""


def test_variables_are_known_by_their_names() -> None:
    conceal_environment(
        {"GITHUB_TOKEN": "ghp_123456", "HOME": "/home/anna", "db_password": "geheim-1", "EMPTY_TOKEN": ""}
    )
    assert (
        redacted("ghp_123456 in /home/anna with geheim-1")
        == "[secret GITHUB_TOKEN] in /home/anna with [secret db_password]"
    )


def test_a_name_that_only_holds_the_word_names_no_credential() -> None:
    conceal_environment({"MAX_TOKENS": "100000000", "TOKENIZERS_PARALLELISM": "sometimes"})
    assert redacted("100000000 sometimes") == "100000000 sometimes"


def test_keys_of_json_stay() -> None:
    assert redacted_values({VALUE: [1, {"a": f"<{VALUE}>"}]}) == {VALUE: [1, {"a": "<[secret KEY]>"}]}


@given(st.text(max_size=30), st.text(max_size=30), st.lists(st.integers(0, 90), max_size=8))
def test_in_pieces_it_is_as_in_one(before: str, after: str, cuts: list[int]) -> None:
    text = f"{before}{VALUE}{after}{VALUE[:-1]}"
    said: list[str] = []
    redactor = Redactor(said.append)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for first, last in itertools.pairwise(places):
        redactor.feed(text[first:last])
    redactor.end()
    assert VALUE not in "".join(said)
    assert "".join(said) == redacted(text)
