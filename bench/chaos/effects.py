"""A role program with effects in the world: what a coder's step does in a chaos run. No real model is asked.

The words of the task's goal say what: `keyed` and `other` are effects on the endpoint that honours keys and on the one
that does not, `asked` is one that people must approve, `model` a call that costs tokens.
"""

from __future__ import annotations

import asyncio
import zlib

import httpx
from msgspec.structs import replace

from kokuban.agents._output import Output
from kokuban.agents._tape import InDoubt, describe
from kokuban.agents._work import StepFailed, Work
from kokuban.blackboard.workspace import File, changes, tree_digest, unified
from kokuban.schemas import Gate, Opens, Patch, Usage, digest, encode

KEYED, OTHER, ASKED = "keyed_effect", "other_effect", "asked_effect"
EFFECTS = {KEYED: "keyed", OTHER: "other", ASKED: "keyed"}
TOOLS = {"keyed": KEYED, "other": OTHER, "asked": ASKED}
WORST_TOKENS = 4_000


class EffectCoder:
    """Does what the words say, in order, and writes what came of it into a file."""

    prompt_version = None

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._client = httpx.AsyncClient(timeout=10, limits=httpx.Limits(max_keepalive_connections=0))

    async def perform(self, work: Work) -> list[Output]:
        start, onto = await work.start()
        lines = []
        for word in work.spec.goal.split():
            if word in TOOLS:
                lines.append(await self._effect(work, TOOLS[word]))
            elif word == "model":
                lines.append(await self._model(work))
        step = work.assignment.step
        text = f"{work.spec.goal}\n" + "\n".join(lines) + "\n"
        files = dict(sorted({**start, f"{step}.txt": File(text.encode(), False)}.items()))
        patch = Patch(
            base=tree_digest(start), result=tree_digest(files), diff=unified(start, files), onto=onto,
            changes=await work.content.to_wire(changes(start, files)),
        )  # fmt: skip
        return [Output("patch", patch, tuple(ref.digest for ref in work.assignment.order.inputs))]

    # ------------------------------------------------------------------ effects

    async def _effect(self, work: Work, tool: str) -> str:
        at, tape = work.assignment, work.tape
        key = work.key(tool, {"of": at.task})
        opening = Opens(tape.next_call, "tool", tool, describe({"of": at.task}), key=key, effect=EFFECTS[tool])
        if not tape.holds(opening):
            if work.ledger.reserve_tool() is not None:
                raise StepFailed("tool_calls", "no tool call is left")
            if tool == ASKED:
                opening = await self._approved(work, opening)

        async def perform() -> tuple[object, Usage]:
            return {"number": await self._send(tool, key), "ok": True}, Usage(tool_calls=1)

        keyed = EFFECTS[tool] == "keyed"
        played = await tape.call(lambda n: opening, perform, repeatable=keyed, keyed=keyed)
        work.ledger.settle(played.usage)
        return f"{tool} {played.result['number']}"

    async def _approved(self, work: Work, opening: Opens) -> Opens:
        """The opening with its approval; the step waits when there is none yet."""
        at = work.assignment
        arguments = describe({"of": at.task})
        gate = Gate(
            f"{at.step}-{at.begun}-{opening.call}", "call", f"May {opening.tool} be called?", opening.tool, arguments,
            digest(bytes(arguments)), call=opening.call, key=opening.key, need=work.spec.votes,
            expires_seconds=work.spec.approval_seconds,
        )  # fmt: skip
        decided = next((d for d in at.order.decided if d.gate == gate.id), None)
        if decided is None:
            raise await work.tape.park(gate)
        if decided.outcome != "approved" or decided.bound != digest(encode(gate)):
            raise StepFailed("tool", f"{opening.tool} was not called: {decided.outcome}", retryable=False)
        return replace(opening, gate=gate.id)

    async def _send(self, tool: str, key: str) -> int:
        path = "/other" if tool == OTHER else "/keyed"
        while True:
            try:
                answer = await self._client.post(self._endpoint + path, headers={"Idempotency-Key": key})
                return int(answer.json()["number"])
            except httpx.HTTPError as error:
                if tool == OTHER:
                    raise InDoubt(f"{key}: the other side did not answer: {error!r}") from error
            await asyncio.sleep(0.1)

    # ------------------------------------------------------------------ money

    async def _model(self, work: Work) -> str:
        """A call that is reserved at its worst and costs less; asks for more when that does not fit."""
        tape, ledger = work.tape, work.ledger
        opening = Opens(tape.next_call, "model", arguments=describe("a request"), reserved_tokens=WORST_TOKENS)
        while not tape.holds(opening) and (short := ledger.reserve_model(WORST_TOKENS)) is not None:
            asks = ledger.wanted(short, work.assignment.order.more, worst_tokens=WORST_TOKENS)
            granted = await tape.ask(asks) if asks is not None else None
            if granted is None or granted == ledger.allotment:
                raise StepFailed("tokens", f"{short} are short", retryable=False)
            ledger.allotment = granted
        cost = Usage(500 + zlib.crc32(opening.call.to_bytes(4, "big")) % 2_000, 100, 1)

        async def perform() -> tuple[object, Usage]:
            await asyncio.sleep(0.05)
            return {"content": "said"}, cost

        played = await tape.call(lambda n: opening, perform)
        ledger.settle(played.usage)
        return "model said"
