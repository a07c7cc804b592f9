"""The journal: each call opened before it is made and settled once, none bought twice by who takes the work up."""

from __future__ import annotations

from typing import Any

from . import _gates, _money
from ._record import Rec
from ._slices import BadJson, members
from ._state import Call, History, Spent, Step, Task, usage_of


def journal(h: History, task: Task, step: Step, rec: Rec) -> None:
    """One line: settles call k, opens call k + 1, or asks for more. Its writer owns the step."""
    settled(h, task, step, rec)
    _passed_over(step, rec)
    if rec.body.get("settles") is None and rec.body.get("opens") is None and rec.body.get("asks") is None:
        h.wrong("call", rec.seq, f"an empty journal line of step {task.id}/{step.id}")
    if rec.body.get("opens") is not None:
        opened(h, task, step, rec)
    else:
        step.opened = None
    asks = rec.body.get("asks")
    step.asks = asks if isinstance(asks, dict) else None


def _passed_over(step: Step, rec: Rec) -> None:
    """A call that its owner leaves open and goes on from is over, unless it is opened again as it is."""
    opens, number = rec.body.get("opens"), step.opened.number if step.opened is not None else 0
    again = isinstance(opens, dict) and rec.body.get("settles") is None and int(opens.get("call", 0)) == number
    if not again:
        _money.left_open(step)


def opened(h: History, task: Task, step: Step, rec: Rec) -> None:
    """A call is about to be made."""
    opens: dict[str, Any] = rec.body["opens"]
    try:
        arguments = members(rec.parts["opens"]).get("arguments")
    except BadJson as error:
        h.wrong("record", rec.seq, f"the opening of a call is not readable: {error}")
        return
    number, where = int(opens.get("call", 0)), f"step {task.id}/{step.id}"
    reserved = Spent(tokens=int(opens.get("reserved_tokens", 0)), micros=int(opens.get("reserved_micros", 0)))
    call = Call(
        number, str(opens.get("kind", "")), str(opens.get("tool", "")), str(opens.get("key", "")), arguments, rec.seq,
        rec.time, step.fence, step.begun, reserved, gate=str(opens.get("gate") or ""),
        effect=h.settings.effects.get(str(opens.get("tool", "")), str(opens.get("effect", ""))),
    )  # fmt: skip
    mine = [c for c in step.calls if c.fence == step.fence]
    last = max((c.number for c in mine), default=0)
    if mine and number < last:
        h.wrong("call", rec.seq, f"{where}: call {number} was opened after call {last}")
    if any(c.number == number and c.settled for c in mine):
        h.wrong("call", rec.seq, f"{where}: call {number} was opened again after it was settled")
    for before in step.doubts if opens.get("reconciled") else ():
        if (before.tool, before.key) == (call.tool, call.key) and before.fence != call.fence:
            h.count("effects reconciled")
            before.settled = rec.seq  # by a look at the other side, before anything else was done
    _bought_twice(h, where, step, call)
    _blindly_repeated(h, where, step, call)
    _gates.used(h, task, step, call)
    _money.opened(h, task, step, call)
    step.calls.append(call)
    step.opened = call
    if call.kind == "tool" and call.effect == "other":
        step.once.append(call)
    if call.kind == "tool" and call.key and h.settings.effects.get(call.tool) in ("keyed", "other"):
        h.effects.append((task, step, call))


def tape(step: Step) -> dict[int, Call]:
    """The calls of the present work that an owner plays back, by their results: one opened later ends the tape before
    it."""
    found: dict[int, Call] = {}
    for call in step.calls:
        found = {number: known for number, known in found.items() if number < call.number}
        if call.told:
            found[call.number] = call
    return found


def _bought_twice(h: History, where: str, step: Step, call: Call) -> None:
    """An owner that takes work up plays settled calls back. It may open one anew only where it goes another way."""
    known = tape(step).get(call.number)
    if known is None or known.fence == call.fence:
        return
    if known.arguments is None or call.arguments is None:
        return  # the claim's opening says only that a model will be asked
    if (known.kind, known.tool, known.key, known.arguments) == (call.kind, call.tool, call.key, call.arguments):
        h.wrong("replay", call.seq, f"{where}: call {call.number} was settled at {known.settled}, and is made again")


def _blindly_repeated(h: History, where: str, step: Step, call: Call) -> None:
    """An effect whose other side honours no key is not begun again while its outcome is unknown, nor by new work."""
    if call.kind != "tool":
        return
    known = {before.key for before in step.calls if before.settled}
    for before in step.calls if call.effect == "keyed" else ():
        if before.tool == call.tool and before.fence != call.fence and before.key not in {*known, call.key}:
            h.wrong("in-doubt", call.seq, f"{where}: {before.key} was begun at {before.seq}; now it has another key")
    for before in step.doubts:
        if before.tool == call.tool:
            h.wrong("in-doubt", call.seq, f"{where}: {call.tool} was begun at {before.seq}, its outcome is unknown")


def settled(h: History, task: Task, step: Step, rec: Rec) -> None:
    """A call ended. Only the one that is open can."""
    settles = rec.body.get("settles")
    if not isinstance(settles, dict):
        return
    number, where = int(settles.get("call", 0)), f"step {task.id}/{step.id}"
    call = step.opened
    if call is None or call.number != number:
        before = [c for c in step.calls if c.number == number and c.fence == step.fence]
        if any(c.settled for c in before):
            h.wrong("call", rec.seq, f"{where}: call {number} is settled twice")
        else:
            h.wrong("call", rec.seq, f"{where}: call {number} is settled and is not open")
        return
    call.settled, call.told, call.result = rec.seq, "result" in settles, settles.get("result")
    _money.spend(step, usage_of(settles.get("usage")))
    _money.within(h, task, step, rec.seq)
    step.opened = None
