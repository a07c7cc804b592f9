"""The bounded agent loop (DESIGN 6). The runtime, not the model, holds schemas, permissions, budgets and the end.

`_machine` draws its states. Every exit is named: the accepted value; `StepFailed` with steps, tool_calls, tokens,
budget, deadline, no_progress, model or tool; `Parked` when the step waits for a person; `InDoubt`, `Fenced`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from kokuban.agents._acting import OUTCOME_UNKNOWN, Acting
from kokuban.agents._asking import CUT_OFF, Asking
from kokuban.agents._machine import Machine, State
from kokuban.agents._repeats import IDLE_ALLOWED, IDLE_TOLD
from kokuban.agents._work import StepFailed, Work
from kokuban.agents.models import Call, ModelOverflow, Reply, Request
from kokuban.agents.tools import Observation, Registry, ToolContext
from kokuban.blackboard.wire import crash_point


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
    what still stands in its way, for people and for the next attempt. One that can make its request smaller has a
    coroutine `compact`, which returns whether it did.
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
    """One step's loop. `tools` are those that the role's contract allows; none for a role that only answers. `prompt`
    is the version of the prompt file that the dialog goes by."""

    work: Work
    dialog: Dialog
    tools: Registry = field(default_factory=Registry)
    context: ToolContext | None = None
    scope: dict[str, Any] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    prompt: str = ""

    def __post_init__(self) -> None:
        self._asking = Asking(self.work, self.scope, lambda: self.dialog.standing(), self.prompt)
        self._acting = Acting(self.work, self._asking, self.tools, self.context, self.machine)

    async def run(self) -> Any:
        """The accepted value. Raises `StepFailed`, `Parked`, `Fenced`, `InDoubt`, `BusError`."""
        try:
            return await self._run()
        finally:
            if self.machine.state is not State.STOP:
                self.machine.go(State.STOP)

    async def _run(self) -> Any:
        dialog, go = self.dialog, self.machine.go
        while True:
            reply = await self._reply()
            go(State.VALIDATE)
            action = dialog.read(reply)
            if isinstance(action, Wrong):
                dialog.object(action.text)
                go(State.READY)
                continue
            if isinstance(action, Calls):
                for call in action.calls:
                    if self.machine.state is not State.VALIDATE:
                        go(State.VALIDATE)
                    observation = await self._acting.act(call)
                    go(State.OBSERVE)
                    await dialog.observe(call, observation)
            final = dialog.finished() if isinstance(action, Calls) else action
            if final is not None:
                objection = await dialog.accept(final.value)
                if objection is None:
                    go(State.STOP)
                    return final.value
                dialog.object(objection)
            elif isinstance(action, Calls):
                self._check_progress()
            go(State.READY)

    async def _reply(self) -> Reply:
        """The model's reply; a request that is too large for it is made smaller once."""
        request = await self.dialog.request()
        self.machine.go(State.MODEL)
        try:
            return await self._asking.ask(request)
        except ModelOverflow as error:
            self.machine.go(State.COMPACT)
            compact = getattr(self.dialog, "compact", None)
            crash_point("compact:before")
            if compact is None or not await compact():
                raise StepFailed("tokens", self._asking.without(f"the request is too large: {error}")) from error
            crash_point("compact:after")
        request = await self.dialog.request()
        self.machine.go(State.MODEL)
        try:
            return await self._asking.ask(request)
        except ModelOverflow as error:
            text = f"the request is too large, made smaller too: {error}"
            raise StepFailed("tokens", self._asking.without(text)) from error

    def _check_progress(self) -> None:
        """Turns that bring nothing new: the model is told, and then the step ends."""
        idle = self._acting.repeats.turn()
        if idle >= IDLE_ALLOWED:
            text = f"nothing new came of {idle} turns in a row"
            raise StepFailed("no_progress", self._asking.without(text))
        if idle == IDLE_TOLD:
            self.dialog.object(
                f"Nothing new came of your last {idle} turns. Do something else, or end with what you have."
            )

    async def ask(self, request: Request) -> Reply:
        """One model turn of a step that asks at points of its own choosing (a workflow). Raises `StepFailed`."""
        try:
            return await self._asking.ask(request)
        except ModelOverflow as error:
            raise StepFailed("tokens", self._asking.without(f"the request is too large: {error}")) from error

    async def act(self, call: Call) -> Observation:
        """One tool call of such a step. Raises `StepFailed`, `Parked`, `Fenced`, `InDoubt`, `BusError`."""
        acting = Acting(self.work, self._asking, self.tools, self.context, repeats=self._acting.repeats)
        acting.machine.go(State.MODEL)
        acting.machine.go(State.VALIDATE)
        return await acting.act(call)


__all__ = ["CUT_OFF", "OUTCOME_UNKNOWN", "Calls", "Dialog", "Final", "Loop", "Wrong"]
