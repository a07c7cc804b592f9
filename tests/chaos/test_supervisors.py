"""Several supervisors: killed, stopped and started again at will, they decide as if there were one.

A failing run is run again with its seed: `KOKUBAN_TEST_SEED=…`. The long form is `python bench/supervisors.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from chaos.decisions import Decisions
from chaos.several import LIMITS, Several, several
from kokuban.blackboard import Client
from kokuban.blackboard.audit import Settings, audit
from support.nats_server import ServerFactory
from support.processes import linux_only
from support.waiting import eventually

pytestmark = [pytest.mark.anyio, linux_only]

TAKEOVER_SECONDS = 5.0


@pytest.mark.timeout(240)
async def test_killed_and_stopped_twenty_times_they_decide_as_one(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    seed = int(os.environ.get("KOKUBAN_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    run = await several(server_factory(sync="always").url, tmp_path, seed)
    found = Decisions(LIMITS).read(run.messages)
    assert found.wrong == []
    assert found.ends == {"done": len(run.accepted)}
    assert len(run.hits) == 20
    # It came to what it is about: leaders changed, and every limit was reached.
    gaps = run.gaps()
    print(*run.hits, *gaps, sep="\n")
    assert len(gaps) >= 8
    assert len(found.leaders) >= 8
    assert {f"role {name}": n for name, n in LIMITS.roles.items() if name != "integrator"}.items() <= found.most.items()
    assert {f"tenant {name}": n for name, n in LIMITS.tenants.items()}.items() <= found.most.items()
    assert found.most["a task"] == LIMITS.per_task
    assert max(gap.until_led for gap in gaps) < TAKEOVER_SECONDS
    assert max(gap.until_decided or 0 for gap in gaps) < TAKEOVER_SECONDS + 1
    report = audit(run.messages, Settings(roles=dict(LIMITS.roles), steps_per_task=LIMITS.per_task))
    assert report.violations == ()


async def test_without_epochs_the_checker_finds_it(server_factory: ServerFactory, tmp_path: Path) -> None:
    """What a stopped leader decides when it wakes late, with nothing in its way: the rules do break, and it is seen."""
    url = server_factory().url

    async def seen(group: Several) -> None:
        async with await Client.connect(url) as board:
            while group._healing:
                await asyncio.wait(group._healing)
            for number in range(20):  # both lead now
                task = await board.submit(f"For two leaders {number}")
                await eventually(
                    lambda task=task: any(task in m.subject and ".work." in m.subject for m in group.run.messages)
                )
                wrong = Decisions(LIMITS).read(group.run.messages).wrong
                if all(any(text in line for line in wrong) for text in ("out of turn", "ordered twice")):
                    return
        raise AssertionError("nothing was decided twice")

    await several(
        url, tmp_path, 1, tasks=6, hits=1, stop_seconds=(4, 4), only_stops=True, options=("break=epoch",), until=seen
    )
