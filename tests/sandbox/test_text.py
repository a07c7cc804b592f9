"""Output as text: cut in bytes between characters, and made the same on every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.sandbox import HeadTail, clip, stabilise


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 60))
def test_what_fits_is_whole_and_what_does_not_is_bounded(chunks: list[bytes], cap: int) -> None:
    kept = HeadTail(cap)
    for chunk in chunks:
        kept.feed(chunk)
    data = b"".join(chunks)
    text, truncated = kept.text()
    assert kept.total == len(data)
    if len(data.decode(errors="replace").encode()) <= cap:
        assert (text, truncated) == (data.decode(errors="replace"), False)
    else:
        assert truncated
        first, _, last = text.partition("\n[… ")[0], None, text.rpartition(" …]\n")[2]
        assert len((first + last).encode()) <= cap


@given(st.text(alphabet="aé€😀", max_size=80), st.integers(2, 100), st.integers(1, 7))
def test_no_character_is_cut(text: str, cap: int, step: int) -> None:
    data = text.encode()
    kept = HeadTail(cap)
    for at in range(0, len(data), step):
        kept.feed(data[at : at + step])
    shown, truncated = kept.text()
    assert "\ufffd" not in shown
    if truncated:
        assert text.startswith(shown.partition("\n[… ")[0])
        assert text.endswith(shown.rpartition(" …]\n")[2])
        assert f"{len(data):,} bytes in all" in shown
    assert clip(text, cap) == shown


def test_a_megabyte_of_three_byte_characters() -> None:
    kept = HeadTail(1_001)
    for _ in range(100):
        kept.feed("€".encode() * 3_334 + b"\xe2")  # every chunk ends inside a character
        kept.feed(b"\x82\xac")
    text, truncated = kept.text()
    assert truncated
    assert set(text.partition("\n")[0]) == {"€"}
    assert len(text.encode()) < 1_100


def test_replacing_bad_bytes_does_not_pass_the_limit() -> None:
    kept = HeadTail(1_000)
    kept.feed(b"\xff" * 900)  # 2,700 bytes as U+FFFD
    text, truncated = kept.text()
    assert truncated
    assert len(text.encode()) < 1_100


def test_clip_takes_lone_surrogates() -> None:
    assert clip("a\ud800b", 100) == "a?b"


HERE = Path("/base/checkout")


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("Ran 3 tests in 0.001s\n\nOK", "Ran 3 tests in N s\n\nOK"),
        ("===== 1 failed, 2 passed in 0.12s =====", "===== 1 failed, 2 passed in N s ====="),
        ("==== 2 passed in 63.10s (0:01:03) ====", "==== 2 passed in N s (0:01:03) ===="),
        ("took 3 ms, elapsed: 4.5 seconds", "took N s, elapsed: N s"),
        ("ok  pkg  0.12 seconds", "ok  pkg  N s"),
        ("✓ adds (12 ms)", "✓ adds (N s)"),
        ("0.01s call     tests/test_a.py::test_x", "N s call     tests/test_a.py::test_x"),
        ('File "/base/checkout/src/a.py", line 3', 'File "./src/a.py", line 3'),
        (
            "/base/checkout: /base/checkout2 /base/checkout.bak /base/checkout.",
            ".: /base/checkout2 /base/checkout.bak ..",
        ),
        ("/base/checkout/base/checkout", "./base/checkout"),
        ("<A object at 0x7f3a2b1c> <B at 0X1> 0x7f12345678ab", "<A object at 0x…> <B at 0X1> 0x…"),
        ("colour 0xff00ff, mask 0xdeadbeef", "colour 0xff00ff, mask 0xdeadbeef"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b(Bx\x1b[2K", "red x"),
        ("10%\r20%\rdone\r\nnext\x00\x08\x7f", "10%\n20%\ndone\nnext"),
        (
            '  File "/usr/lib/python3.11/json/decoder.py", line 355, in x',
            '  File "<python>/json/decoder.py", line N, in x',
        ),
        (
            '  File "/a b/lib64/python3.12/site-packages/p/q.py", line 1',
            '  File "<python>/site-packages/p/q.py", line N',
        ),
    ],
)
def test_what_differs_from_run_to_run_is_removed(text: str, stable: str) -> None:
    assert stabilise(text, HERE) == stable
    assert stabilise(stable, HERE) == stable


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: 'in 2.5 seconds' != 'in 3.5 seconds'",
        "E       assert 'took 3 s' == 'took 4 s'",
        "- slept (0.5s)",
        "+ slept (0.6s)",
        "ValueError: timed out after 30 s",
        "    assert retry in 5 s",
        "wait 'for 1.5 seconds'",
        "3 seconds, 2.5s, version 1.2.3 seconds",
        "a\tb\n\nc",
    ],
)
def test_facts_stay_as_they_are(text: str) -> None:
    assert stabilise(text, HERE) == text


@given(st.text(alphabet="/base/checkout \x1b[0m.0x7f1 in s\r\n\"'File lib/python3", max_size=80))
def test_stabilising_twice_changes_nothing_more(text: str) -> None:
    once = stabilise(text, HERE)
    assert stabilise(once, HERE) == once


def test_the_real_path_of_a_linked_checkout_is_removed_too(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    text = f"{tmp_path}/real/a.py {tmp_path}/link/a.py"
    assert stabilise(text, tmp_path / "link") == "./a.py ./a.py"
