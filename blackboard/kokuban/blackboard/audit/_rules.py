"""What each rule proves, in words for people, and what no history can prove."""

from __future__ import annotations

RULES = {
    "record": "every record is readable, stands where its envelope says, and matches the digest of its body",
    "once": "no operation is stored twice",
    "accepted-once": "a task is accepted once",
    "ended": "every accepted task has ended",
    "end-once": "a task ends once, and nothing is decided about it afterwards",
    "sealed": "before an end every unfinished step was sealed, and stays so",
    "ending": "an end is begun once, and carried through as it was begun, with nothing ordered meanwhile",
    "epoch": "every decision carries the epoch that was in force, and was written by its leader",
    "order": "a step is ordered while nobody has it, by the role that it belongs to",
    "attempt": "attempts follow one another, and work is taken up where it began",
    "register": "orders, claims and commits form one unbroken chain on each step register",
    "owner": "a step has one owner at a time, in fence order, and only its owner writes about it",
    "counted": "whatever was used (inputs, citations, ends) is a current result of a commit that counts",
    "digest": "what was used matches its digest, byte for byte",
    "admission": "what was used is of a kind that its order allows, and fits what its order gave",
    "verdict": "what was delivered is covered by a passing verdict on its digest, from a role that did not write it",
    "proof": "a task that is done names its deliverable, and a verdict on it whose checks passed on its very files",
    "approval": "artifacts that wanted a person's word have it",
    "dependency": "a task starts after those that it follows are done, and fails with them only when one failed",
    "cancel": "nothing is ordered for a cancelled task, and cancelled is only who was",
    "limit": "steps under way never pass the limits of their role, tenant and task",
    "budget": "what is spent and promised never passes the budget of a task with all below it, or of a tenant",
    "allotment": "work never spends or reserves more than it was allotted",
    "usage": "an end tells what its records add up to",
    "call": "each call is opened before it is settled, and settled once",
    "replay": "work that is taken up makes no settled call again",
    "in-doubt": "an effect of unknown outcome is never begun again, nor passed off as done",
    "gate-bound": "decisions are bound to exactly what was asked",
    "gate-vote": "a person has one word on a gate, under their own name",
    "gate-decision": "decisions match the votes before them, are made once, and reach the work as they were made",
    "gate-used": "an approval is used by the call that was asked about, after it, and at most once",
    "effect-journalled": "every effect that the other side saw was journalled before",
    "effect-once": "no effect was applied twice, or sent twice to a side that honours no keys",
    "effect-lost": "every effect that was settled as done was applied",
}

ONLY_WITH_LOG = ("effect-journalled", "effect-once", "effect-lost")
NOT_PROVEN = (
    "that the records are all that were ever stored: compare the last hash with one that you have from elsewhere",
    "that artifacts fit their JSON Schemas, and that checks and quotes really say what verdicts tell",
    "who stood behind a name: that is the server's part, by its credentials",
)
NOT_PROVEN_OF_A_TASK = "limits and budgets across tasks: they need an export of the whole board"
NOT_PROVEN_WITHOUT_LOG = "what tools did outside: that needs the log of the other side (--effects)"
NOT_PROVEN_WITHOUT_ROLES = "limits that are not on the board but in contracts or options: name them (--settings)"
