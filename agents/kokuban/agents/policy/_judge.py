"""From a policy and a call to a ruling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kokuban.agents.policy._rules import Outcome, Rule, Rules, parse_rules
from kokuban.schemas import Trust, digest

if TYPE_CHECKING:
    from kokuban.agents.tools import Tool

_STRICTNESS: dict[Outcome, int] = {"allow": 0, "approve": 1, "deny": 2}


class Who(NamedTuple):
    """For whom and by which role a call is made. `principal` is who submitted the task, `trust` the label of the least
    trusted text that the step has seen."""

    tenant: str
    principal: str
    role: str
    trust: Trust = "untrusted"


class Ruling(NamedTuple):
    """What a policy says about a call, by which rule, in which version, and after what the step had seen."""

    outcome: Outcome
    rule: str
    policy: str
    trust: Trust = "untrusted"

    def __str__(self) -> str:
        """As it stands in the journal, at most 200 characters."""
        return f"{self.outcome} by {self.rule[:100]} (policy {self.policy}, {self.trust})"[:200]


@dataclass(frozen=True)
class Policy:
    """Rules and their version: what its author calls it, and the beginning of its content's digest.

    Of the rules that apply the strictest decides: deny, then approve, then allow. Where none applies the default of the
    tool's tier does. A value that a rule cannot compare counts against the call: a rule that denies or wants approval
    applies then, one that allows does not.
    """

    rules: Rules
    version: str

    @classmethod
    def parse(cls, text: str, origin: str = "policy") -> Policy:
        """Raises `InvalidPolicy`."""
        return cls.of(parse_rules(text, origin))

    @classmethod
    def of(cls, rules: Rules) -> Policy:
        said = rules.model_dump(mode="json")
        for rule in said["rules"]:
            if not rule["trust"]:  # a policy that never asked for it keeps its version, and open approvals stay good
                del rule["trust"]
        if not said["local"]:
            del said["local"]
        content = digest(msgspec.json.encode(said, order="sorted"))
        return cls(rules, f"{rules.version}:{content.removeprefix('sha256:')[:12]}")

    @property
    def egress(self) -> tuple[str, ...]:
        """Hosts that a fetch may reach."""
        return self.rules.egress

    @property
    def local(self) -> tuple[str, ...]:
        """Addresses outside the internet that a fetch may reach as well."""
        return self.rules.local

    def judge(self, who: Who, tool: Tool, values: Mapping[str, Any]) -> Ruling:
        """The ruling about this tool with exactly these (validated, normalised) values. Never raises."""
        applying = [rule for rule in self.rules.rules if _applies(rule, who, tool, values)]
        if not applying:
            tier = tool.tier if tool.tier in ("read", "write") else "consequential"
            return Ruling(getattr(self.rules.defaults, tier), f"default for {tier}", self.version, who.trust)
        strictest = max(applying, key=lambda rule: _STRICTNESS[rule.outcome])
        return Ruling(strictest.outcome, strictest.name, self.version, who.trust)


def _applies(rule: Rule, who: Who, tool: Tool, values: Mapping[str, Any]) -> bool:
    fits = (
        _named(rule.tools, tool.name)
        and (not rule.tiers or tool.tier in rule.tiers)
        and _named(rule.sources, tool.source)
        and _named(rule.roles, who.role)
        and _named(rule.tenants, who.tenant)
        and _named(rule.principals, who.principal)
        and (not rule.trust or who.trust in rule.trust)
        and not (rule.other_tenants and _named(rule.other_tenants, who.tenant))
    )
    unsure = rule.outcome != "allow"
    return fits and all(unsure if (held := c.holds(values)) is None else held for c in rule.when)


def _named(names: tuple[str, ...], name: str) -> bool:
    return not names or any(name.startswith(n[:-1]) if n.endswith("*") else n == name for n in names)


DEFAULT = Policy(Rules(version="gates-1"), "gates-1")
"""Reads and what can be undone are allowed; for what cannot, a person is asked."""


def default_policy(approve: Collection[str] = ()) -> Policy:
    """The default, and a person's approval for each call of the tools named."""
    if not approve:
        return DEFAULT
    rule = Rule(name="--approve-tool", outcome="approve", tools=tuple(sorted(approve)))
    return Policy(Rules(version="gates-1", rules=(rule,)), "gates-1")
