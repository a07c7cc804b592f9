"""A supervisor that archives at once, as a process of its own: `run_keeper.py URL`. It runs until it is killed."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta

import structlog

from kokuban.blackboard.wire import Bus
from kokuban.supervisor import Retention, Supervisor


async def main(url: str) -> None:
    async with await Bus.connect(url) as bus:
        await Supervisor(bus, retention=Retention(finished=timedelta(0)), lease_seconds=1).run()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(main(sys.argv[1]))
