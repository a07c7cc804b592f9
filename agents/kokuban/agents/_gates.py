"""Gates: what a step may not do, or cannot know, without a person.

A gate is named by its call's place in the step and bound to the exact call. Without a decision the step is let go; its
next owner comes back to the same call, finds the decision in its order, and goes on from there.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from kokuban.agents._tape import describe
from kokuban.agents._work import Work
from kokuban.agents.policy import Ruling
from kokuban.agents.tools import Arguments, canonical
from kokuban.schemas import Decided, Gate, Opens, Usage, digest

POLICY = "gates-1"
"""The version of the rules below; part of what an approval is bound to."""
HIDDEN = "[hidden]"
SHOWN_BYTES = 32_768
_SECRET = re.compile(r"pass(?:word|wd|phrase)|secret|token|api_?key|authori[sz]ation|credential|private_?key", re.I)


def gate_id(step: str, begun: int, call: int) -> str:
    """A gate's name, the same for every owner of this work; at most 64 characters."""
    end = f"-{begun}-{call}"
    if len(step) + len(end) > 64:
        step = f"{step[:36]}-{hashlib.sha256(step.encode()).hexdigest()[:8]}"
    return f"{step}{end}"


def shown(value: Any, secret: bool = False) -> Any:
    """Arguments as they may stand on the board: texts below a field whose name says that it is secret are left out. A
    model knows no secrets of the runtime; this is for those that it was told."""
    if isinstance(value, dict):
        return {k: shown(v, secret or bool(_SECRET.search(k))) for k, v in value.items()}
    if isinstance(value, list):
        return [shown(item, secret) for item in value]
    return HIDDEN if secret and isinstance(value, str) and value else value


async def decision_on_call(work: Work, judged: Arguments, key: str, ruling: Ruling) -> Decided:
    """How the gate of the next call, to this tool with these arguments, ended: it is bound to the policy's version too.
    Raises `Parked` when the step waits for it now. The board gets the arguments without secrets (see `shown`) and the
    hash of the true ones."""
    at, tool, n = work.assignment, judged.tool, work.tape.next_call
    gate = Gate(
        gate_id(at.step, at.begun, n), "call", f"May step {at.step} call {tool.name}? {_why(judged, ruling)}",
        tool=tool.name, arguments=_for_people(judged), hash=digest(judged.canonical.encode()),
        tool_version=tool.version, policy=ruling.policy, call=n, key=key, need=work.spec.votes,
        expires_seconds=work.spec.approval_seconds,
    )  # fmt: skip
    return await work.wait(gate)


async def answer_of_person(work: Work, question: str) -> Decided:
    """What a person says to this question. Raises `Parked` when the step waits for it now. The question is the next
    call of the step: hand the answer to `told`, so that it takes its place on the tape."""
    at, n = work.assignment, work.tape.next_call
    gate = Gate(
        gate_id(at.step, at.begun, n), "question", question, policy=POLICY, call=n,
        expires_seconds=work.spec.approval_seconds,
    )  # fmt: skip
    return await work.wait(gate)


async def ask_person(work: Work, question: str) -> Decided:
    """What a person says to a question, at the next call's place. Raises `Parked` until somebody has answered."""
    answer = await answer_of_person(work, question)
    await told(work, "ask_person", answer)
    return answer


async def told(
    work: Work, tool: str, decided: Decided, usage: Usage = Usage(), *, judged: Arguments | None = None
) -> str:
    """Write down, as the next call, what came of a gate that no tool call follows, and return it in words: a person's
    answer, or why the call `judged` is not run."""
    text = _in_words(tool, decided, work.spec.approval_seconds)

    async def perform() -> tuple[object, Usage]:
        return {"text": text}, usage

    bound = {} if judged is None else {"hash": digest(judged.canonical.encode()), "tool": tool}
    described = describe({"gate": decided.gate, "outcome": decided.outcome, **bound})
    played = await work.tape.call(lambda n: Opens(n, "tool", "decision", described), perform)
    work.ledger.settle(played.usage)
    return str(played.result["text"])  # of whoever wrote it first: the model was told so


def _in_words(tool: str, decided: Decided, seconds: int | None) -> str:
    by = f" by {', '.join(decided.by)}" if decided.by else ""
    said = f": {decided.text}" if decided.text else ""
    if decided.outcome == "answered":
        return decided.text or "(no text)"
    if decided.outcome == "expired":
        within = f"within {seconds} s" if seconds else "in time"
        return f"{tool} was not run: nobody decided {within}; that is no denial"
    return f"{tool} was not run: {'denied' if decided.outcome == 'denied' else 'not approved'}{by}{said}"


async def denied(work: Work, judged: Arguments, ruling: Ruling, usage: Usage) -> str:
    """Write down, as the next call, that the policy refuses this one, and return it in words."""
    tool = judged.tool.name
    text = (
        f"{tool} was not run: the policy denies it (rule {ruling.rule!r}, policy {ruling.policy}). "
        "The same call will be denied again: use other values, another tool, or end with what can be done."
    )

    async def perform() -> tuple[object, Usage]:
        return {"text": text}, usage

    described = describe({"tool": tool, "hash": digest(judged.canonical.encode()), "outcome": "denied"})
    played = await work.tape.call(lambda n: Opens(n, "tool", "decision", described, ruling=str(ruling)), perform)
    work.ledger.settle(played.usage)
    return str(played.result["text"])


async def refused_before(work: Work, judged: Arguments) -> str | None:
    """Why the next call, which is this very one, is not run, as the journal has told the model already; None where it
    has not. What was decided then stands, as for a call that was run, whatever policy and people say by now."""
    opening = work.tape.settled
    if opening is None or opening.tool != "decision" or isinstance(opening.arguments, msgspec.UnsetType):
        return None
    about = msgspec.json.decode(opening.arguments)
    if (about.get("tool"), about.get("hash")) != (judged.tool.name, digest(judged.canonical.encode())):
        return None

    async def perform() -> tuple[object, Usage]:
        raise AssertionError("it is played back")

    played = await work.tape.call(lambda _: opening, perform)
    work.ledger.settle(played.usage)
    return str(played.result["text"])


def _why(judged: Arguments, ruling: Ruling) -> str:
    why = f"Rule {ruling.rule!r} wants a person's approval."
    if judged.tool.tier == "consequential":
        why = "This cannot be undone."
    return f"{why} The step has read what strangers wrote." if ruling.trust == "untrusted" else why


def _for_people(judged: Arguments) -> msgspec.Raw:
    """The arguments in canonical form; of very large ones, the beginning and the size."""
    text = canonical(shown(dict(judged.values)))
    if len(text.encode()) <= SHOWN_BYTES:
        return msgspec.Raw(text.encode())
    return describe({"begins": text[: SHOWN_BYTES // 8], "bytes": len(judged.canonical.encode())})
