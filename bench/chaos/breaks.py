"""Rules broken on purpose: one patched function at a time, in the real processes, to see that the checker tells.

Nothing of this is in the product: only the processes of a chaos run look here, when they are told to.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WORKERS = "planner coder verifier integrator"


@dataclass(frozen=True)
class Break:
    """`roles` patch themselves (`people` is the driver); one of `rules` must be found broken. `kinds` are faults that
    it takes, `words` what every task's goal says, `sort` of which sort the tasks are (see `tasks.py`; the usual mixture
    without)."""

    roles: str
    patch: Callable[[], None]
    rules: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    words: str = ""
    sort: float | None = None


BREAKS: dict[str, Break] = {}


def breaks(
    name: str, roles: str, *rules: str, kinds: tuple[str, ...] = (), words: str = "", sort: float | None = None
) -> Callable[[Callable[[], None]], None]:
    """Registers a patch under a name."""

    def register(patch: Callable[[], None]) -> None:
        BREAKS[name] = Break(roles, patch, rules, kinds, words, sort)

    return register


def apply(name: str, role: str) -> None:
    """Break the rule of this name in this process, if it is for its role. '' breaks nothing."""
    if name and role in BREAKS[name].roles.split():
        BREAKS[name].patch()


def _module(name: str) -> Any:
    """A module whose package has something else of its name."""
    return importlib.import_module(name)


async def unfenced(bus: Any, subject: str, data: bytes, *, op: str = "", fence: Any = None, **rest: Any) -> Any:
    """As the product's `write`, without asking the server to check anything."""
    from kokuban.blackboard.wire import Written

    return Written((await bus.patiently(lambda: bus.publish(subject, data, {}))).seq)


# ---------------------------------------------------------------------- owners


@breaks("claim-unfenced", WORKERS, "owner", "register", kinds=("redeliver", "kill worker"))
def _claim_unfenced() -> None:
    from kokuban.agents import _owner

    right = _owner.write

    async def write(bus: Any, subject: str, data: bytes, **rest: Any) -> Any:
        return await (unfenced if b'"type":"step.claimed"' in data else right)(bus, subject, data, **rest)

    _owner.write = write


@breaks("owner-unfenced", WORKERS, "owner", "register", kinds=("stop coder",), words="keyed " * 25)
def _owner_unfenced() -> None:
    from kokuban.agents import _owner

    right = _owner.write

    async def write(bus: Any, subject: str, data: bytes, **rest: Any) -> Any:
        return await (right if b'"type":"step.claimed"' in data else unfenced)(bus, subject, data, **rest)

    async def always(self: Any) -> bool:
        return True

    _owner.write = write
    _owner.Owner.still_owned = always
    _owner.Owner.moved = lambda self: None


@breaks("stored-twice", "coder", "once", "call")
def _stored_twice() -> None:
    from kokuban.agents import _owner

    right = _owner.write

    async def write(bus: Any, subject: str, data: bytes, **rest: Any) -> Any:
        if b'"type":"step.journal"' in data:
            await unfenced(bus, subject, data)
        return await right(bus, subject, data, **rest)

    _owner.write = write


@breaks("body-spoilt", "verifier", "record")
def _body_spoilt() -> None:
    from kokuban.agents import _owner

    right = _owner.seal
    _owner.seal = lambda body, **fields: right(body, **fields).replace(b'"order":', b'"order": ')


# ---------------------------------------------------------------------- leaders


@breaks("epoch-unfenced", "supervisor", "epoch", "order", "end-once", kinds=("stop supervisor", "hold"))
def _epoch_unfenced() -> None:
    from kokuban.supervisor import _lease, service

    async def keep(self: Any) -> None:
        await asyncio.Event().wait()

    service.write = unfenced
    _lease.Leadership.keep = keep


def _at_publish(change: Callable[[Any, Any], Any]) -> None:
    """Change commands right before they are published: `change(task, command)` gives the one to publish."""
    from kokuban.supervisor import service

    right = service.record_of
    service.record_of = lambda task, command, **rest: right(task, change(task, command), **rest)


@breaks("end-twice", "supervisor", "end-once")
def _end_twice() -> None:
    from kokuban.supervisor import service

    right = service.write

    async def write(bus: Any, subject: str, data: bytes, *, op: str, **rest: Any) -> Any:
        done = await right(bus, subject, data, op=op, **rest)
        if b'"type":"task.final"' in data:
            other = secrets.token_hex(12)
            await right(bus, subject, data.replace(op.encode(), other.encode()), op=other, **rest)
        return done

    service.write = write


@breaks("end-forgotten", "supervisor", "ended")
def _end_forgotten() -> None:
    from kokuban.supervisor import service

    right = service.decide

    def decide(board: Any, task: Any, *rest: Any) -> Any:
        decided = right(board, task, *rest)
        forgets = int(task.id[2:6], 16) % 4 == 0
        return decided._replace(commands=[c for c in decided.commands if not (forgets and type(c).__name__ == "End")])

    service.decide = decide


@breaks("unsealed", "supervisor", "sealed", sort=0.25)
def _unsealed() -> None:
    from kokuban.schemas import Final
    from kokuban.supervisor._commands import End

    decide = _module("kokuban.supervisor.decide")
    decide._ending = lambda task, doom: [End(Final(doom.state, str(doom), usage=task.usage))]


@breaks("end-otherwise", "supervisor", "ending", words="keyed " * 60, sort=0.25)
def _end_otherwise() -> None:
    from msgspec.structs import replace

    from kokuban.supervisor._commands import End

    def change(task: Any, command: Any) -> Any:
        begun = isinstance(command, End) and task.ending is not None
        return End(replace(command.body, state="failed")) if begun else command

    _at_publish(change)


@breaks("cancel-ignored", "supervisor", "cancel", words="keyed " * 60, sort=0.25)
def _cancel_ignored() -> None:
    decide = _module("kokuban.supervisor.decide")
    decide._ends_from_outside = lambda board, task, now: None


@breaks("dependency-ignored", "supervisor", "dependency", sort=0.53)
def _dependency_ignored() -> None:
    decide = _module("kokuban.supervisor.decide")
    decide._blocked = lambda board, task: False


@breaks("wrong-usage", "supervisor", "usage")
def _wrong_usage() -> None:
    from msgspec.structs import replace

    from kokuban.schemas import Usage
    from kokuban.supervisor._commands import End

    _at_publish(lambda task, c: End(replace(c.body, usage=Usage())) if isinstance(c, End) else c)


@breaks("wrong-input", "supervisor", "counted")
def _wrong_input() -> None:
    from msgspec.structs import replace

    from kokuban.supervisor._commands import Order

    def change(task: Any, command: Any) -> Any:
        if not isinstance(command, Order):
            return command
        moved = tuple(replace(ref, seq=ref.seq - 1) for ref in command.order.inputs)
        return command._replace(order=replace(command.order, inputs=moved))

    _at_publish(change)


@breaks("wrong-proof", "supervisor", "proof")
def _wrong_proof() -> None:
    from msgspec.structs import replace

    from kokuban.supervisor._commands import End

    def change(task: Any, command: Any) -> Any:
        if not isinstance(command, End) or command.body.state != "done":
            return command
        other = next(ref for d, (artifact, _) in task.verdicts.items() for ref in [artifact.ref]
                     if ref.step != command.body.verdict.step)  # fmt: skip
        return End(replace(command.body, verdict=other))

    _at_publish(change)


# ---------------------------------------------------------------------- results


@breaks("digest-forged", "supervisor coder", "digest")
def _digest_forged() -> None:
    from kokuban.agents import _owner
    from kokuban.blackboard.core import _steps

    _owner.digest = lambda data: "sha256:" + "0" * 64
    _steps.reasons_against = lambda *given: ()


@breaks("foreign-citation", "supervisor integrator", "admission")
def _foreign_citation() -> None:
    from msgspec.structs import replace

    from kokuban.agents.roles import integrator
    from kokuban.blackboard.core import _steps

    right = integrator.Deliverable

    def deliverable(**fields: Any) -> Any:
        foreign = replace(fields["cites"][0], digest="sha256:" + "0" * 64)
        return right(**{**fields, "cites": (*fields["cites"], foreign)})

    integrator.Deliverable = deliverable
    _steps.reasons_against = lambda *given: ()


@breaks("verdict-ignored", "supervisor verifier", "verdict")
def _verdict_ignored() -> None:
    from kokuban.agents.roles import verifier
    from kokuban.supervisor import _orders, _wants

    right = verifier.Verdict
    verifier.Verdict = lambda ref, passed, *rest, **fields: right(ref, False, *rest, **fields)
    verifier.Critique = lambda *given: None
    verifier.Verifier.perform = _without_critiques(verifier.Verifier.perform)
    _wants.failed_verdict = _orders.failed_verdict = lambda task, name: None


def _without_critiques(perform: Any) -> Any:
    async def instead(self: Any, work: Any) -> Any:
        from kokuban.agents.roles import verifier

        verifier.Output = lambda name, artifact, *rest: _output(name, artifact, *rest)
        return [output for output in await perform(self, work) if output is not None]

    def _output(name: str, artifact: Any, *rest: Any) -> Any:
        from kokuban.agents._output import Output

        return None if artifact is None else Output(name, artifact, *rest)

    return instead


@breaks("unjudged", "supervisor", "verdict")
def _unjudged() -> None:
    from kokuban.supervisor import _wants

    right = _wants._add

    def add(task: Any, crew: Any, want: Any, before: Any, found: Any, *rest: Any) -> bool:
        if want.step == _wants.INTEGRATE:
            return bool(right(task, crew, want, before, found, *rest))
        found.append(want)
        return _wants.is_current(task, want)

    _wants._add = add


# ---------------------------------------------------------------------- calls and effects


@breaks("unjournalled", "coder", "effect-journalled")
def _unjournalled() -> None:
    from kokuban.agents._owner import Owner

    async def journal(self: Any, *given: Any) -> int:
        return 0

    Owner.journal = journal


@breaks("bought-again", "coder", "replay", kinds=("stop coder",), words="keyed " * 25)
def _bought_again() -> None:
    from kokuban.agents._tape import Tape

    async def load(self: Any) -> None:
        return None

    Tape.load = load


@breaks("blind-retry", "coder", "in-doubt", "effect-once", kinds=("stop coder",), words="other " * 12)
def _blind_retry() -> None:
    from kokuban.agents._tape import Tape

    Tape._check_not_begun = lambda self, description, same_key: None


@breaks("doubt-repeated", "supervisor coder", "in-doubt", words="other " * 12)
def _doubt_repeated() -> None:
    from kokuban.agents import worker
    from kokuban.schemas import Failed

    worker.failure_of = lambda error, seconds, last, *rest: Failed("model", "as if nothing had been begun", True, last)
    _module("kokuban.supervisor.decide")._refuse_doubt = lambda task: None


@breaks("never-sent", "coder", "effect-lost")
def _never_sent() -> None:
    import effects

    async def send(self: Any, tool: str, key: str) -> int:
        return 1

    effects.EffectCoder._send = send


# ---------------------------------------------------------------------- limits and budgets


@breaks("limits-ignored", "supervisor", "limit", words="keyed " * 25)
def _limits_ignored() -> None:
    from kokuban.supervisor._room import Room

    Room.of_role = lambda self, role, crew: 100
    Room.is_full = lambda self, tenant, under_way: False


@breaks("budget-ignored", "supervisor", "budget", words="keyed model model", sort=0.1)
def _budget_ignored() -> None:
    decide = _module("kokuban.supervisor.decide")
    decide.carve = lambda board, task, order, *rest, **more: order


@breaks("allotment-ignored", "coder", "allotment", words="model " * 12, sort=0.1)
def _allotment_ignored() -> None:
    from kokuban.blackboard.core.ledger import Ledger

    Ledger.reserve_model = lambda self, *given: None


# ---------------------------------------------------------------------- people


@breaks("approval-forged", "supervisor", "gate-decision", sort=0.45)
def _approval_forged() -> None:
    from kokuban.supervisor import _gates

    _gates._outcome = lambda gate, now, known: "approved"


@breaks("approval-skipped", "supervisor", "approval", sort=0.35)
def _approval_skipped() -> None:
    from kokuban.supervisor import _wants

    _wants._approved = lambda *given: True


@breaks("gate-skipped", "coder", "gate-used", sort=0.45)
def _gate_skipped() -> None:
    import effects
    from msgspec.structs import replace

    async def approved(self: Any, work: Any, opening: Any) -> Any:
        at = work.assignment
        return replace(opening, gate=f"{at.step}-{at.begun}-{opening.call}")

    effects.EffectCoder._approved = approved


@breaks("votes-twice", "people", "gate-vote", sort=0.45)
def _votes_twice() -> None:
    from kokuban.blackboard import _people

    _people.write = unfenced


@breaks("bound-forged", "supervisor", "gate-bound", sort=0.45)
def _bound_forged() -> None:
    from msgspec.structs import replace

    from kokuban.supervisor._commands import Decide

    def change(task: Any, command: Any) -> Any:
        if not isinstance(command, Decide):
            return command
        return command._replace(body=replace(command.body, bound="sha256:" + "0" * 64))

    _at_publish(change)


@breaks("accepted-twice", "people", "accepted-once", "once")
def _accepted_twice() -> None:
    from kokuban.blackboard import client

    right = client.write

    async def write(bus: Any, subject: str, data: bytes, *, op: str, fence: Any, **rest: Any) -> Any:
        done = await right(bus, subject, data, op=op, fence=fence, **rest)
        await unfenced(bus, subject, data.replace(op.encode(), secrets.token_hex(12).encode()))
        return done

    client.write = write
