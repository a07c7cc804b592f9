"""More ways to break a good history: ends, what hangs on them, cancels."""

from __future__ import annotations

import copy

from audit.faults import again, breaks, bury, drop, room
from audit.story import AFTER, CHILD, FAILS, LATE, NEXT, ROOT, Line, Story, find


@breaks("ended")
def a_task_never_ends(s: Story) -> None:
    drop(s, find(s.lines, "task.final", LATE))


@breaks("end-once")
def a_task_ends_twice(s: Story) -> None:
    again(s, find(s.lines, "task.final", LATE))


@breaks("end-once")
def a_step_is_ordered_after_the_end(s: Story) -> None:
    again(s, find(s.lines, "step.order", LATE), fence=find(s.lines, "task.final", LATE).env["fence"], worker="sup-2")


@breaks("end-once")
def a_tombstone_tells_of_another_end(s: Story) -> None:
    bury(s, LATE, state="done")


@breaks("end-once")
def a_tombstone_tells_of_an_end_that_is_not_its_tasks(s: Story) -> None:
    bury(s, LATE, final=1)


@breaks("end-once")
def a_task_under_way_is_buried(s: Story) -> None:
    bury(s, LATE)
    drop(s, find(s.lines, "task.final", LATE))


@breaks("epoch")
def a_task_is_buried_under_an_epoch_that_is_over(s: Story) -> None:
    bury(s, LATE, fence=find(s.lines, "ctl.epoch").seq)


@breaks("sealed")
def a_task_ends_while_a_step_is_under_way(s: Story) -> None:
    drop(s, find(s.lines, "step.revoked", CHILD))


@breaks("sealed")
def a_task_ends_done_while_a_step_is_under_way(s: Story) -> None:
    _ordered_anew(s, ROOT, before=find(s.lines, "task.final"))


@breaks("sealed")
def a_task_ends_while_a_step_waits_for_people(s: Story) -> None:
    end = copy.deepcopy(find(s.lines, "task.final"))
    del s.lines[s.lines.index(find(s.lines, "step.waiting")) + 1 :]
    again(s, end).body["state"] = "failed"


@breaks("sealed")
def a_step_is_sealed_before_the_leader_has_said_a_word(s: Story) -> None:
    drop(s, find(s.lines, "task.ending", CHILD))


def _ordered_anew(s: Story, task: str, *, before: Line) -> None:
    """Another step is ordered, right before that."""
    room(s)
    order = find(s.lines, "step.order", task)
    twin = again(s, order, before=before, step="extra", fence=before.env["fence"], worker=before.env["worker"])
    twin.subject = f"{twin.subject.rpartition('.')[0]}.extra"


@breaks("ending")
def a_step_is_ordered_when_the_end_is_begun(s: Story) -> None:
    _ordered_anew(s, CHILD, before=find(s.lines, "step.revoked", CHILD))


@breaks("ending")
def an_end_is_begun_twice(s: Story) -> None:
    room(s)
    again(s, find(s.lines, "task.ending", CHILD), before=find(s.lines, "step.revoked", CHILD))


@breaks("ending")
def a_task_ends_otherwise_than_it_began_to(s: Story) -> None:
    find(s.lines, "task.ending", NEXT).body["state"] = "deadline"


@breaks("epoch")
def an_end_is_begun_under_an_epoch_that_is_over(s: Story) -> None:
    find(s.lines, "task.ending", NEXT).env["fence"] = find(s.lines, "step.order", NEXT).env["fence"]


@breaks("end-once")
def an_end_is_begun_after_it(s: Story) -> None:
    again(s, find(s.lines, "task.ending", NEXT))


@breaks("sealed")
def a_sealed_step_is_ordered_again(s: Story) -> None:
    order, end = find(s.lines, "step.order", NEXT, nth=1), find(s.lines, "task.final", NEXT)
    room(s)
    sealed = find(s.lines, "step.revoked", NEXT)
    twin = again(s, order, before=end, attempt=3, fence=end.env["fence"], worker="sup-2")
    twin.body["reg"] = sealed.seq


@breaks("dependency")
def a_task_starts_before_the_one_that_it_follows_is_done(s: Story) -> None:
    find(s.lines, "task.spec", NEXT).body["after"] = [FAILS]


@breaks("dependency")
def a_task_fails_with_one_that_did_not_fail(s: Story) -> None:
    find(s.lines, "task.spec", AFTER).body["after"] = [ROOT]


@breaks("dependency")
def a_task_fails_with_one_whose_end_is_not_begun(s: Story) -> None:
    room(s)
    begun = find(s.lines, "task.ending", NEXT)
    again(s, begun, before=find(s.lines, "step.revoked", NEXT))
    drop(s, begun)


@breaks("cancel")
def a_step_is_ordered_long_after_the_cancel(s: Story) -> None:
    control, spec = find(s.lines, "task.control", CHILD), find(s.lines, "task.spec")
    control.subject, control.env["task"] = control.subject.replace(CHILD, ROOT), ROOT
    for line in s.lines[s.lines.index(control) + 1 :]:
        line.time += 60
    assert spec.seq < control.seq


@breaks("cancel")
def a_task_is_cancelled_that_nobody_cancelled(s: Story) -> None:
    drop(s, find(s.lines, "task.control", CHILD))
