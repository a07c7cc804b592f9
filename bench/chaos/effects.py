"""A role program with an effect in the world: what a coder's step does in a chaos run. No model is asked."""

from __future__ import annotations

import asyncio

import httpx

from kokuban.agents._output import Output
from kokuban.agents._tape import InDoubt, describe
from kokuban.agents._work import StepFailed, Work
from kokuban.blackboard.workspace import File, changes, tree_digest, unified
from kokuban.schemas import Opens, Patch, Usage

KEYED, OTHER = "keyed_effect", "other_effect"
EFFECTS = {KEYED: "keyed", OTHER: "other"}


class EffectCoder:
    """Makes the effects that the task's goal names (`keyed` and `other`, any number), in order, and writes their numbers
    into a file."""

    prompt_version = None

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._client = httpx.AsyncClient(timeout=10, limits=httpx.Limits(max_keepalive_connections=0))

    async def perform(self, work: Work) -> list[Output]:
        start, onto = await work.start()
        wanted = [word for word in work.spec.goal.split() if word in ("keyed", "other")]
        lines = [await self._effect(work, KEYED if word == "keyed" else OTHER) for word in wanted]
        step = work.assignment.step
        text = f"{work.spec.goal}\n" + "\n".join(lines) + "\n"
        files = dict(sorted({**start, f"{step}.txt": File(text.encode(), False)}.items()))
        patch = Patch(
            base=tree_digest(start), result=tree_digest(files), diff=unified(start, files), onto=onto,
            changes=await work.content.to_wire(changes(start, files)),
        )  # fmt: skip
        return [Output("patch", patch, tuple(ref.digest for ref in work.assignment.order.inputs))]

    async def _effect(self, work: Work, tool: str) -> str:
        at, key = work.assignment, ""
        if work.ledger.reserve_tool() is not None:
            raise StepFailed("tool_calls", "no tool call is left")

        def opens(number: int) -> Opens:
            nonlocal key
            key = f"{at.task}/{at.step}/{at.begun}:{number}"
            return Opens(number, "tool", tool, describe({"of": at.task}), key=key)

        async def perform() -> tuple[object, Usage]:
            return {"number": await self._send(tool, key), "ok": True}, Usage(tool_calls=1)

        played = await work.tape.call(opens, perform, repeatable=tool == KEYED)
        work.ledger.settle(played.usage)
        return f"{tool} {played.result['number']}"

    async def _send(self, tool: str, key: str) -> int:
        path = "/keyed" if tool == KEYED else "/other"
        while True:
            try:
                answer = await self._client.post(self._endpoint + path, headers={"Idempotency-Key": key})
                return int(answer.json()["number"])
            except httpx.HTTPError as error:
                if tool == OTHER:
                    raise InDoubt(f"{key}: the other side did not answer: {error!r}") from error
            await asyncio.sleep(0.1)
