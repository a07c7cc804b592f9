"""The golden histories: how they are made, read and summed up. `cd tests && python -m core.golden` writes them again;
see `data/golden/README.md` for when that may be done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import contents, golden_people
from core.contents import plan
from core.history import History, begun, result_of
from core.simulator import Act, Job, Simulator, honest, judged
from kokuban.blackboard.core import Board, Stored, fold
from kokuban.schemas import Claimed, Failed, Opens, Settles, Usage, subjects

FOLDER = Path(__file__).parents[1] / "data" / "golden" / "v2"


def done() -> History:
    """Research, two patches that clash, a verdict that fails, lost workers; then done."""
    dag = plan(("look", "researcher", ()), ("left", "coder", ("look",)), ("right", "coder", ("look",)))
    workers = honest(dag)

    def coder(job: Job) -> Act:
        return "silent" if (job.step, job.attempt) == ("left", 1) else workers["coder"](job)

    def verifier(job: Job) -> Act:
        return judged(job, lambda ref: (job.step, job.attempt) != ("verify-left", 1))

    def integrator(job: Job) -> Act:
        clash = Failed("conflict", "both change a.txt", conflict=("left", "right"), paths=("a.txt",))
        return clash if job.attempt == 1 else workers["integrator"](job)

    team = {**workers, "coder": coder, "verifier": verifier, "integrator": integrator}
    return _run(Simulator(team, contents.spec("a whole task", sources=contents.NOTHING)))


def failed() -> History:
    """A refused result, a failure that is final, a sibling that is sealed."""
    dag = plan(("a", "coder", ()), ("b", "coder", ()))
    workers = honest(dag)

    def coder(job: Job) -> Act:
        if job.step == "b":
            return "stuck"
        return [("x", contents.finding())] if job.attempt == 1 else Failed("input", "no such file", retryable=False)

    return _run(Simulator({**workers, "coder": coder}))


def rules() -> History:
    """A record for every rule that makes one count for nothing, journals, and an artifact outside the commit."""
    history = begun(goal="every rule")
    history.spec(contents.spec("submitted twice"))
    history.order("look", "researcher", fence=1)
    history.order("look", "researcher")
    history.claim("look", opens=Opens(1, "model"))
    history.journal("look", settles=Settles(1, Usage(10, 5, 1)), opens=Opens(2, "tool", "search_sources", key="k-2"))
    history.journal("look", settles=Settles(2, Usage(9)), fence=1)
    history.store("look", ("fact", contents.finding()))
    history.done(
        "look",
        results=[result_of(("fact", contents.finding()), outside=True)],
        settles=Settles(2, Usage(tool_calls=1)),
        usage=Usage(estimated=True),
    )
    history.order("write", "coder")
    history.claim("write")
    history.put(subjects.register("t-1", "coder", "write"), b"junk")
    history.done("write", ("change", contents.patch()))
    history.lead("s-2")
    history.release("write", "moved")
    history.order("write", "coder", attempt=1)
    history.order("write", "coder")
    history.claim("write", worker="w-3")
    history.done("write", ("change", contents.finding()))
    history.failed("write")
    history.put("kb.task.t-1.gate.coder.ask.request", b'{"version":3}')
    history.put("kb.ctl.pause", b"")
    history.order("more", "coder")
    history.claim("more", body=Claimed(1, 0))
    history.claim("more", worker="w-2")
    history.done("more", ("change", contents.patch()), fence=1)
    history.final(fence=1)
    history.revoke("more")
    history.final()
    history.claim("more")
    history.spec(contents.spec("after the end"))
    return history


MAKERS: dict[str, Callable[[], History]] = {
    "done": done, "failed": failed, "rules": rules, "people": golden_people.people, "board": golden_people.board,
}  # fmt: skip


def _run(simulator: Simulator) -> History:
    simulator.run()
    return simulator.history


def to_lines(history: History) -> str:
    """One message a line. The record is text, so that it is kept byte for byte."""
    return "".join(
        json.dumps({"seq": m.seq, "subject": m.subject, "time": m.time, "record": m.data.decode()}, ensure_ascii=False)
        + "\n"
        for m in history.messages
    )


def from_lines(text: str) -> list[Stored]:
    """What `to_lines` wrote."""
    rows = [json.loads(line) for line in text.splitlines()]
    return [Stored(row["seq"], row["subject"], row["time"], row["record"].encode()) for row in rows]


def summary(messages: list[Stored], version: int) -> dict[str, Any]:
    """What these messages come to, as far as this version of the schemas knew. Texts for people are left out: they may
    be put better."""
    board = Board()
    ignored = [message.seq for message in messages if fold(board, message).ignored]
    return {
        **({"more": golden_people.more(board)} if version >= 2 else {}),
        "last_seq": board.last_seq,
        "ignored": ignored,
        "epochs": {str(shard): seq for shard, seq in board.epochs.items()},
        "tasks": {
            task.id: {
                "goal": task.spec.goal,
                "principal": task.principal,
                "plan": [[step.id, step.role, list(step.needs)] for step in task.plan.steps] if task.plan else None,
                "steps": {
                    step.id: {
                        "role": step.role, "status": step.status, "attempt": step.attempt, "reg": step.reg,
                        "order": step.order_seq, "fence": step.fence, "worker": step.worker,
                        "results": [artifact.ref.digest for artifact in step.results],
                        "usage": [step.usage.input_tokens, step.usage.output_tokens, step.usage.model_calls,
                                  step.usage.tool_calls, step.usage.estimated],
                    }
                    for step in task.steps.values()
                },
                "artifacts": {
                    digest: [a.ref.step, a.ref.kind, a.ref.name, a.ref.seq, a.role, a.attempt, a.fence]
                    for digest, a in task.artifacts.items()
                },
                "verdicts": {digest: verdict.passed for digest, (_, verdict) in task.verdicts.items()},
                "final": [task.final.state, task.final.checked, task.final_seq] if task.final else None,
            }
            for task in board.tasks.values()
        },
    }  # fmt: skip


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        text = to_lines(make())
        (FOLDER / f"{name}.jsonl").write_text(text, "utf-8")
        expected = json.dumps(summary(from_lines(text), int(FOLDER.name[1:])), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.expected.json").write_text(expected + "\n", "utf-8")
    print(f"{len(MAKERS)} histories in {FOLDER}")


if __name__ == "__main__":
    main()
