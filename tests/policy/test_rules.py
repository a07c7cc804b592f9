"""What a policy says: the strictest rule that applies, the tier's default otherwise, and never yes to what it cannot
judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.agents.policy import DEFAULT, InvalidPolicy, Policy, PolicyFile, Who, default_policy
from kokuban.agents.tools import Tool
from kokuban.agents.tools._registry import Tier

WHO = Who("acme", "ann", "refunder")
REFUNDS = """
version = "3"

[[rules]]
name = "small"
outcome = "allow"
tools = ["issue_refund"]
when = [{path = "/amount", above = 0}, {path = "/amount", at_most = 100}]

[[rules]]
name = "large"
outcome = "approve"
tools = ["issue_refund"]
when = [{path = "/amount", above = 100}]

[[rules]]
name = "absurd"
outcome = "deny"
tools = ["issue_refund"]
when = [{path = "/amount", above = 1000}]

[[rules]]
name = "for acme only"
outcome = "deny"
tools = ["issue_*"]
other_tenants = ["acme"]
"""


def tool(name: str = "issue_refund", tier: Tier = "consequential", source: str = "built-in") -> Tool:
    return Tool(name, "", {"type": "object"}, lambda context, values: "", tier, source=source)


def ruled(text: str, values: dict[str, Any], who: Who = WHO, of: Tool | None = None) -> tuple[str, str]:
    ruling = Policy.parse(text).judge(who, of or tool(), values)
    return ruling.outcome, ruling.rule


@pytest.mark.parametrize(
    ("amount", "outcome", "rule"),
    [
        (40, "allow", "small"),
        (100, "allow", "small"),
        (100.0, "allow", "small"),
        (100.01, "approve", "large"),
        (1000, "approve", "large"),
        (1001, "deny", "absurd"),
        (0, "approve", "default for consequential"),
        (-5, "approve", "default for consequential"),
        ("40", "deny", "absurd"),
        (True, "deny", "absurd"),
        (None, "deny", "absurd"),
        ([40], "deny", "absurd"),
        (2**63, "deny", "absurd"),
    ],
)
def test_a_value_decides_and_what_cannot_be_compared_counts_against_the_call(
    amount: Any, outcome: str, rule: str
) -> None:
    assert ruled(REFUNDS, {"amount": amount}) == (outcome, rule)


def test_what_is_missing_counts_against_the_call() -> None:
    assert ruled(REFUNDS, {}) == ("deny", "absurd")


def test_the_strictest_rule_wins_whatever_the_order() -> None:
    assert ruled(REFUNDS, {"amount": 5}, Who("other", "ann", "refunder")) == ("deny", "for acme only")
    head, *rules = REFUNDS.split("[[rules]]")
    turned = head + "".join(f"[[rules]]{rule}" for rule in reversed(rules))
    for amount in (5, 101, 1001):
        assert ruled(turned, {"amount": amount}) == ruled(REFUNDS, {"amount": amount})


@pytest.mark.parametrize(
    ("tier", "outcome"), [("read", "allow"), ("write", "allow"), ("consequential", "approve"), ("odd", "approve")]
)
def test_without_a_rule_the_tier_decides(tier: Any, outcome: str) -> None:
    assert DEFAULT.judge(WHO, tool("other", tier), {}).outcome == outcome


CONDITIONS: list[tuple[str, dict[str, Any], bool]] = [
    ('{path = "/a/b", one_of = ["x", "y"]}', {"a": {"b": "x"}}, True),
    ('{path = "/a/b", one_of = ["x", "y"]}', {"a": {"b": "z"}}, False),
    ('{path = "/a", one_of = [1]}', {"a": True}, False),
    ('{path = "/a", none_of = ["x"]}', {"a": "x"}, False),
    ('{path = "/a", none_of = ["x"]}', {"a": "y"}, True),
    ('{path = "/a", matches = "^https://[a-z.]+/"}', {"a": "https://example.org/x"}, True),
    ('{path = "/a", matches = "^https://[a-z.]+/"}', {"a": "http://example.org/x"}, False),
    ('{path = "/a", missing = true}', {}, True),
    ('{path = "/a", missing = true}', {"a": None}, False),
    ('{path = "/a", missing = false}', {"a": 1}, True),
    ('{path = "/list/1", below = 3}', {"list": [9, 2]}, True),
    ('{path = "/x~1y", at_least = 3}', {"x/y": 3}, True),
]


@pytest.mark.parametrize(("condition", "values", "holds"), CONDITIONS)
@pytest.mark.parametrize(("outcome", "else_"), [("deny", "allow"), ("allow", "approve")])
def test_every_kind_of_condition(condition: str, values: dict[str, Any], holds: bool, outcome: str, else_: str) -> None:
    tier: Tier = "read" if outcome == "deny" else "consequential"
    text = f'version = "1"\n[[rules]]\nname = "r"\noutcome = "{outcome}"\nwhen = [{condition}]'
    assert ruled(text, values, of=tool("t", tier))[0] == (outcome if holds else else_)


def test_who_and_where_from() -> None:
    text = (
        'version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nroles = ["coder"]\nprincipals = ["bob"]\n'
        'sources = ["mcp:*"]\ntiers = ["read"]'
    )
    bob = Who("acme", "bob", "coder")
    mine = tool("t", "read", "mcp:wiki")
    assert ruled(text, {}, bob, mine)[0] == "deny"
    for who, of in (
        (bob._replace(role="planner"), mine), (bob._replace(principal="ann"), mine),
        (bob, tool("t", "read")), (bob, tool("t", "write", "mcp:wiki")),
    ):  # fmt: skip
        assert ruled(text, {}, who, of)[0] == "allow"


WRONG = [
    ("version = 1", "version"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "perhaps"', "rules.0.outcome"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\ntool = ["x"]', "rules.0.tool"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "/a"}]', "exactly one of"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "/a", above = 1, below = 2}]', "exactly"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "a", above = 1}]', "rules.0.when.0.path"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "/a", above = "1"}]', "above"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "/a", above = nan}]', "above"),
    ('version = "1"\n[[rules]]\nname = "r"\noutcome = "deny"\nwhen = [{path = "/a", matches = "(?=x)"}]', "matches"),
    ('version = "1"' + '\n[[rules]]\nname = "r"\noutcome = "deny"' * 2, "two are named"),
    ("rules = [", "not TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "named"), WRONG)
def test_a_policy_that_cannot_be_used_is_refused_with_the_field(text: str, named: str) -> None:
    with pytest.raises(InvalidPolicy, match=r"my\.toml: ") as error:
        Policy.parse(text, "my.toml")
    assert named in str(error.value)


def test_the_version_changes_with_the_content() -> None:
    one, same = Policy.parse(REFUNDS), Policy.parse(f"# a remark\n{REFUNDS}")
    other = Policy.parse(REFUNDS.replace("1000", "999"))
    assert one.version == same.version != other.version
    assert one.version.startswith("3:")


def test_a_policy_file_is_read_anew_and_fails_closed(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(REFUNDS)
    policy = PolicyFile(path, ["look"])
    assert policy.judge(WHO, tool(), {"amount": 40}).outcome == "allow"
    assert policy.judge(WHO, tool("look", "read"), {}).outcome == "approve"
    path.write_text(REFUNDS.replace("at_most = 100", "at_most = 10"))
    assert policy.judge(WHO, tool(), {"amount": 40}).outcome == "approve"
    for broken in ("version = ", None):
        path.unlink() if broken is None else path.write_text(broken)
        assert policy.judge(WHO, tool(), {"amount": 5}).outcome == "deny"
        assert policy.judge(WHO, tool("look", "read"), {}).outcome == "deny"
        assert policy.judge(WHO, tool("see", "read"), {}).outcome == "allow"
        assert policy.egress == ()
        assert policy.version == "unreadable"
    path.write_text(REFUNDS)
    assert policy.judge(WHO, tool(), {"amount": 40}).outcome == "allow"


def test_a_worker_does_not_start_with_a_bad_policy(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match="cannot be read"):
        PolicyFile(tmp_path / "none.toml")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["amount", "x"]), values))
def test_nothing_above_the_limit_is_ever_allowed(arguments: dict[str, Any]) -> None:
    amount = arguments.get("amount")
    allowed = ruled(REFUNDS, arguments)[0] == "allow"
    small = isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount <= 100
    assert allowed == small


def test_approve_tools_want_approval() -> None:
    assert default_policy(["mail"]).judge(WHO, tool("mail", "write"), {}).outcome == "approve"
    assert default_policy(["mail"]).judge(WHO, tool("other", "write"), {}).outcome == "allow"
