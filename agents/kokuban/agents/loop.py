"""The bounded agent loop (DESIGN 6). The runtime, not the model, holds schemas, permissions, budgets and the end.

    ready → model → (final | validate) → policy → pending → execute → observe → model …

Every exit is named: the accepted value; `StepFailed` with steps, tool_calls, tokens, budget, deadline, model or tool;
`Parked` when the step waits for a person.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from kokuban.agents._gates import answer_of_person, decision_on_call, denied, shown, told
from kokuban.agents._tape import InDoubt, describe, fingerprint, named
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
    parse_arguments,
    worst_request_tokens,
)
from kokuban.agents.tools import ASK_PERSON, Arguments, Invalid, Observation, Registry, ToolContext, execute
from kokuban.blackboard.core.ledger import Shortage
from kokuban.schemas import Opens, Usage

REPEATS_ALLOWED = 2
OUTCOME_UNKNOWN = (
    "It was tried twice and its outcome is unknown: it may have been done. "
    "Calling it again with the same arguments is safe; other arguments would do another thing."
)
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
        """The accepted value. Raises `StepFailed`, `Parked`, `Fenced`, `InDoubt`, `BusError`."""
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
        tokens_in = worst_request_tokens(request)
        worst = tokens_in + request.max_output_tokens
        price = meter.worst(tokens_in, request.max_output_tokens)
        seen = fingerprint(msgspec.to_builtins(request))
        opening = Opens(
            work.tape.next_call, "model", arguments=describe(seen), reserved_tokens=worst, reserved_micros=price or 0
        )
        if not work.tape.holds(opening):
            await self._reserve(worst, price)
        if work.seconds_left <= 0:
            raise StepFailed("deadline", self._without(f"not done within the step's {work.ledger.allotment.seconds} s"))
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
            spent = attempt.usage
            if spent is not None:
                cost = cost + Usage(
                    spent.input_tokens, spent.output_tokens, estimated=spent.estimated, micros=meter.cost(spent) or 0
                )

        async def again() -> bool:
            """Room for one more try beside what the tries so far have cost, and a line that says so."""
            if not cost.tokens and not cost.micros:
                return True
            ledger, tokens, micros = work.ledger, worst + cost.tokens, (price or 0) + cost.micros
            ledger.settle(Usage())
            if ledger.reserve_model(tokens, None if price is None else micros) is not None:
                return False
            await work.tape.again(tokens, micros)
            return True

        async def perform() -> tuple[object, Usage]:
            try:
                reply = await meter.call(
                    request, context, deadline=work.deadline, on_delta=self._show, on_attempt=count, may_retry=again
                )
            except BaseException:
                await work.tape.lost(cost)
                raise
            return msgspec.to_builtins(reply), cost

        try:
            played = await work.tape.call(lambda _: opening, perform)
        except ModelDeadline as error:
            raise StepFailed("deadline", f"the model had not answered when the step's time was up: {error}") from error
        except ModelError as error:
            raise StepFailed("model", str(error), retryable=error.retryable) from error
        reply = msgspec.convert(played.result, Reply)
        if reply.truncated:  # whatever was cut, its calls may look whole and are not to be believed
            reply = replace(reply, calls=tuple(replace(c, problem=c.problem or CUT_OFF) for c in reply.calls))
        work.ledger.settle(played.usage)
        return reply

    async def _reserve(self, worst: int, price: int | None) -> None:
        """Take room for one model turn; ask for more where there is none. Raises `StepFailed`."""
        work, ledger = self.work, self.work.ledger
        while (short := ledger.reserve_model(worst, price)) is not None:
            if not await self._more(short, worst, price or 0):
                break
        if short is None:
            return
        if short == "price":
            raise StepFailed("budget", self._without(_unpriced(work)), retryable=False)
        if short == "steps":
            raise StepFailed("steps", self._without(f"no result after {ledger.allotment.steps} model turns"))
        if short == "money":
            left, limit = ledger.left_micros / 1e6, (ledger.allotment.micros or 0) / 1e6
            text = f"${left:.6f} are left of ${limit:.6f}; this turn may need ${(price or 0) / 1e6:.6f}"
            raise StepFailed("budget", self._without(text))
        text = f"{ledger.left_tokens} tokens are left of {ledger.allotment.tokens}; this turn may need {worst}"
        raise StepFailed("tokens", self._without(text))

    async def _more(self, short: Shortage, worst: int = 0, price: int = 0) -> bool:
        """Ask the one authority for more of what is short. False when there is no use in it, or the answer is no."""
        work = self.work
        wanted = work.ledger.wanted(short, work.assignment.order.more, worst_tokens=worst, worst_micros=price)
        if wanted is None or wanted == work.ledger.allotment:
            return False
        granted = await work.tape.ask(wanted)
        if granted is None or granted == work.ledger.allotment:
            return False
        work.ledger.allotment = granted
        return True

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
        work, tool, gate = self.work, judged.tool, None
        key = work.tape.key(tool.name, judged.canonical)
        opening = Opens(
            work.tape.next_call, "tool", tool.name, describe(shown(dict(judged.values))), key, effect=tool.effect
        )
        await self._reserve_tool(opening)
        if tool.name == ASK_PERSON.name:
            answer = await answer_of_person(work, str(judged.values["question"]))
            return Observation(await told(work, tool.name, answer, Usage(tool_calls=1)), answer.outcome == "answered")
        ruling = work.policy.judge(work.who, tool, judged.values)
        if not work.tape.holds(opening):  # else it was run, so it had been allowed
            if ruling.outcome == "deny":
                return Observation(await denied(work, judged, ruling, Usage(tool_calls=1)), False)
            if ruling.outcome == "approve":
                decided = await decision_on_call(work, judged, key, ruling)
                if decided.outcome != "approved":
                    return Observation(await told(work, tool.name, decided), False)
                gate = decided.gate
        return await self._execute(judged, replace(opening, gate=gate, ruling=str(ruling)))

    async def _reserve_tool(self, opening: Opens) -> None:
        ledger, tape = self.work.ledger, self.work.tape
        while not tape.holds(opening) and (short := ledger.reserve_tool()) is not None:
            if not await self._more(short):
                text = f"no result after {ledger.allotment.tool_calls} tool calls"
                raise StepFailed("tool_calls", self._without(text))

    async def _execute(self, judged: Arguments, opening: Opens) -> Observation:
        tool, context, cost = judged.tool, self.context, Usage(tool_calls=1)
        assert context is not None
        elsewhere = tool.effect == "keyed" and not tool.on_files
        if elsewhere:
            context = dataclasses.replace(context, key=opening.key)

        async def perform() -> tuple[object, Usage]:
            done = await execute(judged, context)
            if elsewhere and not done.known:  # the same call still: whoever honours its key does it once
                done = await execute(judged, context)
            if tool.effect == "other" and not done.known:
                raise InDoubt(f"{named(opening)} was begun and its outcome is unknown: {done.text}")
            text = f"{done.text}. {OUTCOME_UNKNOWN}" if elsewhere and not done.known else done.text
            return {"text": text, "ok": done.ok}, cost

        played = await self.work.tape.call(
            lambda _: opening, perform, repeatable=tool.effect != "other", keyed=elsewhere
        )
        if played.replayed and tool.on_files:
            await execute(judged, context)  # the checkout is new: bring it to where the journal says it was
        self.work.ledger.settle(cost)
        observation = Observation(played.result["text"], played.result["ok"])
        if tool.tier != "read" and observation.ok:
            self._seen = Counter({k: n for k, n in self._seen.items() if not k.startswith("read:")})
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
        key = f"{judged.tool.tier}:{judged.tool.name}:{judged.canonical}"
        self._seen[key] += 1
        if self._seen[key] > REPEATS_ALLOWED:
            return Observation(
                f"{call.name} was not run: the same call was made {REPEATS_ALLOWED} times already. "
                "It would say the same again: use what it said, or do something else.",
                False,
            )
        return judged


def _unpriced(work: Work) -> str:
    assert work.meter is not None
    name = work.meter.model.name
    return (
        f"the task has a money limit and the price of {name} is not known; declare it with "
        f"--price '{name}=IN,OUT' (dollars per million tokens), or name a model that has a price"
    )
