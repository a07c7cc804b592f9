"""A policy that stands in a file, as it is now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kokuban.agents.policy._judge import Policy, Ruling, Who
from kokuban.agents.policy._rules import InvalidPolicy, Rule

if TYPE_CHECKING:
    from kokuban.agents.tools import Tool

MAX_BYTES = 1_000_000
log = structlog.get_logger("kokuban.policy")


class PolicyFile:
    """Judges by what the file says at that moment: it is read anew when it has changed.

    When it cannot be read, or says what is no policy, nothing but reading is allowed until it can: an older version may
    allow what was forbidden since. `approve` names tools that want approval whatever it says.
    """

    def __init__(self, path: Path, approve: Collection[str] = ()) -> None:
        """Raises `InvalidPolicy`: a worker does not start with a policy that it cannot use."""
        self._path = path
        self._approve = tuple(sorted(approve))
        self._stamp = self._state()
        self._policy: Policy | None = self._read()

    @property
    def version(self) -> str:
        return self._policy.version if self._policy else "unreadable"

    @property
    def egress(self) -> tuple[str, ...]:
        policy = self._now()
        return policy.egress if policy else ()

    @property
    def local(self) -> tuple[str, ...]:
        policy = self._now()
        return policy.local if policy else ()

    def judge(self, who: Who, tool: Tool, values: Mapping[str, Any]) -> Ruling:
        """As `Policy.judge`, by the file as it is now."""
        policy = self._now()
        if policy is not None:
            return policy.judge(who, tool, values)
        reading = tool.tier == "read" and tool.name not in self._approve
        return Ruling("allow" if reading else "deny", f"{self._path.name} cannot be read", "unreadable", who.trust)

    def _now(self) -> Policy | None:
        stamp = self._state()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._policy = self._read()
                log.info("policy was read again", policy=self.version)
            except InvalidPolicy as error:
                self._policy = None
                log.error("policy cannot be used: nothing but reading is allowed", error=str(error))
        return self._policy

    def _state(self) -> tuple[int, int, int] | None:
        try:
            state = self._path.stat()
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size, state.st_ino

    def _read(self) -> Policy:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidPolicy(f"policy: {self._path} cannot be read ({type(error).__name__}); name a file") from error
        if len(data) > MAX_BYTES:
            raise InvalidPolicy(f"policy: {self._path} is larger than {MAX_BYTES:,} bytes")
        policy = Policy.parse(text, str(self._path))
        if not self._approve:
            return policy
        rule = Rule(name="--approve-tool", outcome="approve", tools=self._approve)
        return Policy.of(policy.rules.model_copy(update={"rules": (*policy.rules.rules, rule)}))
