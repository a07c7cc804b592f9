"""Three supervisors under attack for long: killed and stopped for up to 30 s, 20 times, while tasks run.

    python bench/supervisors.py [--hits 20] [--stop-seconds 30] [--tasks 120] [--stored 10000] [--nodes 3] [--seed N]

It prints when the next one led after each hit on a leader, by the server's clock, and every rule that the records
break: none. `--stored` puts so many finished tasks on the board before.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE), str(HERE / "chaos")]

from restart import Filler  # noqa: E402
from servers import Cluster  # noqa: E402

from chaos.decisions import Decisions  # noqa: E402
from chaos.several import LIMITS, Run, several  # noqa: E402
from kokuban.blackboard.audit import Settings, audit  # noqa: E402
from kokuban.blackboard.wire import Bus  # noqa: E402
from kokuban.blackboard.wire.embedded import EmbeddedServer  # noqa: E402


async def bench(given: argparse.Namespace, folder: Path) -> Run:
    before = 0

    async def prepare(bus: Bus) -> None:
        nonlocal before
        if given.stored:
            await Filler(bus).fill(given.stored)
        before = await bus.last_seq()

    home = folder / "home"
    home.mkdir()
    async with AsyncExitStack() as stack:
        if given.nodes == 3:
            cluster = Cluster(folder / "cluster")
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            url = f"nats://127.0.0.1:{cluster.ports[0]}"
            await _until_served(url)
        else:
            url = (await stack.enter_async_context(EmbeddedServer(folder / "store"))).url
        run = await several(
            url, home, given.seed, tasks=given.tasks, hits=given.hits,
            stop_seconds=(given.stop_seconds, given.stop_seconds), pace_seconds=1.0, replicas=given.nodes,
            prepare=prepare, until=lambda group: group.ended(300),
        )  # fmt: skip
    run.messages = [message for message in run.messages if message.seq > before]
    return run


async def _until_served(url: str) -> None:
    for _ in range(200):
        try:
            async with await Bus.connect(url) as bus:
                if (await bus.api("INFO", timeout=1)).get("limits") is not None:
                    return
        except Exception:
            await asyncio.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, default=20)
    parser.add_argument("--stop-seconds", type=float, default=30)
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--stored", type=int, default=0)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kokuban-supervisors-") as name:
        run = asyncio.run(bench(given, Path(name)))
    found = Decisions(LIMITS).read(run.messages)
    report = audit(run.messages, Settings(roles=dict(LIMITS.roles), steps_per_task=LIMITS.per_task))
    for hit in run.hits:
        print(f"  {hit.what}{', leading' if hit.leader else ''}")
    gaps = sorted(gap.until_led for gap in run.gaps())
    decided = sorted(gap.until_decided for gap in run.gaps() if gap.until_decided is not None)
    print(f"{time.monotonic() - started:.0f} s, {len(run.accepted)} tasks, {found.orders} orders, {len(run.hits)} hits")
    print(f"leaders: {len(found.leaders)} in turn; {run.unhurt()} of them without a hit")
    for what, values in (("another led after", gaps), ("the next decision came after", decided)):
        if values:
            print(f"{what} {statistics.median(values):.2f} s (median), {values[-1]:.2f} s (longest of {len(values)})")
    print("most under way: " + ", ".join(f"{name} {count}" for name, count in sorted(found.most.items())))
    wrong = [*found.wrong, *(str(violation) for violation in report.violations)]
    for line in wrong[:50]:
        print(f"  BROKEN {line}")
    print(f"ends: {dict(found.ends)}; broken rules: {len(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
