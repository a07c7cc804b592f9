"""The loop's states and the ways between them (DESIGN 6). What is not drawn here cannot happen.

READY → MODEL → VALIDATE → POLICY → PENDING → EXECUTE ⇄ RETRY
          ↑         │         │        │         │
          │         ├─────────┴────────┴─────────┤ (refused, denied, played back: data)
          │         ↓                            ↓
          ├──── OBSERVE ←────────────────────────┘
          ├──── COMPACT   (the request is too large for the model)
any of them → STOP        (accepted, or a named reason)
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a loop is. READY: it builds the next request. VALIDATE: it reads a reply, or a call's arguments. PENDING:
    the call is being written down, with its key, before anything is done."""

    READY = "ready"
    MODEL = "model"
    VALIDATE = "validate"
    POLICY = "policy"
    PENDING = "pending"
    EXECUTE = "execute"
    RETRY = "retry"
    OBSERVE = "observe"
    COMPACT = "compact"
    STOP = "stop"


S = State
EDGES: dict[State, frozenset[State]] = {
    S.READY: frozenset({S.MODEL, S.COMPACT, S.STOP}),
    S.MODEL: frozenset({S.VALIDATE, S.COMPACT, S.STOP}),
    S.VALIDATE: frozenset({S.READY, S.VALIDATE, S.POLICY, S.OBSERVE, S.STOP}),
    S.POLICY: frozenset({S.PENDING, S.OBSERVE, S.STOP}),
    S.PENDING: frozenset({S.EXECUTE, S.OBSERVE, S.STOP}),
    S.EXECUTE: frozenset({S.RETRY, S.OBSERVE, S.STOP}),
    S.RETRY: frozenset({S.EXECUTE, S.OBSERVE, S.STOP}),
    S.OBSERVE: frozenset({S.VALIDATE, S.READY, S.STOP}),
    S.COMPACT: frozenset({S.READY, S.MODEL, S.STOP}),
    S.STOP: frozenset(),
}


class Machine:
    """Where one loop is, and how it came there."""

    def __init__(self) -> None:
        self.state = State.READY
        self.passed: list[State] = [State.READY]

    def go(self, state: State) -> None:
        """Raises `RuntimeError` for a way that is not drawn: a bug of the runtime, never of a model."""
        if state not in EDGES[self.state]:
            raise RuntimeError(f"the loop cannot go from {self.state.value} to {state.value}")
        self.state = state
        if len(self.passed) < 10_000:
            self.passed.append(state)
