"""One tool call: validated, judged, written down, executed, tried again where that is safe, and told as data."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from kokuban.agents._asking import Asking
from kokuban.agents._gates import answer_of_person, decision_on_call, denied, refused_before, shown, told
from kokuban.agents._machine import Machine, State
from kokuban.agents._repeats import Repeats
from kokuban.agents._tape import InDoubt, describe, named
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.models import Call, Problem, parse_arguments
from kokuban.agents.sandbox import clip
from kokuban.agents.tools import ASK_PERSON, Arguments, Invalid, Observation, Registry, ToolContext, ToolError, execute
from kokuban.agents.tools._registry import hidden
from kokuban.blackboard.wire import crash_point
from kokuban.schemas import Opens, Trust, Usage, least_trusted

TRIES = 4
"""How often a call that failed for the moment is made at most, by all owners of the work together."""
PAUSE_SECONDS = 0.2
OUTCOME_UNKNOWN = (
    "It was tried twice and its outcome is unknown: it may have been done. "
    "Calling it again with the same arguments is safe; other arguments would do another thing."
)


@dataclass
class Acting:
    """Makes the calls that a model asks for, as far as they may be made."""

    work: Work
    asking: Asking
    tools: Registry
    context: ToolContext | None
    machine: Machine = field(default_factory=Machine)
    repeats: Repeats = field(default_factory=Repeats)

    async def act(self, call: Call) -> Observation:
        """One tool call: parse once, validate, policy, pending, execute. What is refused comes back as data. Raises
        `StepFailed` for a terminal failure, `Parked`, `Fenced`, `InDoubt`, `BusError`."""
        judged = self._judge(call)
        if isinstance(judged, Observation):
            self.repeats.heard(call.name, judged.text)
            return judged
        work, tool, gate, go = self.work, judged.tool, None, self.machine.go
        key = work.tape.key(tool.name, judged.canonical)
        opening = Opens(
            work.tape.next_call, "tool", tool.name, describe(shown(dict(judged.values))), key, effect=tool.effect
        )
        go(State.POLICY)
        before = await refused_before(work, judged)
        if before is not None:
            return Observation(before, False)
        await self._reserve(opening)
        if tool.name == ASK_PERSON.name:
            answer = await answer_of_person(work, str(judged.values["question"]))
            text = await told(work, tool.name, answer, Usage(tool_calls=1))
            work.saw(tool.trust)
            return Observation(text, answer.outcome == "answered", trust=tool.trust)
        ruling = work.policy.judge(work.who, tool, judged.values)
        if not work.tape.holds(opening):  # else it was run, so it had been allowed
            if ruling.outcome == "deny":
                return Observation(await denied(work, judged, ruling, Usage(tool_calls=1)), False)
            if ruling.outcome == "approve":
                decided = await decision_on_call(work, judged, key, ruling)
                if decided.outcome != "approved":
                    return Observation(await told(work, tool.name, decided, judged=judged), False)
                gate = decided.gate
        go(State.PENDING)
        observation = await self._execute(judged, replace(opening, gate=gate, ruling=str(ruling)))
        work.saw(observation.trust)
        self.repeats.observed(judged, observation)
        if observation.terminal:
            text = f"{tool.name} cannot be used in this step: {observation.text}"
            raise StepFailed("tool", self.asking.without(text), retryable=False)
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
        refusal = self.repeats.refusal(judged)
        return judged if refusal is None else Observation(refusal, False)

    async def _reserve(self, opening: Opens) -> None:
        ledger, tape = self.work.ledger, self.work.tape
        while not tape.holds(opening) and (short := ledger.reserve_tool()) is not None:
            if not await self.asking.more(short):
                text = f"no result after {ledger.allotment.tool_calls} tool calls"
                raise StepFailed("tool_calls", self.asking.without(text))

    async def _execute(self, judged: Arguments, opening: Opens) -> Observation:
        tool, context, cost = judged.tool, self.context, Usage(tool_calls=1)
        assert context is not None
        before = frozenset(self.work.kept_outputs)
        elsewhere = tool.effect == "keyed" and not tool.on_files
        reconciles = tool.effect == "other" and tool.reconcile is not None
        if elsewhere or reconciles:
            context = dataclasses.replace(context, key=opening.key)
        found: Observation | None = None
        if reconciles and not self.work.tape.holds(opening) and self.work.tape.begun(opening):
            found = await self._reconciled(judged, context, opening, f"{named(opening)} was begun before")
            self.work.tape.resolved(opening)
            # Of one that was done nothing more is made: opened and left, it is looked at again.
            effect = replace(opening, reconciled="done", effect="read")
            opening = effect if found is not None else replace(opening, reconciled="undone")

        async def perform() -> tuple[object, Usage]:
            done = found or await self._try(judged, context, opening)
            if reconciles and not done.known:
                seen = await self._reconciled(judged, context, opening, f"{named(opening)}: {done.text}")
                done = seen or Observation(f"{done.text}; it was not done", False)
            if elsewhere and not done.known:  # the same call still: whoever honours its key does it once
                done = await self._try(judged, context, opening)
            if tool.effect == "other" and not done.known:
                raise InDoubt(f"{named(opening)} was begun and its outcome is unknown: {done.text}")
            text = f"{done.text}. {OUTCOME_UNKNOWN}" if elsewhere and not done.known else done.text
            result: dict[str, Any] = {"text": text, "ok": done.ok, "trust": done.trust}
            if done.terminal:
                result["terminal"] = True
            if kept := sorted(self.work.kept_outputs - before):
                result["kept"] = kept
            return result, cost

        played = await self.work.tape.call(
            lambda _: opening, perform, repeatable=opening.effect != "other", keyed=elsewhere
        )
        if played.replayed and tool.on_files:
            await execute(judged, context)  # the checkout is new: bring it to where the journal says it was
        self.work.ledger.settle(cost)
        result = played.result
        self.work.kept_outputs.update(result.get("kept", ()))
        trust = result.get("trust", tool.trust)  # of what was seen then, whatever is declared by now
        return Observation(result["text"], result["ok"], terminal=bool(result.get("terminal")), trust=trust)

    async def _once(self, judged: Arguments, context: ToolContext) -> Observation:
        """The call, with the credentials that its tool declared and nobody else sees."""
        try:
            secrets = self.work.secrets(judged.tool)
        except ToolError as error:
            return Observation(str(error), False, terminal=error.terminal)
        labels: list[Trust] = []
        policy = self.work.policy  # as it is now: it may have changed since the step began
        given = dataclasses.replace(
            context, secrets=secrets, trust=self.work.trust, saw=labels.append, egress=policy.egress, local=policy.local
        )
        done = await execute(judged, given)
        return dataclasses.replace(done, trust=least_trusted(done.trust, *labels))

    async def _reconciled(
        self, judged: Arguments, context: ToolContext, opening: Opens, doubt: str
    ) -> Observation | None:
        """What became of a call of unknown outcome, as its tool's own look shows; None when it was not done. Raises
        `InDoubt` when that cannot be told."""
        look = judged.tool.reconcile
        assert look is not None
        tried = 0
        while True:
            tried += 1
            crash_point("reconcile:before")
            try:
                context = dataclasses.replace(context, secrets=self.work.secrets(judged.tool))
                async with asyncio.timeout(judged.tool.timeout_seconds):
                    said = await look(context, judged.values)
                crash_point("reconcile:after")
                if said is None:
                    return None
                return Observation(clip(hidden(said, context.secrets), judged.tool.result_cap_bytes), True)
            except ToolError as error:
                pause = max(PAUSE_SECONDS * 2**tried, error.retry_after_seconds or 0.0)
                if not error.transient or tried >= TRIES or pause >= self.work.seconds_left:
                    text = hidden(str(error), context.secrets)
                    raise InDoubt(f"{doubt}; whether it was done cannot be told: {text}") from error
            except Exception as error:  # details may hold what nobody may see
                raise InDoubt(f"{doubt}; whether it was done cannot be told ({type(error).__name__})") from error
            await asyncio.sleep(pause)

    async def _try(self, judged: Arguments, context: ToolContext, opening: Opens) -> Observation:
        """Make the call; while it fails for the moment, and is one that may be made again, again after a pause. Each
        try is a line of the journal, so that owners who follow go on counting."""
        tape, tool, go = self.work.tape, judged.tool, self.machine.go
        while True:
            if self.machine.state is not State.EXECUTE:
                go(State.EXECUTE)
            crash_point("tool:before")
            done = await self._once(judged, context)
            crash_point("tool:after")
            tries = tape.tries(opening)
            if not done.transient or tool.effect == "other":
                return done
            pause = PAUSE_SECONDS * 2 ** (tries - 1) * (0.5 + random.random())
            if done.retry_after_seconds is not None:
                pause = max(pause, done.retry_after_seconds)
            if tries >= TRIES or pause >= self.work.seconds_left:
                often = f"it was tried {tries} times" if tries > 1 else "there is no time to try again"
                return dataclasses.replace(done, text=f"{done.text} ({often}; go on without it, or another way)")
            go(State.RETRY)
            await asyncio.sleep(pause)
            crash_point("retry:before")
            await tape.once_more()
            crash_point("retry:after")
