"""A loop under a test's control: a model that says what the test wants, tools that count their runs, a real board."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kokuban.agents._tape import Parked
from kokuban.agents._work import Work
from kokuban.agents.loop import Calls, Final, Loop, Wrong
from kokuban.agents.models import Call, CallContext, Message, Meter, Prices, Reply, Request, Usage
from kokuban.agents.tools import ASK_PERSON, Observation, Registry, Tool, ToolContext, ToolError
from kokuban.schemas import Allotment, Decided, Gate, Waiting, digest, encode
from support.desk import Desk

OBJECT = {
    "type": "object", "additionalProperties": False, "required": ["path"],
    "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
}  # fmt: skip
OPTIONAL = {"type": "object", "properties": {"limit": {"type": "integer"}}}


class Says:
    """A model that says what a test wants, in order; the last for ever."""

    name = "test"
    context_tokens = None

    def __init__(self, *replies: Reply | BaseException) -> None:
        self.replies = list(replies)
        self.asked = 0
        self.requests: list[Request] = []

    async def call(self, request: Request, context: CallContext, progress: object) -> Reply:
        self.asked += 1
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def aclose(self) -> None: ...


def says(*calls: Call, content: str = "", truncated: bool = False, tokens: int = 10) -> Reply:
    return Reply(content=content, usage=Usage(tokens, 0), model="test", calls=calls, truncated=truncated)


def call(name: str, arguments: Any = "", *, problem: str | None = None) -> Call:
    return Call(f"id-{name}", name, arguments, problem)


DONE = says(content="done")


class Talk:
    """A dialog that shows nothing and keeps what it is told."""

    def __init__(self, *, object_times: int = 0) -> None:
        self.seen: list[Observation] = []
        self.objections: list[str] = []
        self._object_times = object_times
        self._turn = 0

    async def request(self) -> Request:
        self._turn += 1
        return Request(messages=(Message("user", f"turn {self._turn}"),), max_output_tokens=100)

    def read(self, reply: Reply) -> Final | Calls | Wrong:
        if reply.calls:
            return Calls(reply.calls)
        return Final(reply.content) if reply.content else Wrong("say something")

    async def accept(self, value: Any) -> str | None:
        self._object_times -= 1
        return "not yet" if self._object_times >= 0 else None

    async def observe(self, call: Call, observation: Observation) -> None:
        self.seen.append(observation)

    def standing(self) -> str:
        return ""

    def finished(self) -> Final | None:
        return None

    def object(self, text: str) -> None:
        self.objections.append(text)


class Bench:
    """Work with tools that count their runs, and a loop over it."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work = work
        self.ran: list[tuple[str, Mapping[str, Any]]] = []
        self.keys: list[str] = []
        self.context = ToolContext(folder, folder)
        self.tools = Registry([
            Tool("look", "", OBJECT, self._run("look"), "read", "read"),
            Tool("list", "", OPTIONAL, self._run("list"), "read", "read"),
            Tool("change", "", OBJECT, self._run("change"), tier="write", effect="keyed", on_files=True),
            Tool("mail", "", OPTIONAL, self._run("mail"), tier="write", effect="other"),
            Tool("wire_money", "", OPTIONAL, self._run("wire_money"), tier="consequential", effect="other"),
            Tool("fails", "", OPTIONAL, self._run("fails"), "read", "read"),
            Tool("post", "", OPTIONAL, self._run("post"), tier="write", effect="keyed"),
            Tool("pay", "", OPTIONAL, self._run("pay"), tier="consequential", effect="keyed"),
            ASK_PERSON,
        ])  # fmt: skip

    def _run(self, name: str) -> Any:
        async def run(context: ToolContext, arguments: Mapping[str, Any]) -> str:
            self.ran.append((name, dict(arguments)))
            self.keys.append(context.key)
            if name == "fails":
                raise ToolError("it cannot")
            return f"{name} ran"

        return run

    async def run(self, *replies: Reply | BaseException, talk: Talk | None = None, prices: Prices | None = None) -> Any:
        self.model = Says(*replies)
        self.work.meter = Meter(self.model, prices=prices)
        return await self.loop(talk).run()

    def loop(self, talk: Talk | None = None) -> Loop:
        """A loop over this work and its meter."""
        self.talk = talk or Talk()
        self.last = Loop(self.work, self.talk, self.tools, self.context)
        return self.last

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ran]


class Benches:
    """A desk that gives benches: each is the next attempt at one step, the one before is taken back first."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk, self.folder, self.fence, self.attempt = desk, folder, 0, 0

    async def __call__(
        self, *, resumes: bool = False, decided: tuple[Decided, ...] = (), order: Mapping[str, Any] | None = None,
        **allotment: Any,
    ) -> Bench:  # fmt: skip
        last = await self.desk.register()
        if last and last[-1].type == "step.claimed":
            reg = await self.desk.release(self.fence)
        else:
            reg = await self.desk.stands_at()
        self.attempt += 1
        seq = await self.desk.order(
            attempt=self.attempt, reg=reg, allotment=Allotment(**allotment), resumes=1 if resumes else 0,
            decided=decided, **(order or {}),
        )  # fmt: skip
        owner = await self.desk.claimed(seq)
        self.fence = owner.fence
        return Bench(await self.desk.work(owner, self.folder), self.folder)

    async def gate(self) -> Gate:
        """What the step waits for, as it stands on the board."""
        record = (await self.desk.register())[-1]
        assert record.type == "step.waiting"
        return msgspec.json.decode(record.body, type=Waiting).gate


async def waits(bench: Bench, *replies: Reply | BaseException) -> Gate:
    """Run until the step waits for a person; what it waits for."""
    try:
        result = await bench.run(*replies)
    except Parked as parked:
        return parked.gate
    raise AssertionError(f"it did not wait: {result!r}")


def decided(gate: Gate, outcome: Any = "approved", text: str = "", *, bound: str | None = None) -> Decided:
    """How the leader says that it ended."""
    return Decided(gate.id, outcome, bound or digest(encode(gate)), text, ("ann",))
