"""Both examples keep the rules of a worker, and a program that breaks one of them is found out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from kokuban.console.conformance import CHECKS, BadFolder, Check, examine, read_folder
from kokuban.console.conformance import _checks as rules
from kokuban.schemas.contracts import InvalidContract

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom-role"
# Where CI runs, it must not be left out: without Node the tests fail there.
needs_node = pytest.mark.skipif(shutil.which("node") is None and not os.environ.get("CI"), reason="needs Node")


def conformance(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kokuban.console.main", "conformance", *args, "--folder", str(EXAMPLES)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("server", [(), ("--protected",)], ids=["open", "protected"])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("indexer", "--exec", "node indexer.mjs"), marks=needs_node, id="node"),
        pytest.param(("glossarist", "--program", "glossarist:Glossarist"), id="python"),
    ],
)
def test_the_examples_keep_every_rule(program: tuple[str, ...], server: tuple[str, ...]) -> None:
    done = conformance(*program, *server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass  ") == len(CHECKS)
    assert f"{len(CHECKS)} of {len(CHECKS)} rules kept" in done.stderr


def test_a_program_that_is_not_there_is_wrong_usage() -> None:
    done = conformance("indexer", "--exec", "no-such-program")
    assert (done.returncode, "there is no program 'no-such-program'" in done.stderr) == (2, True)


@pytest.mark.parametrize("program", ["nope:X", "glossarist:Nope"])
def test_a_class_that_is_not_there_is_wrong_usage(program: str) -> None:
    done = conformance("glossarist", "--program", program)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no module 'nope'" in done.stderr or "has no class 'Nope'" in done.stderr


def test_a_program_that_ends_at_once_is_examined_no_further() -> None:
    done = conformance("indexer", "--exec", "sh -c 'echo no luck; exit 3'")
    assert (done.returncode, "pass" in done.stdout, done.stdout.count("FAIL")) == (1, False, 1)
    assert "ended with code 3; it said: no luck" in done.stdout
    assert f"0 of {len(CHECKS)} rules kept; the program had ended" in done.stderr


async def test_a_program_that_never_ran_keeps_no_rule(tmp_path: Path) -> None:
    checks = [rules.produces, rules.newer]  # the first one waits for nothing but silence
    async with aclosing(
        examine(read_folder(EXAMPLES, "indexer"), ["false"], EXAMPLES, tmp_path, checks, patience_seconds=60)
    ) as outcomes:
        (found,) = [outcome async for outcome in outcomes]
    assert (found.passed, "ended with code 1" in found.seen) == (False, True)


BROKEN: list[tuple[Check, str, str, str]] = [
    (rules.takes, "attempt: record.attempt", "attempt: 7", "was not claimed|does not count|attempt 7"),
    (rules.takes, "{ ...base, fence, derived_from", "{ ...base, fence: 1, derived_from", "does not count"),
    (rules.takes, 'sha256: digest(body) });', 'sha256: digest(body + " ") });', "cannot be read"),
    (rules.takes, 'answer(delivery, "+ACK")', 'answer(delivery, "+WPI")', "was not answered with"),
    (rules.takes, "count: terms.size", "count: String(terms.size)", "term-index.count"),
    (rules.beats, "publish(`kl.heartbeat", "void (`kl.heartbeat", "no two heartbeats"),
    (rules.beats, "one.step, one.fence]", "one.step, 1]", "no two heartbeats"),
    (rules.fetches, '"batch":1', '"batch":3', "with one slot it held"),
    (rules.doubts, ".id === id) return there.seq", ".id === 0) return there.seq", "was not answered"),
    (rules.fenced, 'if (seq !== null) await answer', "if (true) await answer", "answered the order that it had lost"),
    (rules.fenced, '"Nats-Expected-Last-Subject-Sequence": expected, ', "",
     "expected claimed, released, claimed|does not count"),
    (rules.refused, "order.reg, { ...base", "0, { ...base", "was not claimed"),
    (rules.contends, '"Nats-Expected-Last-Subject-Sequence": expected, ', "", "register of step contested holds"),
    (rules.restarts, "setTimeout(open, 200)", "process.exit(1)", "did not end"),
    (rules.produces, "if (kind === undefined) return", "if (false) return", "was committed"),
    (rules.newer, "> VERSION) return", "> VERSION + 1000) return", "whose order it cannot read"),
    (rules.newer, """VERSION) return answer(delivery, '-NAK {"delay": 5000000000}')""",
     'VERSION) return answer(delivery, "+TERM")', "nobody else will ever get it"),
    (rules.ends, "process.exit(0)", "{}", "still ran 10 s after SIGTERM"),
]  # fmt: skip


@needs_node
@pytest.mark.parametrize(
    ("check", "right", "wrong", "why"), BROKEN, ids=[f"{b[0].__name__}-{n}" for n, b in enumerate(BROKEN)]
)
async def test_a_program_that_breaks_a_rule_is_found_out(
    tmp_path: Path, check: Check, right: str, wrong: str, why: str
) -> None:
    place = tmp_path / "role"
    shutil.copytree(EXAMPLES, place)
    contract = place / "indexer.toml"
    contract.write_text(contract.read_text("utf-8").replace("seconds = 60", "seconds = 2"))
    program = place / "indexer.mjs"
    text = program.read_text("utf-8")
    assert text.count(right) >= 1
    program.write_text(text.replace(right, wrong))
    folder, command = read_folder(place, "indexer"), ["node", "indexer.mjs"]
    async with aclosing(examine(folder, command, place, tmp_path, [check], patience_seconds=6)) as outcomes:
        (found,) = [outcome async for outcome in outcomes]
    assert not found.passed
    assert any(part in found.seen for part in why.split("|")), found.seen


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    place = tmp_path / "role"
    shutil.copytree(EXAMPLES, place)
    (place / "samples" / "glossary.json").write_text('{"terms": 1}')
    with pytest.raises(BadFolder, match=r"glossary\.json: glossary\.terms: "):
        read_folder(place, "indexer")
    (place / "samples" / "glossary.json").unlink()
    with pytest.raises(BadFolder, match="give a sample of it"):
        read_folder(place, "indexer")
    with pytest.raises(BadFolder, match="there is no contract for 'poet'"):
        read_folder(place, "poet")
    (place / "kinds" / "glossary.json").unlink()
    with pytest.raises(InvalidContract, match="unknown kinds glossary"):
        read_folder(place, "glossarist")
