"""A worker's model calls as a process: `run_caller.py NATS_URL ENDPOINT_URL NAME CALLS AT_ONCE WINDOW_SECONDS`.

It says `ready`, waits for a line, makes CALLS calls, each repeated until it is answered, AT_ONCE at a time, through a
meter with a gate, and then says `done`. A call's slot is for a second at most, and expires 1.5 s later.
"""

from __future__ import annotations

import asyncio
import sys
import time

from kokuban.agents.models import Meter, ModelError, open_model
from kokuban.blackboard.wire import Bus, Quota
from quota.endpoint import CONTEXT, REQUEST


async def main(nats: str, url: str, name: str, calls: str, at_once: str, window: str) -> None:
    async with (
        await Bus.connect(nats) as bus,
        Quota(bus, "tested", name, window_seconds=float(window), margin_seconds=1.5, longest_call_seconds=1.0) as gate,
    ):
        meter = Meter(open_model(f"openai-compatible:{name}", base_url=url, env={}), gate=gate)
        left = list(range(int(calls)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def caller() -> None:
            while left:
                left.pop()
                while True:
                    try:
                        await meter.call(REQUEST, CONTEXT, deadline=time.monotonic() + 20)
                    except ModelError as error:
                        print(f"again: {error!r}", flush=True)
                    else:
                        break

        await asyncio.gather(*(caller() for _ in range(int(at_once))))
        await meter.aclose()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
