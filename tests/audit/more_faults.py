"""More ways to break a good history: limits, money, calls, gates, effects."""

from __future__ import annotations

import copy
from typing import Any

from audit.faults import again, breaks, drop, room
from audit.story import AGAIN, CHILD, DEPLOY, FAILS, KEYED, NEXT, Line, Story, find

# ---------------------------------------------------------------------- limits and budgets


@breaks("limit")
def a_role_has_more_under_way_than_its_limit(s: Story) -> None:
    find(s.lines, "ctl.limits").body["roles"] = {"planner": 1}
    _time_apart(s)


@breaks("limit")
def a_tenant_has_more_under_way_than_its_limit(s: Story) -> None:
    find(s.lines, "ctl.limits").body["tenants"]["default"]["concurrency"] = 1
    _time_apart(s)


@breaks("limit")
def a_task_has_more_under_way_than_its_limit(s: Story) -> None:
    find(s.lines, "ctl.limits").body["steps_per_task"] = 0
    _time_apart(s)


def _time_apart(s: Story) -> None:
    """The limits are there long before anything else."""
    at = s.lines.index(find(s.lines, "ctl.limits"))
    for line in s.lines[at + 1 :]:
        line.time += 60


@breaks("budget")
def more_is_promised_than_the_budget_has(s: Story) -> None:
    find(s.lines, "task.spec").body["budget"]["tokens"] = 5_000


@breaks("budget")
def a_task_below_spends_what_the_one_above_has_not(s: Story) -> None:
    find(s.lines, "step.order", CHILD).body["allotment"]["tokens"] = 19_000


@breaks("budget")
def a_grant_is_above_the_budget(s: Story) -> None:
    find(s.lines, "task.spec").body["budget"]["tokens"] = 7_000


@breaks("budget")
def the_tenants_budget_is_passed(s: Story) -> None:
    find(s.lines, "ctl.limits").body["tenants"]["default"]["budget"]["tokens"] = 6_000
    _time_apart(s)


@breaks("budget")
def none_left_is_none(s: Story) -> None:
    find(s.lines, "task.spec").body["budget"]["steps"] = 0


@breaks("allotment")
def a_call_costs_more_than_was_allotted(s: Story) -> None:
    find(s.lines, "step.journal", step="work").body["settles"]["usage"]["input_tokens"] = 6_000


@breaks("allotment")
def a_call_is_reserved_above_the_allotment(s: Story) -> None:
    opens = next(line for line in s.lines if (line.body.get("opens") or {}).get("reserved_tokens"))
    opens.body["opens"]["reserved_tokens"] = 7_900


@breaks("allotment")
def a_call_is_reserved_without_the_grant(s: Story) -> None:
    drop(s, find(s.lines, "step.granted"))


@breaks("allotment")
def a_grant_takes_away(s: Story) -> None:
    find(s.lines, "step.granted").body["allotment"]["tool_calls"] = 1


@breaks("usage")
def the_end_hides_what_was_spent(s: Story) -> None:
    find(s.lines, "task.final").body["usage"]["input_tokens"] = 1


@breaks("usage")
def the_call_that_was_lost_is_not_counted(s: Story) -> None:
    find(s.lines, "task.final").body["usage"]["tool_calls"] = 2


@breaks("usage")
def a_call_that_was_left_open_is_not_counted(s: Story) -> None:
    del find(s.lines, "step.waiting").body["settles"]


@breaks("usage")
def a_tool_call_that_a_failure_left_open_is_not_counted(s: Story) -> None:
    find(s.lines, "task.final", FAILS).body["usage"]["tool_calls"] -= 1


@breaks("usage")
def a_tool_call_that_was_given_up_is_not_counted(s: Story) -> None:
    line = next(line for line in s.lines if (line.body.get("opens") or {}).get("tool") == "look")
    line.body["settles"] = {"call": 2, "usage": {}}


# ---------------------------------------------------------------------- calls


@breaks("call")
def a_call_is_settled_twice(s: Story) -> None:
    line = find(s.lines, "step.journal", step="work", nth=3)
    line.body["settles"] = copy.deepcopy(find(s.lines, "step.journal", step="work", nth=2).body["settles"])


@breaks("call")
def a_call_is_settled_that_was_not_opened(s: Story) -> None:
    find(s.lines, "step.done", step="work").body["settles"]["call"] = 9


@breaks("call")
def a_call_is_opened_out_of_turn(s: Story) -> None:
    find(s.lines, "step.journal", step="work", nth=3).body["opens"]["call"] = 1


@breaks("call")
def a_line_says_nothing(s: Story) -> None:
    line = find(s.lines, "step.journal", step="work", nth=3)
    line.env["body"] = {}


@breaks("replay")
def a_settled_call_is_bought_again(s: Story) -> None:
    room(s)
    line = find(s.lines, "step.journal", step="work", nth=1)  # by the second owner, who has played call 2 back
    third = find(s.lines, "step.claimed", step="work", nth=2)
    where = s.lines[s.lines.index(third) + 1]
    again(s, line, before=where, fence=third.seq, attempt=3)


@breaks("in-doubt")
def an_effect_in_doubt_is_begun_again(s: Story) -> None:
    for nth in (0, 1):
        find(s.lines, "step.journal", step="work", nth=nth).body["opens"]["tool"] = "deploy"


@breaks("in-doubt")
def an_effect_in_doubt_is_passed_off_as_done(s: Story) -> None:
    del find(s.lines, "step.done", step="work").body["settles"]
    s.effects = [line for line in s.effects if line["key"] != DEPLOY]  # the journal alone tells of it


@breaks("in-doubt")
def an_effect_that_was_told_as_failed_happened(s: Story) -> None:
    find(s.lines, "step.done", step="work").body["settles"]["result"] = {"ok": False}


def _left_open_before(s: Story, tool: str) -> None:
    """The first attempt leaves a call open that the second one, whose work is new, makes too."""
    for nth, call in ((0, 0), (2, 1)):
        line = [x for x in s.lines if x.env["type"] == "step.journal" and x.env["task"] == FAILS][nth]
        line.body["opens"].update(tool=tool, effect="other", key=f"{FAILS}/plan/{tool}:{call}")
    del find(s.lines, "step.failed", FAILS).body["settles"]


@breaks("in-doubt")
def an_effect_in_doubt_is_begun_again_by_new_work(s: Story) -> None:
    _left_open_before(s, "deploy")


@breaks("in-doubt")
def an_effect_is_begun_again_that_only_its_opening_calls_one(s: Story) -> None:
    _left_open_before(s, "pay")


# ---------------------------------------------------------------------- people


def _of(s: Story, kind: str, nth: int = 0) -> Line:
    return [line for line in s.lines if line.env["type"] == kind][nth]


@breaks("gate-bound")
def a_decision_is_bound_to_something_else(s: Story) -> None:
    _of(s, "gate.decision").body["bound"] = "sha256:" + "0" * 64


@breaks("gate-bound")
def a_gate_becomes_another_one(s: Story) -> None:
    room(s)
    request, decision = _of(s, "gate.request"), _of(s, "gate.decision", 1)
    twin = again(s, request, before=decision)
    twin.body["gate"]["asks"] = "Is another patch fine?"


@breaks("gate-vote")
def a_person_votes_twice(s: Story) -> None:
    room(s)
    again(s, _of(s, "gate.vote"), before=_of(s, "gate.decision"))


@breaks("gate-vote")
def a_vote_is_under_anothers_name(s: Story) -> None:
    _of(s, "gate.vote").env["principal"] = "eve"


@breaks("gate-decision")
def it_is_approved_with_too_few_votes(s: Story) -> None:
    drop(s, _of(s, "gate.vote", 1))


@breaks("gate-decision")
def votes_that_came_too_late_are_counted(s: Story) -> None:
    for line in s.lines[s.lines.index(_of(s, "gate.vote")) :]:
        line.time += 600


@breaks("gate-decision")
def a_vote_for_something_else_is_counted(s: Story) -> None:
    _of(s, "gate.vote", 1).body["bound"] = "sha256:" + "0" * 64


@breaks("gate-decision")
def a_denial_is_taken_for_an_approval(s: Story) -> None:
    _of(s, "gate.vote").body["vote"] = "deny"


@breaks("gate-decision")
def it_expires_before_its_time(s: Story) -> None:
    _of(s, "gate.decision").body.update(outcome="expired", by=[])


@breaks("gate-decision")
def it_is_decided_twice(s: Story) -> None:
    room(s)
    again(s, _of(s, "gate.decision"), before=find(s.lines, "step.order", step="work", nth=2))


@breaks("gate-decision")
def the_work_goes_on_undecided(s: Story) -> None:
    drop(s, _of(s, "gate.decision"))


@breaks("gate-decision")
def the_work_is_told_another_decision(s: Story) -> None:
    find(s.lines, "step.order", step="work", nth=2).body["decided"][0]["outcome"] = "denied"


@breaks("gate-used")
def it_is_used_without_an_approval(s: Story) -> None:
    _of(s, "gate.decision").body["outcome"] = "denied"
    _of(s, "gate.vote").body["vote"] = "deny"


@breaks("gate-used")
def it_is_used_with_other_arguments(s: Story) -> None:
    _opening(s)["arguments"] = {"where": "elsewhere"}


@breaks("gate-used")
def it_is_used_by_another_call(s: Story) -> None:
    _opening(s)["call"] = 5
    find(s.lines, "step.done", step="work").body["settles"]["call"] = 5


@breaks("gate-used")
def it_is_used_twice(s: Story) -> None:
    room(s)
    line = next(line for line in s.lines if (line.body.get("opens") or {}).get("gate"))
    twin = again(s, line, before=find(s.lines, "artifact"))
    twin.body["opens"]["call"] = 5
    find(s.lines, "step.done", step="work").body["settles"]["call"] = 5


def _opening(s: Story) -> dict[str, Any]:
    line = next(line for line in s.lines if (line.body.get("opens") or {}).get("gate"))
    opens: dict[str, Any] = line.body["opens"]
    return opens


# ---------------------------------------------------------------------- effects


@breaks("effect-journalled")
def an_effect_was_never_journalled(s: Story) -> None:
    s.effects.append({"key": f"{NEXT}/plan/1:1", "time": 1_005.0, "applied": True, "honours": True})


@breaks("effect-journalled")
def an_effect_came_before_its_line(s: Story) -> None:
    s.effects[0]["time"] -= 60


@breaks("effect-once")
def an_effect_was_applied_twice(s: Story) -> None:
    s.effects[1]["applied"] = True


@breaks("effect-once")
def an_effect_was_applied_again_by_another_attempt(s: Story) -> None:
    next(line for line in s.effects if line["key"] == AGAIN and not line["applied"])["applied"] = True


@breaks("effect-once")
def an_effect_without_keys_was_sent_twice(s: Story) -> None:
    s.effects.append({**s.effects[2], "applied": False})


@breaks("effect-lost")
def an_effect_was_never_applied(s: Story) -> None:
    s.effects[0]["applied"] = False


@breaks("effect-lost")
def an_effect_never_arrived(s: Story) -> None:
    s.effects = [line for line in s.effects if line["key"] != KEYED]
