"""Whatever workers do, a task ends within bounds, and only proven work is done (the simulator checks the rest)."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from core import contents
from core.contents import plan
from core.simulator import Act, Job, Simulator, honest, judged
from kokuban.schemas import Failed, Plan, PlanStep, Ref
from kokuban.supervisor import Limits, Order

STRANGER = Ref("a", "patch", "x", contents.NOTHING, 1)


def any_dag(random: Random) -> Plan:
    names = "abcdef"[: random.randint(1, 6)]
    steps = []
    for at, name in enumerate(names):
        role = random.choice(["coder", "coder", "researcher"])
        needs = random.sample(names[:at], random.randint(0, min(at, 3)))
        steps.append(PlanStep(name, role, "go", tuple(needs)))
    random.shuffle(steps)
    return Plan(tuple(steps))


def any_act(random: Random, job: Job, good: Act, trouble: float) -> Act:
    """Good, or one of the ways to go wrong."""
    if random.random() > trouble:
        return good
    named = tuple(random.choices([*"abcdef", "plan", "integrate"], k=random.randint(0, 3)))
    wrong: list[Act] = [
        "silent", "lost", "stuck", "junk", [],
        Failed("model", "no answer"),
        Failed("tool", "no way", retryable=random.random() < 0.9),
        Failed("conflict", "clash", conflict=named),
        [("x", contents.finding("whatever"))],
        [("x", contents.patch("always the same"))],
        [("x", contents.verdict(STRANGER))],
        [("x", contents.deliverable([STRANGER]))],
        [("x", plan(("a", "coder", ("a",))))],
    ]  # fmt: skip
    if job.role == "verifier":
        late = [
            ("late", contents.verdict(ref, False)) for ref in job.order.inputs if ref.digest not in job.order.judges
        ]
        wrong += [judged(job, lambda ref: False)] * 3 + [[*judged(job, lambda ref: True), *late]] * 2
    return random.choice(wrong)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 0.5]), st.booleans())
def test_a_task_always_ends_and_done_is_proven(seed: int, trouble: float, interleave: bool) -> None:
    random = Random(seed)
    good = honest(any_dag(random))
    run = Simulator(
        dict.fromkeys(good, lambda job: any_act(random, job, good[job.role](job), trouble)),
        contents.spec(sources=contents.NOTHING, attempts=random.randint(1, 4)),
        limits=Limits(steps_per_task=random.randint(1, 5)),
        choose=lambda n: random.randrange(n),
        interleave=interleave,
    )
    task = run.run()
    assert task.final is not None
    assert run.decide() == ([], 0)
    if not interleave:
        attempts = Counter((command.step, command.attempt) for command in run.commands if isinstance(command, Order))
        assert set(attempts.values()) == {1}, "no attempt is ordered twice"
