"""Role contracts are data: the built-in crew is sound, and every wrong contract is refused by file and field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kokuban.schemas import KINDS, WorkOrder, contracts, encode
from kokuban.schemas.contracts import Contract, InvalidContract, builtin_crew, check_crew, parse_contract, with_limits

ROOT = Path(contracts.__file__).parents[3]
GOOD = 'role = "poet"\nsummary = "Writes."\nwhen = "planned"\nconsumes = ["task"]\nproduces = ["finding"]\n'


def test_the_built_in_crew_is_sound() -> None:
    crew = builtin_crew()
    assert sorted(crew) == ["coder", "integrator", "planner", "researcher", "verifier"]
    assert {role: c.when for role, c in crew.items()} == {
        "planner": "start", "researcher": "planned", "coder": "planned", "verifier": "triggered", "integrator": "end",
    }  # fmt: skip
    assert {c.role for c in crew.values() if c.model} == {"planner", "researcher", "coder"}
    made = {kind for c in crew.values() for kind in c.produces} | {"task"}
    assert made == set(KINDS)
    for contract in crew.values():
        assert set(contract.consumes) <= made
        assert not set(contract.triggers) & set(contract.produces), "nobody judges what he makes"
    judged = {kind for c in crew.values() for kind in c.triggers}
    assert judged == set(crew["integrator"].consumes) & {"finding", "patch"} | {"deliverable"}


def test_a_contract_is_read_with_its_defaults() -> None:
    contract = parse_contract(GOOD, "poet.toml")
    limits = contract.limits
    assert (contract.role, contract.tools, contract.model, contract.requires) == ("poet", (), False, ())
    assert (limits.concurrency, limits.steps, limits.tool_calls, limits.tokens, limits.seconds) == (
        4,
        12,
        20,
        32_000,
        90,
    )
    assert parse_contract(GOOD + "limits.tokens = 0\n", "poet.toml").limits.allotment().tokens == 0
    assert contract.teammate().produces == ("finding",)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ('role = "Poet"', "role"),
        ('role = "a.b"', "role"),
        ('role = "a\\n"', "role"),
        ('role = ""', "role"),
        ("role = 1", "role"),
        ('summary = ""', "summary"),
        (f'summary = "{"x" * 501}"', "summary"),
        ('when = "later"', "when"),
        ("when = true", "when"),
        ('consumes = ["poem"]', "consumes"),
        ('consumes = "task"', "consumes"),
        ("consumes = [1]", "consumes.0"),
        ("produces = []", "produces"),
        ('produces = ["poem"]', "produces"),
        ('triggers = ["finding"]', "triggers"),
        ('when = "triggered"', "triggers"),
        ('requires = ["money"]', "requires.0"),
        ('tools = ["Run It"]', "tools.0"),
        ('model = "yes"', "model"),
        ("model = 1", "model"),
        ("colour = 1", "colour"),
        ("limits.concurrency = 0", "limits.concurrency"),
        ("limits.concurrency = -1", "limits.concurrency"),
        ("limits.concurrency = 10001", "limits.concurrency"),
        ("limits.concurrency = true", "limits.concurrency"),
        ('limits.tokens = "32000"', "limits.tokens"),
        ("limits.tokens = 1.0", "limits.tokens"),
        ("limits.tokens = -1", "limits.tokens"),
        (f"limits.tokens = {2**53}", "limits.tokens"),
        ("limits.steps = 10001", "limits.steps"),
        ("limits.tool_calls = 10001", "limits.tool_calls"),
        ("limits.seconds = 86401", "limits.seconds"),
        ("limits.seconds = nan", "limits.seconds"),
        ("limits.money = 1", "limits.money"),
        ("limits = 1", "limits"),
    ],
)
def test_a_wrong_contract_is_refused_by_file_and_field(change: str, field: str) -> None:
    key = change.partition(" ")[0]
    kept = "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(f"{key} "))
    with pytest.raises(InvalidContract) as caught:
        parse_contract(kept + change + "\n", "my/poet.toml")
    assert str(caught.value).startswith("my/poet.toml: ")
    assert field in str(caught.value)


@pytest.mark.parametrize("missing", ["role", "summary", "when", "produces"])
def test_what_is_missing_is_named(missing: str) -> None:
    text = "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(f"{missing} "))
    with pytest.raises(InvalidContract, match=f"poet.toml: {missing}: Field required"):
        parse_contract(text, "poet.toml")


@pytest.mark.parametrize("text", ["role = ", "role", GOOD + 'role = "again"', "\0", "a = " + "[" * 100_000])
def test_what_is_no_toml_is_refused_by_file(text: str) -> None:
    with pytest.raises(InvalidContract, match=r"poet\.toml: not TOML: "):
        parse_contract(text, "poet.toml")


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(InvalidContract) as caught:
        parse_contract('role = "A"\nwhen = "later"\nproduces = ["plan"]\n', "x.toml")
    assert all(f"{field}: " in str(caught.value) for field in ("role", "when", "summary"))


@pytest.mark.parametrize("limit", ["steps", "tool_calls", "tokens", "seconds"])
def test_the_largest_limit_still_fits_an_order(limit: str) -> None:
    """What a contract may say, an order can carry: an order that nobody can read would be written for ever."""
    most = {"steps": 10_000, "tool_calls": 10_000, "tokens": 2**53 - 1, "seconds": 86_400}[limit]
    allotment = parse_contract(GOOD + f"limits.{limit} = {most}\n", "x").limits.allotment()
    order = WorkOrder(0, 1, "go", ("finding",), allotment=allotment)
    assert msgspec.json.decode(encode(order), type=WorkOrder) == order


def changed(role: str, **fields: object) -> list[Contract]:
    return [c.model_copy(update=fields) if c.role == role else c for c in builtin_crew().values()]


@pytest.mark.parametrize(
    ("crew", "why"),
    [
        ([], "when: exactly one role must have when = 'start', 0 have"),
        ([*builtin_crew().values(), builtin_crew()["coder"]], "role: 'coder' has two contracts"),
        (changed("planner", when="end"), "when = 'start', 0 have"),
        (changed("coder", when="end"), "when = 'end', 2 have"),
        (changed("coder", when="triggered", triggers=("plan",)), "'patch' is given by 'planned' roles alone"),
        (changed("verifier", when="planned", triggers=()), "'verdict' is given by 'triggered' roles alone"),
        (changed("verifier", triggers=("patch",)), "no role that produces 'verdict' is triggered by 'deliverable'"),
        (changed("verifier", produces=("critique",)), "triggers: 'verifier' is triggered by 'deliverable' and must"),
        (changed("planner", produces=("finding",)), "must produce 'plan' and nothing else"),
        (changed("planner", produces=("plan", "finding")), "must produce 'plan' and nothing else"),
        (changed("integrator", produces=("patch",)), "must produce 'deliverable' and nothing else"),
    ],
)
def test_a_crew_that_could_not_end_a_task_is_refused(crew: list[Contract], why: str) -> None:
    with pytest.raises(InvalidContract) as caught:
        check_crew(crew)
    assert why in str(caught.value)


def test_a_role_more_is_welcome() -> None:
    poet = parse_contract(GOOD, "poet.toml")
    assert check_crew([*builtin_crew().values(), poet])["poet"] is poet


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """The string constants of a program, without its documentation."""
    tree = ast.parse(path.read_text("utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def test_no_roles_program_names_anothers_step_or_role() -> None:
    """The house rule: roles meet on the board, told apart by contracts alone."""
    programs = sorted((ROOT / "agents" / "kokuban" / "agents").rglob("*.py"))
    assert len(programs) > 10
    crew = builtin_crew()
    wrong = []
    for path in programs:
        others = "|".join(role for role in crew if role != path.stem) if path.stem in crew else "(?!)"
        for line, text in strings_of(path):
            if re.fullmatch(rf"integrate|verify-.*|{others}", text):
                wrong.append(f"{path.name}:{line}: {text!r}")
    assert wrong == []


def test_limits_can_be_set_apart_from_the_contracts() -> None:
    crew = builtin_crew()
    changed = with_limits(crew, {"coder": 1, "verifier": 10_000})
    assert {role: c.limits.concurrency for role, c in changed.items()} == {
        "planner": 4, "researcher": 4, "coder": 1, "verifier": 10_000, "integrator": 4,
    }  # fmt: skip
    assert crew["coder"].limits.concurrency == 4
    for wrong, why in (({"cook": 1}, "no role 'cook'"), ({"coder": 0}, "coder=0"), ({"coder": 10_001}, "coder=10001")):
        with pytest.raises(InvalidContract, match=why):
            with_limits(crew, wrong)
