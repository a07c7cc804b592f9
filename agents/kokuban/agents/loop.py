"""The bounded agent loop (DESIGN 6). The runtime, not the model, holds schemas, permissions, budgets and the end.

    ready → model → (final | validate) → policy → pending → execute → observe → model …

Every exit is named: the accepted value, or `StepFailed` with steps, tool_calls, tokens, deadline, model or tool.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from kokuban.agents._tape import describe, fingerprint
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.models import (
    Attempt,
    Call,
    CallContext,
    Delta,
    ModelDeadline,
    ModelError,
    Problem,
    Reply,
    Request,
    estimate_request_tokens,
    parse_arguments,
)
from kokuban.agents.tools import Arguments, Invalid, Observation, Registry, ToolContext, execute
from kokuban.schemas import Opens, Usage

REPEATS_ALLOWED = 2
CUT_OFF = "the reply was cut off; ask again, for less at once"


@dataclass(frozen=True, slots=True)
class Final:
    """The model says that this is its result."""

    value: Any


@dataclass(frozen=True, slots=True)
class Calls:
    """The model asks for tools."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Wrong:
    """The reply cannot be used; `text` tells the model why and what would be valid."""

    text: str


class Dialog(Protocol):
    """What the model is shown, and how its replies are read. It keeps the conversation; the loop keeps the rules.

    `finished` may end the step after tool calls, when the runtime itself sees that the goal is reached; `standing` says
    what still stands in its way, for people and for the next attempt.
    """

    async def request(self) -> Request: ...
    def read(self, reply: Reply) -> Final | Calls | Wrong: ...
    async def accept(self, value: Any) -> str | None: ...
    async def observe(self, call: Call, observation: Observation) -> None: ...
    def finished(self) -> Final | None: ...
    def standing(self) -> str: ...
    def object(self, text: str) -> None: ...


@dataclass
class Loop:
    """One step's loop. `tools` are those that the role's contract allows; none for a role that only answers."""

    work: Work
    dialog: Dialog
    tools: Registry = field(default_factory=Registry)
    context: ToolContext | None = None
    scope: dict[str, Any] = field(default_factory=dict)
    _seen: Counter[str] = field(default_factory=Counter)
    _asked: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    async def run(self) -> Any:
        """The accepted value. Raises `StepFailed`, `Fenced`, `InDoubt`, `BusError`."""
        while True:
            reply = await self.ask(await self.dialog.request())
            action = self.dialog.read(reply)
            if isinstance(action, Wrong):
                self.dialog.object(action.text)
                continue
            if isinstance(action, Calls):
                for call in action.calls:
                    await self.dialog.observe(call, await self.act(call))
            final = self.dialog.finished() if isinstance(action, Calls) else action
            if final is not None:
                objection = await self.dialog.accept(final.value)
                if objection is None:
                    return final.value
                self.dialog.object(objection)

    # ------------------------------------------------------------------ model

    async def ask(self, request: Request) -> Reply:
        """One model turn: budget before it, a line in the journal before and after it."""
        work, meter = self.work, self.work.meter
        if meter is None:
            raise StepFailed("model", "this worker has no model; start it with --model", retryable=False)
        self._turn += 1
        worst = estimate_request_tokens(request) + request.max_output_tokens
        short = work.ledger.reserve_model(worst)
        if short == "steps":
            raise StepFailed("steps", self._without(f"no result after {work.ledger.allotment.steps} model turns"))
        if short is not None:
            left, needed = work.ledger.left_tokens, worst
            text = f"{left} tokens are left of {work.ledger.allotment.tokens}; this turn may need {needed}"
            raise StepFailed("tokens", self._without(text))
        if work.seconds_left <= 0:
            raise StepFailed("deadline", self._without(f"not done within the step's {work.ledger.allotment.seconds} s"))
        seen = fingerprint(msgspec.to_builtins(request))
        at = work.assignment
        context = CallContext(
            role=at.role,
            step=at.step,
            attempt=at.attempt,
            turn=self._turn,
            occurrence=self._asked[seen],
            scope=self.scope,
        )
        self._asked[seen] += 1

        cost = Usage(model_calls=1)

        def count(attempt: Attempt) -> None:
            nonlocal cost
            if attempt.usage is not None:
                spent = attempt.usage
                cost = cost + Usage(spent.input_tokens, spent.output_tokens, estimated=spent.estimated)

        async def perform() -> tuple[object, Usage]:
            try:
                reply = await meter.call(
                    request, context, deadline=work.deadline, on_delta=self._show, on_attempt=count
                )
            except BaseException:
                await work.tape.lost(cost)
                raise
            return msgspec.to_builtins(reply), cost

        try:
            played = await work.tape.call(
                lambda n: Opens(n, "model", arguments=describe(seen), reserved_tokens=worst), perform
            )
        except ModelDeadline as error:
            raise StepFailed("deadline", f"the model had not answered when the step's time was up: {error}") from error
        except ModelError as error:
            raise StepFailed("model", str(error), retryable=error.retryable) from error
        reply = msgspec.convert(played.result, Reply)
        if reply.truncated:  # whatever was cut, its calls may look whole and are not to be believed
            reply = replace(reply, calls=tuple(replace(c, problem=c.problem or CUT_OFF) for c in reply.calls))
        work.ledger.settle(played.usage)
        return reply

    def _without(self, limit: str) -> str:
        """A limit that was reached, and what stood in the way of a result."""
        standing = self.dialog.standing()
        return f"{limit}; {standing}" if standing else limit

    def _show(self, delta: Delta) -> None:
        self.work.say(delta.text)

    # ------------------------------------------------------------------ tools

    async def act(self, call: Call) -> Observation:
        """One tool call: parse once, validate, policy, pending, execute. What is refused comes back as data."""
        judged = self._judge(call)
        if isinstance(judged, Observation):
            return judged
        ledger, tool = self.work.ledger, judged.tool
        if ledger.reserve_tool() is not None:
            raise StepFailed("tool_calls", self._without(f"no result after {ledger.allotment.tool_calls} tool calls"))
        context = self.context
        assert context is not None
        cost = Usage(tool_calls=1)

        async def perform() -> tuple[object, Usage]:
            done = await execute(judged, context)
            return {"text": done.text, "ok": done.ok}, cost

        played = await self.work.tape.call(
            lambda n: Opens(n, "tool", tool.name, describe(judged.values), key=f"{self._key}:{n}"),
            perform,
            repeatable=tool.effect != "other",
        )
        if played.replayed and tool.tier == "write":
            await execute(judged, context)  # the checkout is new: bring it to where the journal says it was
        ledger.settle(cost)
        observation = Observation(played.result["text"], played.result["ok"])
        if tool.tier == "write" and observation.ok:
            self._seen = Counter({k: n for k, n in self._seen.items() if k.startswith("write:")})
        return observation

    def _judge(self, call: Call) -> Arguments | Observation:
        """Everything that is checked before a call may be dispatched."""
        if call.problem is not None:
            return Observation(f"{call.name or 'the call'} was not run: {call.problem}", False)
        parsed = parse_arguments(call.arguments)
        if isinstance(parsed, Problem):
            hint = self.tools.validate(call.name, {})
            usage = f"\n{hint.text}" if isinstance(hint, Invalid) else ""
            return Observation(f"{call.name} was not run: {parsed.reason}{usage}", False)
        judged = self.tools.validate(call.name, parsed)
        if isinstance(judged, Invalid):
            return Observation(judged.text, False)
        if judged.tool.tier == "consequential":
            return Observation(f"{call.name} was not run: it needs a person's approval, which this task has not", False)
        key = f"{judged.tool.tier}:{judged.tool.name}:{judged.canonical}"
        self._seen[key] += 1
        if self._seen[key] > REPEATS_ALLOWED:
            return Observation(
                f"{call.name} was not run: the same call was made {REPEATS_ALLOWED} times already. "
                "It would say the same again: use what it said, or do something else.",
                False,
            )
        return judged

    @property
    def _key(self) -> str:
        """Idempotency keys come from the step's identity, never from a provider's call id."""
        at = self.work.assignment
        return f"{at.task}/{at.step}/{at.begun}"
