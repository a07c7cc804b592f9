"""One member of a team as a process of its own: `run_member.py ROLE URL HOME [MODEL [BASE_URL]]`, ROLE a role or
`supervisor`. It runs until it is killed; its last words, if any, are on stderr."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import structlog

from kokuban.agents import Worker
from kokuban.agents.models import Meter, open_model
from kokuban.agents.roles import program_for
from kokuban.blackboard.wire import Bus
from kokuban.schemas.contracts import builtin_crew
from kokuban.supervisor import Supervisor


async def main(role: str, url: str, home: str, model: str = "", base_url: str = "") -> None:
    async with await Bus.connect(url) as bus:
        if role == "supervisor":
            await Supervisor(bus, silence_seconds=2.5, lease_seconds=1).run()
            return
        contract = builtin_crew()[role]
        meter = Meter(open_model(model, base_url=base_url or None, env={})) if contract.model else None
        place = Path(home) / f"{role}-{os.getpid()}"
        await Worker(bus, contract, program_for(role), home=place, meter=meter).run()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(*sys.argv[1:]))
