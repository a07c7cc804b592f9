"""What counts: results with their `done`, digest and admission; verdicts that name what they judge; proven ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ._record import Rec
from ._slices import BadJson, digest, members, parse
from ._state import Artifact, History, Step, Task

MAX_OF_A_KIND = 32


def artifact(h: History, task: Task, rec: Rec) -> None:
    """Content stored before the commit that cites it. A stale one may be there, and can never be cited."""
    kind, name, fence = rec.rest
    step = task.steps.get(str(rec.envelope.get("step") or ""))
    if step is None or step.status != "claimed" or rec.fence != step.fence or str(rec.fence) != fence:
        h.note("content was stored by one who no longer owned the step; nothing may cite it")
        return
    task.stored[(rec.role, kind, name, rec.fence)] = rec.raw


def done(h: History, task: Task, step: Step, rec: Rec) -> None:
    """The owner's results. Whether they may count is worked out here; it is a fault only when they do."""
    try:
        raws = [members(text) for text in rec.texts("results")]
    except BadJson as error:
        h.wrong("record", rec.seq, f"the results of step {task.id}/{step.id} are not readable: {error}")
        return
    found = []
    for result, raw in zip(rec.items("results"), raws, strict=True):
        kind, name, named = (str(result.get(part, "")) for part in ("kind", "name", "digest"))
        body = raw.get("body", task.stored.get((step.role, kind, name, rec.fence)))
        found.append(Artifact(step.id, step.role, kind, name, named, rec.seq, step.attempt, body))
    wrong = _against(task, step, found)
    step.results = tuple(
        Artifact(a.step, a.role, a.kind, a.name, a.digest, a.seq, a.attempt, a.body, wrong) for a in found
    )
    if wrong:
        h.count("commits that cannot have been admitted")
        return
    h.count("artifacts that may count")
    for one in step.results:
        if one.kind == "verdict" and one.body is not None:
            content = parse(one.body)
            task.verdicts[str(content["subject"]["digest"])] = (one, content)


def _against(task: Task, step: Step, found: list[Artifact]) -> str:
    """Why these results cannot be admitted, as far as this checker can tell; '' when it knows of nothing."""
    order = step.order
    assert order is not None
    produces, given = order.items("produces"), {str(ref.get("digest")) for ref in order.items("inputs")}
    if not found:
        return "there is none"
    kinds = Counter(a.kind for a in found)
    if max(kinds.values()) > MAX_OF_A_KIND:
        return f"there are more than {MAX_OF_A_KIND} of a kind"
    if max(Counter((a.kind, a.name) for a in found).values()) > 1:
        return "one is given twice"
    for a in found:
        label = f"{a.kind} {a.name}"
        if a.kind not in produces:
            return f"{label}: the order allows only {', '.join(map(str, produces))}"
        if a.body is None:
            return f"{label}: its content is nowhere"
        if digest(a.body) != a.digest:
            return f"{label}: its digest is not that of its content"
        try:
            wrong = _content(task, step, a, given)
        except (BadJson, KeyError, TypeError, AttributeError, ValueError) as error:
            wrong = f"it is not readable: {error!r}"
        if wrong:
            return f"{label}: {wrong}"
    judged = [parse(a.body)["subject"]["digest"] for a in found if a.kind == "verdict" and a.body is not None]
    missing = [d for d in order.items("judges") if d not in judged]
    if missing:
        return f"no verdict on {missing[0]}, which the order asks to judge"
    return "" if len(set(judged)) == len(judged) else "two verdicts on one artifact"


def _content(task: Task, step: Step, a: Artifact, given: set[str]) -> str:
    assert a.body is not None
    assert step.order is not None
    content = parse(a.body)
    if not isinstance(content, dict):
        return "it is no object"
    if a.kind == "verdict":
        about = content["subject"]["digest"]
        if about not in given:
            return f"it is about {about}, which is not among the order's inputs"
        makers = {b.role for s in task.steps.values() for b in s.results if b.digest == about}
        if step.role in makers:
            return "it is about what the same role wrote"
    if a.kind == "deliverable":
        named = [*content["cites"], *(ref for part in content["manifest"] for ref in part["sources"])]
        foreign = [ref["digest"] for ref in named if ref["digest"] not in given]
        if foreign:
            return f"it cites {foreign[0]}, which is not among the order's inputs"
    if a.kind == "plan":
        return _plan(content, {str(mate.get("role")) for mate in step.order.items("team")})
    return ""


def _plan(content: dict[str, Any], roles: set[str]) -> str:
    steps = {str(step["id"]): step for step in content["steps"]}
    if len(steps) != len(content["steps"]) or not steps:
        return "a step comes twice, or there is none"
    for name, step in steps.items():
        if step["role"] not in roles:
            return f"step {name} is for role {step['role']}, which the order does not offer"
        unknown = [need for need in step.get("needs", ()) if need not in steps]
        if unknown:
            return f"step {name} needs {unknown[0]}, which is not planned"
    left = {name: set(step.get("needs", ())) for name, step in steps.items()}
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        if not free:
            return "it goes in a circle"
        for name in free:
            del left[name]
    return ""


# ---------------------------------------------------------------------- what counted


def inputs(h: History, task: Task, rec: Rec) -> None:
    """An order's inputs counted: each must be a current result, admitted, of the step that it names."""
    refs = rec.items("inputs")
    for ref in refs:
        _counted(h, task, ref, rec.seq, f"the order of step {task.id}/{rec.step}")
    foreign = [d for d in rec.items("judges") if d not in {ref.get("digest") for ref in refs}]
    if foreign:
        h.wrong("counted", rec.seq, f"step {task.id}/{rec.step} is to judge {foreign[0]}, which it is not given")


def _counted(
    h: History, task: Task, ref: dict[str, Any], seq: int, where: str, *, again: bool = False
) -> Artifact | None:
    """The current result that is named. `again`: it may have been made again since, the same to the byte."""
    step_id, kind, name, named = (str(ref.get(part, "")) for part in ("step", "kind", "name", "digest"))
    identity = (step_id, kind, name, named, int(ref.get("seq", 0)))
    label = f"{identity[1]} {identity[2]} of step {identity[0]}"
    step = task.steps.get(str(identity[0]))
    results = {a.identity: a for a in step.results} if step is not None and step.status == "done" else {}
    found = results.get(identity)
    if found is None and again:
        found = next((a for a in results.values() if a.identity[:4] == identity[:4]), None)
    if found is None:
        h.wrong("counted", seq, f"{where} names {label} at {identity[4]}: no current result of a commit that counts")
        return None
    if found.wrong:
        rule = "digest" if "digest" in found.wrong or "nowhere" in found.wrong else "admission"
        h.wrong(rule, seq, f"{where} names {label}, which cannot have been admitted: {found.wrong}")
        return None
    assert isinstance(found, Artifact)
    return found


def proven(h: History, task: Task, rec: Rec) -> None:
    """A `done` names a deliverable and a verdict; the verdict passed, names its digest, was written by another role;
    and so for all that the deliverable cites."""
    where = f"the end of task {task.id}"
    named, said = rec.body.get("deliverable"), rec.body.get("verdict")
    if not isinstance(named, dict) or not isinstance(said, dict):
        h.wrong("proof", rec.seq, f"{where} is done without naming a deliverable and a verdict")
        return
    deliverable = _counted(h, task, named, rec.seq, where)
    verdict = _counted(h, task, said, rec.seq, where)
    if deliverable is None or verdict is None:
        return
    if deliverable.kind != "deliverable" or verdict.kind != "verdict":
        h.wrong("proof", rec.seq, f"{where} names a {deliverable.kind} and a {verdict.kind}")
        return
    assert deliverable.body is not None
    assert verdict.body is not None
    judged = parse(verdict.body)
    if judged["subject"]["digest"] != deliverable.digest:
        h.wrong("proof", rec.seq, f"{where}: the verdict that it names is about another artifact")
    content = parse(deliverable.body)
    _covered(h, task, deliverable, rec.seq, where)
    tree = judged.get("tree")
    if tree is not None and tree != content["tree"]:
        h.wrong("proof", rec.seq, f"{where}: the checks ran on tree {tree}, the deliverable's is {content['tree']}")
    if task.spec.items("checks") and (not judged.get("checked") or _failed(judged)):
        h.wrong(
            "proof", rec.seq, f"{where}: the task came with checks, and not all of them ran and passed on the result"
        )
    if bool(rec.body.get("checked")) != bool(judged.get("checked")):
        h.wrong(
            "proof", rec.seq, f"{where} says checked {rec.body.get('checked')}, its verdict {judged.get('checked')}"
        )
    for ref in content["cites"]:
        cited = _counted(h, task, ref, rec.seq, f"the deliverable of task {task.id}", again=True)
        if cited is not None and cited.kind in h.settings.judged:
            _covered(h, task, cited, rec.seq, f"the deliverable of task {task.id}")
    _approved(h, task, rec, [deliverable, *(a for a in task.current().values() if not a.wrong)])


def _failed(judged: dict[str, Any]) -> bool:
    return any(check.get("exit_code") != 0 or check.get("timed_out") for check in judged.get("checks", ()))


def _covered(h: History, task: Task, a: Artifact, seq: int, where: str) -> None:
    found = task.verdicts.get(a.digest)
    label = f"{a.kind} {a.name} of step {a.step}"
    if found is None:
        h.wrong("verdict", seq, f"{where} builds on {label}, on which there is no verdict")
        return
    verdict, content = found
    if verdict.identity not in task.current():
        h.wrong("verdict", seq, f"{where} builds on {label}, whose verdict is no current result")
    if content.get("passed") is not True:
        h.wrong("verdict", seq, f"{where} builds on {label}, whose verdict did not pass")
    if verdict.role == a.role:
        h.wrong("verdict", seq, f"{where} builds on {label}, judged by the role that wrote it")
    ref = content["subject"]
    if (ref.get("step"), ref.get("kind"), ref.get("name")) != (a.step, a.kind, a.name):
        h.wrong("verdict", seq, f"{where} builds on {label}, whose verdict names another artifact")


def _approved(h: History, task: Task, rec: Rec, found: Iterable[Artifact]) -> None:
    """Artifacts of the kinds that wanted a person's word have it."""
    wanted = task.spec.items("approve")
    for a in found:
        if a.kind not in wanted:
            continue
        gates = [
            g for g in task.gates.values() if g.about == "artifact" and (g.subject or {}).get("digest") == a.digest
        ]
        outcomes = [g.decision.body.get("outcome") for g in gates if g.decision is not None]
        if "approved" not in outcomes:
            label = f"{a.kind} {a.name} of step {a.step}"
            h.wrong("approval", rec.seq, f"task {task.id} is done, and nobody approved its {label}")
