"""Ways to break a good history, each with the rule that it breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from audit.story import CHILD, LATE, NEXT, ROOT, Line, Story, find
from kokuban.schemas import digest, encode

Fault = Callable[[Story], None]
FAULTS: list[tuple[str, str, Fault]] = []
"""Rule, what is done, and the doing."""


def breaks(rule: str) -> Callable[[Fault], Fault]:
    """Marks a function that breaks `rule`; its name says how."""

    def mark(fault: Fault) -> Fault:
        FAULTS.append((rule, fault.__name__.strip("_"), fault))
        return fault

    return mark


def again(s: Story, line: Line, *, before: Line | None = None, **env: Any) -> Line:
    """Store a copy under an operation of its own, as the last record or right before another one, whose sequence it
    takes half of."""
    twin = copy.deepcopy(line)
    twin.env.update({"id": f"again-{len(s.lines)}", **env})
    if before is None:
        twin.seq, twin.time = s.lines[-1].seq + 1, s.lines[-1].time + 0.1
        s.lines.append(twin)
    else:  # every sequence is doubled by `room` first, so that there is a place
        twin.seq, twin.time = before.seq - 1, before.time - 0.05
        s.lines.insert(s.lines.index(before), twin)
    return twin


def bury(s: Story, task: str, *, fence: int | None = None, **body: Any) -> Line:
    """Store the tombstone of a task, as the leader would; keyword fields say otherwise."""
    final = find(s.lines, "task.final", task)
    known = {"state": final.body["state"], "reason": "over", "final": final.seq, "tenant": "default"}
    known["spec"] = find(s.lines, "task.spec", task).seq
    stone = again(s, final, type="task.tombstone", body={**known, **body})
    stone.subject = f"kb.task.{task}.buried"
    stone.env["fence"] = final.env["fence"] if fence is None else fence
    return stone


def drop(s: Story, line: Line) -> None:
    s.lines.remove(line)


# ---------------------------------------------------------------------- records


@breaks("record")
def its_body_is_not_what_it_was_sealed_with(s: Story) -> None:
    line = find(s.lines, "step.done", step="verify-work")
    line.raw = line.message().data.replace(b'"passed":true', b'"passed":null')


@breaks("record")
def it_is_no_json(s: Story) -> None:
    find(s.lines, "step.claimed").raw = b"\xff{"


@breaks("record")
def a_member_comes_twice(s: Story) -> None:
    line = find(s.lines, "step.claimed")
    line.raw = line.message().data.replace(b'{"id":', b'{"id":"other","id":', 1)


@breaks("record")
def it_stands_on_another_tasks_subject(s: Story) -> None:
    line = find(s.lines, "step.claimed", step="work")
    line.subject = line.subject.replace(ROOT, CHILD)


@breaks("record")
def its_type_does_not_belong_there(s: Story) -> None:
    find(s.lines, "step.journal").env["type"] = "step.done"


@breaks("record")
def it_is_of_a_version_to_come(s: Story) -> None:
    find(s.lines, "step.claimed").env["version"] = 3


@breaks("record")
def its_body_has_another_shape(s: Story) -> None:
    find(s.lines, "step.order").body["allotment"] = "much"


@breaks("once")
def an_operation_is_stored_twice(s: Story) -> None:
    line = find(s.lines, "task.control", CHILD)
    again(s, line, id=line.env["id"])


@breaks("accepted-once")
def a_task_is_accepted_twice(s: Story) -> None:
    again(s, find(s.lines, "task.spec", LATE))


def room(s: Story) -> None:
    """Twice as far apart: every sequence that a record names is doubled too."""
    for line in s.lines:
        line.seq *= 2
        for holder in (line.env, line.body):
            _double(holder)


def _double(value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _double(one)
    if isinstance(value, dict):
        for name in ("fence", "reg", "order", "spec", "seq", "claim"):
            if isinstance(value.get(name), int):
                value[name] *= 2
        for name in ("inputs", "deliverable", "verdict", "gate", "subject"):
            _double(value.get(name))


# ---------------------------------------------------------------------- decisions, orders, owners


@breaks("epoch")
def an_order_cites_a_past_epoch(s: Story) -> None:
    find(s.lines, "task.final", NEXT).env["fence"] = find(s.lines, "step.order", NEXT).env["fence"]


@breaks("epoch")
def a_decision_is_written_by_another_than_the_leader(s: Story) -> None:
    find(s.lines, "step.order").env["worker"] = "sup-2"


@breaks("epoch")
def an_epoch_stands_on_another_shards_subject(s: Story) -> None:
    find(s.lines, "ctl.epoch").body["shard"] = 5


@breaks("order")
def a_step_is_ordered_twice(s: Story) -> None:
    room(s)
    order = find(s.lines, "step.order", step="work")
    again(s, order, before=find(s.lines, "step.claimed", step="work"), attempt=2)


@breaks("order")
def a_step_is_taken_back_that_nobody_has(s: Story) -> None:
    room(s)
    taken = find(s.lines, "step.released", step="work")
    again(s, taken, before=find(s.lines, "step.order", step="work", nth=1))


@breaks("order")
def a_step_is_ordered_from_another_role(s: Story) -> None:
    line = find(s.lines, "step.order", step="work", nth=1)
    line.env["role"], line.subject = "verifier", line.subject.replace(".coder.", ".verifier.")


@breaks("attempt")
def an_attempt_is_left_out(s: Story) -> None:
    find(s.lines, "step.order", step="work", nth=1).env["attempt"] = 3


@breaks("attempt")
def work_is_taken_up_where_it_did_not_begin(s: Story) -> None:
    find(s.lines, "step.order", step="work", nth=2).body["resumes"] = 2


@breaks("register")
def an_order_names_a_register_of_before(s: Story) -> None:
    find(s.lines, "step.order", step="work", nth=1).body["reg"] = 0


@breaks("register")
def a_claim_does_not_follow_the_register(s: Story) -> None:
    find(s.lines, "step.claimed", step="work", nth=1).body["reg"] = 0


@breaks("register")
def a_commit_comes_after_the_register_moved(s: Story) -> None:
    room(s)
    taken, end = find(s.lines, "step.released", LATE), find(s.lines, "step.done", step="integrate")
    twin = again(s, taken, before=end, task=ROOT, step="integrate", role="integrator")  # a past leader's: it only moves
    twin.subject = end.subject


@breaks("register")
def a_step_that_nobody_ordered_has_an_owner(s: Story) -> None:
    drop(s, find(s.lines, "step.order", step="integrate"))


@breaks("owner")
def a_step_is_claimed_twice(s: Story) -> None:
    room(s)
    claim = find(s.lines, "step.claimed", step="integrate")
    again(s, claim, before=find(s.lines, "step.done", step="integrate"), worker="w-other")


@breaks("owner")
def a_claim_is_for_a_past_order(s: Story) -> None:
    claim = find(s.lines, "step.claimed", step="work", nth=1)
    claim.body["order"] = find(s.lines, "step.order", step="work").seq


@breaks("owner")
def a_fenced_owner_commits(s: Story) -> None:
    fence = find(s.lines, "step.claimed", step="work").seq
    find(s.lines, "step.done", step="work").env["fence"] = fence


@breaks("owner")
def another_worker_commits(s: Story) -> None:
    find(s.lines, "step.done", step="verify-work").env["worker"] = "w-other"


@breaks("owner")
def a_fenced_owner_journals(s: Story) -> None:
    room(s)
    line = find(s.lines, "step.journal", step="work")
    again(s, line, before=find(s.lines, "step.order", step="work", nth=1))


# ---------------------------------------------------------------------- results


@breaks("counted")
def an_input_comes_from_a_commit_that_is_not_there(s: Story) -> None:
    drop(s, find(s.lines, "step.done", step="work"))


@breaks("counted")
def an_input_is_named_at_another_place(s: Story) -> None:
    find(s.lines, "step.order", step="integrate").body["inputs"][0]["seq"] -= 1


@breaks("counted")
def a_step_judges_what_it_is_not_given(s: Story) -> None:
    find(s.lines, "step.order", step="verify-work").body["judges"] = ["sha256:" + "0" * 64]


@breaks("digest")
def an_input_is_not_what_its_digest_says(s: Story) -> None:
    find(s.lines, "step.done", step="integrate").body["results"][0]["body"]["report"] = "another one"


@breaks("digest")
def content_stored_outside_is_nowhere(s: Story) -> None:
    drop(s, find(s.lines, "artifact"))


@breaks("digest")
def content_stored_outside_is_another_owners(s: Story) -> None:
    find(s.lines, "artifact").env["fence"] = find(s.lines, "step.claimed", step="work").seq


@breaks("admission")
def an_input_is_of_a_kind_that_its_order_did_not_allow(s: Story) -> None:
    for nth in range(3):
        find(s.lines, "step.order", step="work", nth=nth).body["produces"] = ["finding"]


@breaks("admission")
def a_refused_commit_is_used(s: Story) -> None:
    find(s.lines, "step.order", step="verify-work").body["judges"].append("sha256:" + "0" * 64)
    find(s.lines, "step.order", step="verify-work").body["inputs"].append(
        {**find(s.lines, "step.order", step="verify-work").body["inputs"][0], "digest": "sha256:" + "0" * 64}
    )
    # its verdict is missing, so that the whole commit is refused; the verdict that it gave is taken nevertheless
    verdict = find(s.lines, "step.done", step="verify-work")
    ref = {"step": "verify-work", "kind": "verdict", "name": "patch-patch", "seq": verdict.seq}
    find(s.lines, "step.order", step="integrate").body["inputs"].append(
        {**ref, "digest": verdict.body["results"][0]["digest"]}
    )


@breaks("verdict")
def the_patch_has_no_verdict(s: Story) -> None:
    for kind in ("step.order", "step.claimed", "step.done"):
        drop(s, find(s.lines, kind, step="verify-work"))


def _judged(s: Story, step: str, **changes: Any) -> None:
    """Change what a verdict says, and every name of it."""
    result = find(s.lines, "step.done", step=step).body["results"][0]
    result["body"].update(changes)
    before = result["digest"]
    result["digest"] = digest(encode(result["body"]))
    end = find(s.lines, "task.final")
    if end.body["verdict"]["digest"] == before:
        end.body["verdict"]["digest"] = result["digest"]


@breaks("verdict")
def the_verdict_on_the_patch_did_not_pass(s: Story) -> None:
    _judged(s, "verify-work", passed=False)


@breaks("verdict")
def the_verdict_on_the_result_did_not_pass(s: Story) -> None:
    _judged(s, "verify-integrate", passed=False)


@breaks("verdict")
def the_verdict_is_the_makers_own(s: Story) -> None:
    for line in s.lines:
        if line.env.get("step") == "verify-work":
            line.env["role"], line.subject = "coder", line.subject.replace(".verifier.", ".coder.")
    find(s.lines, "step.order", step="verify-work").body["produces"] = ["verdict"]


@breaks("proof")
def the_end_names_no_verdict(s: Story) -> None:
    del find(s.lines, "task.final").body["verdict"]


@breaks("proof")
def the_end_names_a_verdict_on_something_else(s: Story) -> None:
    done, end = find(s.lines, "step.done", step="verify-work"), find(s.lines, "task.final")
    end.body["verdict"].update(
        step="verify-work", name="patch-patch", digest=done.body["results"][0]["digest"], seq=done.seq
    )


@breaks("proof")
def the_checks_ran_on_other_files(s: Story) -> None:
    _judged(s, "verify-integrate", tree="sha256:" + "1" * 64)


@breaks("proof")
def a_check_failed(s: Story) -> None:
    _judged(s, "verify-integrate", checks=[{"command": "true", "exit_code": 1}])


@breaks("proof")
def no_check_was_run(s: Story) -> None:
    _judged(s, "verify-integrate", checked=False)
    find(s.lines, "task.final").body["checked"] = False


@breaks("approval")
def nobody_approved_the_patch(s: Story) -> None:
    drop(s, [line for line in s.lines if line.env["type"] == "gate.decision"][1])
